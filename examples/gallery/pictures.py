"""What the gallery draws beside attention layers: models for tools/draw_model.py, two pictures of decoding.

python tools/draw_model.py examples/gallery/pictures.py:gpt -o gpt.svg --depth 3
python examples/gallery/pictures.py heat_map -o heat_map.svg
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

import microtensor as mt  # noqa: E402
from microtensor import nn, viz  # noqa: E402
from models import GPT, BeamNode, GPTConfig, Transformer, TransformerConfig, beam_search  # noqa: E402

WORDS = ["<pad>", "<s>", "</s>", "the", "cat", "sat", "on", "a", "mat"]


def gpt() -> tuple[Any, ...]:
    """A GPT of six layers, and a text for it."""
    mt.manual_seed(0)
    model = GPT(GPTConfig(block_size=16, vocab_size=64, n_layer=6, n_head=2, n_embd=32))
    return model, mt.randint(0, 64, (2, 8))


def transformer() -> tuple[Any, ...]:
    """The encoder–decoder of the paper, three layers each, a source and a target."""
    mt.manual_seed(0)
    sizes = {"d_model": 32, "n_heads": 4, "d_ff": 64, "n_encoder_layers": 3, "n_decoder_layers": 3}
    return (
        Transformer(TransformerConfig(100, 100, **sizes)),
        mt.randint(3, 100, (2, 7)),
        mt.randint(3, 100, (2, 5)),
    )


def perceptron() -> tuple[Any, ...]:
    """A network with one hidden layer."""
    mt.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1)), mt.randn(8, 2)


def formula() -> mt.Tensor:
    """The density of a normal distribution, up to a factor."""
    x, mean, width = (mt.tensor(value, requires_grad=True) for value in (0.5, 0.0, 2.0))
    return (-((x - mean) ** 2) / (2 * width**2)).exp() / width


def heat_map() -> viz.AttentionMaps:
    """How much each word of a target attends to each of its source, before anything is learned."""
    mt.manual_seed(3)
    sizes = {"d_model": 16, "n_heads": 2, "d_ff": 32, "n_encoder_layers": 1, "n_decoder_layers": 1}
    model = Transformer(TransformerConfig(len(WORDS), len(WORDS), **sizes)).eval()
    source, target = ["the", "cat", "sat", "</s>"], ["<s>", "a", "mat"]
    ids = [mt.tensor([[WORDS.index(word) for word in text]]) for text in (source, target)]
    _, kept = model(*ids, return_attention=True)
    return viz.attention(kept.cross, target, source, title="attention to the source")


def beam_tree() -> viz.Drawing:
    """What a beam of two looks at, behind "the cat", in a GPT that has not learned anything."""
    mt.manual_seed(34)
    model = GPT(GPTConfig(block_size=8, vocab_size=len(WORDS), n_layer=1, n_head=2, n_embd=16, init_std=0.6))
    tree: list[BeamNode] = []
    beam_search(model.eval(), mt.tensor([[3, 4]]), beam_size=2, max_len=4, tree=tree)
    return viz.beam_tree(tree, WORDS, prompt=[3, 4])


def main(argv: list[str] | None = None) -> int:
    """Draw, save, and say where."""
    parser = argparse.ArgumentParser(description="Draw what a model does when it decodes.")
    parser.add_argument("what", choices=("heat_map", "beam_tree"))
    parser.add_argument("-o", "--output", type=Path, required=True, help="a file .svg, .png …")
    chosen = parser.parse_args(argv)
    made = {"heat_map": heat_map, "beam_tree": beam_tree}[chosen.what]()
    try:
        print(f"saved {made.save(chosen.output)}")
    except (ValueError, RuntimeError, OSError) as error:
        print(f"pictures: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
