"""Train a character GPT on a text and let it go on writing; the text is Python's own documentation, or yours.

    python examples/char_gpt.py                                # a minute or two of training on 2 cores
    python examples/char_gpt.py --text FILE --out runs/mine    # any text in UTF-8
    python examples/char_gpt.py --resume --prompt "The with"   # go on after Ctrl-C, or just write more

The settings are nanoGPT's for a CPU, but for init_std: 0.02 there, as at six times this width. The last tenth
of the text is for validation: all of it, block by block.
"""

from argparse import Namespace

import numpy as np
from job import TextJob, naming

import microtensor as mt
from microtensor.data import CharTokenizer, DataLoader, RandomSampler, TensorDataset, blocks
from microtensor.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from microtensor.train import Trainer
from models import GPT, GPTConfig, generate

NANO = {"steps": 2000, "batch": 12, "block": 64, "layers": 4, "heads": 4, "width": 128}
SMOKE = {"steps": 20, "batch": 4, "block": 16, "layers": 1, "heads": 2, "width": 32}
JOB = TextJob(__doc__, "runs/chars", {**NANO, "dropout": 0.0, "lr": 1e-3, "init_std": 0.05, "seed": 0}, SMOKE)
add = JOB.parser.add_argument
add("--prompt", type=str, help="what the samples go on from; default a new line")
add("--length", type=int, default=500, help="characters to write; default 500")
add("--samples", type=int, default=1, help="how many times; default 1")
add("--temperature", type=float, default=0.8, help="1 draws as learned, 0 the likeliest; default 0.8")
add("--top_k", type=int, help="draw among the k likeliest characters only")


def loss_over(model: GPT, data: TensorDataset) -> float:
    """The mean cross entropy of all blocks, in nats per character."""
    with mt.no_grad():
        return sum(model(x, y)[1].item() * len(x) for x, y in DataLoader(data, 64)) / len(data)


def make_trainer(model: GPT, train: TensorDataset, valid: TensorDataset, options: Namespace) -> Trainer:
    """Random blocks, AdamW, clipping, a warm-up, then a cosine down to a tenth of the rate."""
    steps, warmup = options.steps, max(1, options.steps // 20)
    optimizer = model.configure_optimizers(weight_decay=0.1, learning_rate=options.lr, betas=(0.9, 0.99))
    rise = LinearLR(optimizer, 1 / (warmup + 1), total_iters=warmup)
    fall = CosineAnnealingLR(optimizer, max(1, steps - warmup), eta_min=0.1 * options.lr)
    places = RandomSampler(train, replacement=True, num_samples=1000 * options.batch)
    return Trainer(
        model,
        optimizer,
        DataLoader(train, options.batch, sampler=places),
        loss_fn=lambda model, batch: (model(*batch)[1], batch[0].numel()),
        max_steps=steps,
        scheduler=SequentialLR(optimizer, [rise, fall], [warmup]),
        grad_clip=1.0,
        evaluate=lambda model: {"val_loss": loss_over(model, valid)},
        eval_every=max(1, steps // 4),
        checkpoint=options.out,
        checkpoint_every=max(1, steps // 10),
        config=JOB.kept(options),
    )


def work(options: Namespace) -> None:
    text, block = options.text, options.block
    if len(text) < (least := 10 * (block + 1)):  # the last tenth must have a block, and what comes after it
        raise ValueError(f"--text has {len(text)} characters; give {least} or more for --block {block}")
    tokenizer = CharTokenizer(text)
    ids, cut = np.array(tokenizer.encode(text)), int(0.9 * len(text))
    train, valid = blocks(ids[:cut], block), blocks(ids[cut:], block, every=block)
    if options.batch > (most := len(train)):
        raise ValueError(f"--batch is {options.batch}, and the text has {most} blocks; give at most these")
    if options.width % options.heads:
        raise ValueError(f"--heads {options.heads} does not divide --width {options.width}; give a divisor")
    mt.manual_seed(options.seed)
    sizes = block, tokenizer.vocab_size, options.layers, options.heads, options.width
    with naming("--dropout"):
        model = GPT(GPTConfig(*sizes, dropout=options.dropout, bias=False, init_std=options.init_std))
    prompt = options.prompt or ("\n" if "\n" in tokenizer.chars else text[0])
    with naming("--prompt"):
        start = mt.tensor([tokenizer.encode(prompt)] * options.samples)

    def write(n: int) -> list[str]:
        drawn = mt.Generator().manual_seed(options.seed)
        ids = generate(model, start, n, temperature=options.temperature, top_k=options.top_k, generator=drawn)
        return [tokenizer.decode(row) for row in ids]

    with naming("--temperature"):
        write(0)  # what cannot be written is refused before anything is trained
    trainer = make_trainer(model, train, valid, options)
    print(f"{len(text):,} characters, {tokenizer.vocab_size} different")
    if not JOB.fit(trainer, options):
        return
    print(f"validation loss {loss_over(model.eval(), valid):.4f} (all {len(valid)} blocks of the last tenth)")
    for sample in write(options.length):
        print("-" * 80, sample.strip("\n"), sep="\n")
    print("-" * 80, f"checkpoints and log: {options.out}", sep="\n")


if __name__ == "__main__":
    raise SystemExit(JOB.run(work))
