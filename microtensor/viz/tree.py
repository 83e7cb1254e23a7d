"""A search for the best text as a tree: what was looked at, what was kept, and what was found.

It draws plain nodes with a parent, a token and its log-probability; who searched is not known here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from microtensor.viz import style, symbols
from microtensor.viz.drawing import CHOICES, Drawing, Made, check

__all__ = ["beam_tree"]

LEGEND = (
    "first number: log p of the token; Σ: log P of the text so far; score: Σ / length penalty; "
    "bold, blue: found; solid: kept; dashed: not kept"
    r"\lof each text that goes on: its {most} likeliest next tokens only\l"
)


def beam_tree(
    nodes: Sequence[Any],
    tokens: Sequence[str] | Callable[[int], str] | None = None,
    *,
    prompt: Sequence[int] = (),
    row: int = 0,
    direction: str = "LR",
    theme: str = "auto",
    max_nodes: int = 500,
) -> Drawing:
    """Draw what a beam search looked at: ways to go on, those that it kept, and the texts that it found.

    Of each text that goes on these are its beam_size likeliest next tokens only: the beam has no place for
    another one. The legend says how many they are.

    nodes: such as `models.beam_search` notes them in `tree=`. Each has `row` (of the batch), `parent` (its
    index among the nodes, −1 at the start), `token`, `log_p` (of the token), `log_prob` and `score` (of the
    text so far), `kept` and `rank` (1 for the best text that was found, 0 for none). tokens: what a token is
    called, by its number; by default the number. prompt: the tokens that all texts begin with, by which the
    start is called. row: whose tree is drawn. direction: "LR" or "TB". theme, max_nodes: as in `draw`.

    Raises: ValueError for a row without nodes, a parent that does not stand before its node, a token that has
    no name, and an unknown direction or theme; TypeError for tokens that are neither names nor a function.
    Source: ours; beam search: Wu et al. 2016, §7.
    """
    check("beam_tree", {"direction": direction, "theme": theme}, {**CHOICES, "direction": ("LR", "TB")})
    for i, node in enumerate(nodes):
        if not -1 <= node.parent < i:
            raise ValueError(
                f"beam_tree: node {i} has parent {node.parent}; parents stand before their nodes"
            )
    mine = [i for i, node in enumerate(nodes) if node.row == row]
    if not mine:
        rows = sorted({node.row for node in nodes})
        cure = f"choose among {rows}" if rows else "give the list that beam_search(…, tree=) has filled"
        raise ValueError(f"beam_tree: there is no node of row {row}; {cure}")
    tree = _Tree(nodes, mine, _names(tokens, [*prompt, *(nodes[i].token for i in mine)]))
    colours = style.DARK if theme == "dark" else style.LIGHT
    made = Made(["\n".join(tree.lines(direction, colours, prompt)) + "\n"], tree.found(), [])
    return Drawing(lambda: made, theme=theme, boxes=len(mine) + 1, max_nodes=max_nodes, level="tree")


def _names(tokens: Sequence[str] | Callable[[int], str] | None, used: list[int]) -> Callable[[int], str]:
    """What each token is called; all that are used have a name."""
    if tokens is None or callable(tokens):
        return tokens or str
    if not hasattr(tokens, "__len__"):
        raise TypeError(f"beam_tree: tokens is {tokens!r}; give a list of names, or a function")
    if nameless := [token for token in used if token not in range(len(tokens))]:  # −1 is not the last
        raise ValueError(f"beam_tree: token {max(nameless)} has no name among {len(tokens)}; "
                         f"name all, or leave tokens out")  # fmt: skip
    return tokens.__getitem__


class _Tree:
    """The nodes of one row of the batch as DOT: every label is HTML-like, every text in it escaped."""

    def __init__(self, nodes: Sequence[Any], mine: list[int], called: Callable[[int], str]) -> None:
        self.nodes, self.mine, self.called = nodes, mine, called
        self.legend = LEGEND.format(most=max(Counter(nodes[i].parent for i in mine).values()))
        self.ends = sorted((i for i in mine if nodes[i].rank), key=lambda i: nodes[i].rank)
        self.winners = {i for end in self.ends for i in self._path(end)}  # and all that they went through

    def _path(self, i: int) -> list[int]:
        """The nodes from the start to i."""
        path = []
        while i >= 0:
            path.append(i)
            i = self.nodes[i].parent
        return path[::-1]

    def found(self) -> list[str]:
        """The texts that were found, the best first."""
        return [f"{self.nodes[i].rank}: {self._text(i)}, {_scores(self.nodes[i])}" for i in self.ends]

    def _shown(self, token: int) -> str:
        return symbols.clean(symbols.token(self.called(token), 24))

    def _text(self, i: int) -> str:
        return " ".join(self._shown(self.nodes[j].token) for j in self._path(i))

    def lines(self, direction: str, theme: style.Theme, prompt: Sequence[int]) -> Iterator[str]:
        """The DOT text."""
        small = f'fontname="{style.FONT}", fontsize={style.SMALL}, fontcolor="{theme.second}"'
        stroke, fill = theme.kinds["input"]
        yield 'digraph "beam search" {'
        yield (
            f"  graph [rankdir={direction}, ranksep=0.35, nodesep=0.10, ordering=out, pad=0.12, "
            f'bgcolor="{theme.paper}", labelloc=b, labeljust=l, label="{self.legend}", {small}];'
        )
        yield (
            f'  node [shape=box, style="rounded,filled", fontname="{style.FONT}", fontsize={style.BIG}, '
            f'fontcolor="{theme.text}", margin="0.12,0.07", height=0.28, width=0.3];'
        )
        tail, head = ("e", "w") if direction == "LR" else ("s", "n")  # corners are round
        yield f"  edge [arrowsize=0.6, tailport={tail}, headport={head}];"
        start = symbols.escape(symbols.clean(" ".join(map(self._shown, prompt)) or "start"))
        yield f'  start [id="node-start", label=<{start}>, color="{stroke}", fillcolor="{fill}"];'
        for i in self.mine:
            yield self._node(i, theme, ", " if direction == "LR" else "<BR/>")
            yield self._edge(i, theme)
        yield "}"

    def _kind(self, i: int) -> str:
        return "found" if i in self.winners else "kept" if self.nodes[i].kept else "pruned"

    def _node(self, i: int, theme: style.Theme, between: str) -> str:
        node, kind = self.nodes[i], self._kind(i)
        stroke, fill = theme.kinds["Q" if kind == "found" else "O"]
        look = f'color="{stroke}", fillcolor="{fill}", penwidth={2 if kind == "found" else 1}'
        if kind == "pruned":
            look = f'color="{theme.rule}", fillcolor="{theme.paper}", style="rounded,filled,dashed"'
        colour = theme.second if kind == "pruned" else theme.text
        name = symbols.escape(self._shown(node.token))
        numbers = f"{_number(node.log_p)}{between}Σ {_number(node.log_prob)}"
        rank = f"place {node.rank}: score {_number(node.score)}" if node.rank else ""
        small = [theme.small(text) for text in (numbers, rank) if text]
        tooltip = f"{self._text(i)}\n{_scores(node)}\n{kind}"
        label = "<BR/>".join([f"<B>{name}</B>" if kind == "found" else name, *small])
        return (
            f'  n{i} [id="node-n{i}", class="{kind}", label=<{label}>, {look}, fontcolor="{colour}", '
            f"tooltip={symbols.quote(tooltip)}];"
        )

    def _edge(self, i: int, theme: style.Theme) -> str:
        node, kind = self.nodes[i], self._kind(i)
        tail = "start" if node.parent < 0 else f"n{node.parent}"
        colour = {"found": theme.kinds["Q"].stroke, "kept": theme.text, "pruned": theme.rule}[kind]
        look = {"found": "penwidth=2", "kept": "penwidth=1", "pruned": "style=dashed"}[kind]
        return f'  {tail} -> n{i} [id="edge-n{i}", class="{kind}", color="{colour}", {look}];'


def _scores(node: Any) -> str:
    return f"log P {_number(node.log_prob)}, score {_number(node.score)}"


def _number(x: float) -> str:
    return f"{x:.2f}".replace("-", "−")
