"""Picture → DOT text, with nothing but strings: a function of the picture and the options, byte for byte.

Every label is HTML-like; node names, ports and URLs are made by us and hold no user text. `to_dot` is the
small sister for any tape: plain quoted labels, one line a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from microtensor.viz import symbols
from microtensor.viz.layout import Layout, Variant, plan
from microtensor.viz.picture import Arrow, Box, Cell, Cluster, Picture, in_lines, length, side_by_side
from microtensor.viz.style import BIG, CLUSTER, FONT, LEGEND, SHAPES, SMALL, Theme
from microtensor.viz.trace import Graph

__all__ = ["simple", "write"]

SPARE = 9  # empty cells that take up what a long line below is wider than the swatches, or these spread
PORT_SIDE = {"TB": "s", "BT": "n", "LR": "e"}
SPACING = {"TB": (0.30, 0.22), "BT": (0.30, 0.22), "LR": (0.24, 0.13)}  # ranksep, nodesep


def write(picture: Picture, direction: str, theme: Theme, legend: bool, variant: Variant) -> str:
    """The picture as DOT."""
    return "\n".join(_Writer(picture, direction, theme, legend, variant).lines()) + "\n"


class _Writer:
    def __init__(
        self, picture: Picture, direction: str, theme: Theme, legend: bool, variant: Variant
    ) -> None:
        self.picture, self.direction, self.theme, self.legend = picture, direction, theme, legend
        self.layout: Layout = plan(picture, variant)
        self.lanes = any(box.lane is not None for box in picture.order)
        self.reverse = variant.reverse
        self.heads = sum(cluster.index is not None for cluster in picture.clusters)
        self.between = Counter((arrow.tail, arrow.head) for arrow in picture.arrows)

    def lines(self) -> Iterator[str]:
        yield f'digraph "{self.picture.what}_{self.picture.level}" {{'
        yield from self._defaults()
        for box in self.picture.boxes:
            yield from self._box(box, "  ")
        for cluster in self.picture.clusters[:: -1 if self.reverse else 1]:
            yield from self._cluster(cluster, "  ")
        yield from (f"  {statement}" for statement in self.layout.statements)
        for arrow in self.picture.arrows:
            yield self._arrow(arrow)
        yield "}"

    def _defaults(self) -> Iterator[str]:
        theme, (ranksep, nodesep), margin = self.theme, SPACING[self.direction], "0.08,0.035"
        picture, labels = self.picture, any(arrow.gradient for arrow in self.picture.arrows)
        if self.direction == "LR" and (labels or picture.level == "ops" or picture.code):
            # a long row, that must still be read on a slide
            ranksep, margin = 0.12 if labels or picture.code else 0.18, "0.04,0.035"
        elif labels:  # they make room of their own between ranks
            ranksep = 0.20
        row = (picture.level, self.direction) == ("heads", "TB")
        if self.heads > 1:  # the arrows of a parameter's box must part
            ranksep = 0.34 if row and self.heads == 2 else 0.42 - 0.06 * any(b.grids for b in picture.order)
        # a second look for crossings would forget the order of lanes in their frames
        order = "" if row or picture.level == "ops" else ", remincross=false"
        label = f", labelloc=b, labeljust=l, label=<{self._legend()}>" if self.legend else ""
        yield (
            f"  graph [rankdir={self.direction}, ranksep={ranksep:.2f}, nodesep={nodesep:.2f}, newrank=true, "
            f'compound=true, splines=true{order}, pad=0.12, bgcolor="{theme.paper}", fontname="{FONT}", '
            f'fontsize={CLUSTER}, fontcolor="{theme.second}"{label}];'
        )
        yield (
            f'  node [fontname="{FONT}", fontsize={BIG}, fontcolor="{theme.text}", color="{theme.rule}", '
            f'penwidth=1.2, margin="{margin}", height=0.28, width=0.3];'
        )
        yield (
            f'  edge [fontname="{FONT}", fontsize={SMALL}, fontcolor="{theme.second}", color="{theme.text}", '
            f"penwidth=1.2, arrowsize={0.5 if labels or self.direction == 'LR' else 0.6}];"  # leaves a shaft
        )

    # --- nodes ----------------------------------------------------------------------------------------------

    def _box(self, box: Box, indent: str) -> Iterator[str]:
        stroke, fill = self.theme.kinds["fault" if box.fault else box.kind]
        if box.shape == "rows":
            look = f"shape=plain, label=<{self._rows(box)}>"
        elif box.shape == "cells":
            look = f"shape=plain, label=<{self._cells(box, stroke)}>"
        else:
            fill = self.theme.paper if box.shape == "view" else fill
            look = f'{SHAPES[box.shape]}, fillcolor="{fill}", color="{stroke}", label=<{self._label(box)}>'
            # or arrows would pierce its border
            look += ', margin="0.08,0"' if box.cells or box in self.layout.fans else ""
        column = f", group={self.layout.columns[box]}" if box in self.layout.columns else ""
        url = f', URL="{box.url}"' if box.url else ""
        yield (
            f'{indent}{box.name} [id="{box.id}", class="{box.classes}"{column}, {look}, '
            f"tooltip={symbols.quote(box.tooltip)}{url}];"
        )
        yield from (f"{indent}{statement}" for statement in self.layout.inside.get(box, ()))

    def _label(self, box: Box) -> str:
        large, small = list(box.lines), list(box.small)
        if box.cells:
            large[0] = _with_ports(large[0], box.cells)
        if box.aside and self.direction != "LR":
            large[-1] += f" {self.theme.small(box.aside)}"
        elif self.direction == "LR":
            small += [box.aside, box.result]
        large = [line + self._gradient(" ≡ 0", bold=True) * (i in box.marked) for i, line in enumerate(large)]
        small = [self.theme.small(text) for text in small if text]
        small[1:1] = [self._gradient(box.gradient, bold=False)] if box.gradient else []
        longest = -(-max([box.longest, *map(length, large)]) * BIG // SMALL)
        rows = large + side_by_side(small, longest, self.theme.small(" · "))
        rows += [self._gradient(box.found, bold=True)] if box.found else []
        tall = self.picture.level == "ops" and self.direction != "LR"  # anyway: there cells stand beside
        beside = f'</TD><TD ROWSPAN="{len(rows)}">{box.grids}' if tall and box.grids else ""
        rows += [box.grids] if box.grids and not tall else []
        rows[0] += beside
        left = ' ALIGN="LEFT"' if box.shape == "vjp" else ""
        rows += [""] * bool(box.cells)  # below as much room as above, where they have theirs
        if len(rows) > 1 or beside or left:
            told = "".join(f"<TR><TD{left}>{row}</TD></TR>" for row in rows)
            rows = [_table(told, 0 if left or box.cells else 1, 1)]
        if not (fan := self.layout.fans.get(box, [])):
            return rows[0]
        ports = [f'<TD PORT="o{i}" WIDTH="{30 if fan[0] else 8}" HEIGHT="2"></TD>' for i in range(len(fan))]
        across = f'COLSPAN="{len(fan)}"'
        parts = f'<TD {across} HEIGHT="3"></TD>', f"<TD {across}>{rows[0]}</TD>", "".join(ports)
        turn = 1 if bool(fan[0]) == (self.direction == "TB") else -1
        return _table("".join(f"<TR>{part}</TR>" for part in parts[::turn]))

    def _gradient(self, html: str, *, bold: bool) -> str:
        text = f"<B>{html}</B>" if bold else html
        return f'<FONT POINT-SIZE="{SMALL}" COLOR="{self.theme.gradient}">{text}</FONT>'

    def _rows(self, box: Box) -> str:
        """What is kept: a table of name, shape, bytes."""
        rows, wide = "", (20, 20, 20) if self.direction == "LR" else (26, 52, 40)
        for name, shape, size in box.rows:
            # with shapes=None there is none
            middle = f'<TD WIDTH="{wide[1]}">{self.theme.small(shape)}</TD>' if shape else ""
            rows += f'<TR><TD WIDTH="{wide[0]}">{name}</TD>{middle}'
            rows += f'<TD WIDTH="{wide[2]}" ALIGN="RIGHT">{self.theme.small(size)}</TD></TR>'
        return _table(rows, 0, 3, f'BORDER="0" COLOR="{self.theme.rule}"', 1)

    def _cells(self, box: Box, stroke: str) -> str:
        sideways = self.direction == "LR"
        cells = [self._cell(c, box, stacked=box.stacked and not sideways) for c in box.cells]
        rows = ("</TR><TR>" if sideways or box.stacked else "").join(cells)
        return _table(f"<TR>{rows}</TR>", 0, 2, f'BORDER="1" COLOR="{stroke}"')

    def _cell(self, cell: Cell, box: Box, *, stacked: bool) -> str:
        stroke, fill = self.theme.kinds["fault" if cell.fault else box.kind]
        shape = f" {self.theme.small(cell.shape)}" if cell.shape else ""
        tooltip = symbols.escape(symbols.clean(cell.tooltip))
        found = self._gradient(cell.found or cell.gradient, bold=cell.zero or bool(cell.found))
        said = (" " if stacked else "</TD></TR><TR><TD>") + found if cell.found or cell.gradient else ""
        said = _table(f"<TR><TD>{cell.symbol}{shape}{said}</TD></TR>", 0, 1)
        frame = _table(f"<TR><TD>{said}</TD></TR>", 0, 3, f'BORDER="1" COLOR="{stroke}" BGCOLOR="{fill}"')
        # without HREF, Graphviz drops the TOOLTIP; an arrow begins at the outer frame
        return f'<TD PORT="{cell.port}" TOOLTIP="{tooltip}" HREF="#{box.id}">{frame}</TD>'

    def _side(self, cluster: Cluster | None, lane: str | None = None) -> float:
        """How far right of the middle of all heads one stands, or a lane of it, in halves of a head."""
        index = cluster.index if cluster is not None else None
        return 2 * index - self.heads - 1 + {"Q": -0.5, "V": 0.5}.get(lane or "", 0) if index else 0

    def _cluster(self, cluster: Cluster, indent: str) -> Iterator[str]:
        theme, lines = self.theme, cluster.lines
        sideways, second = self.direction == "LR", self._side(cluster) > 0
        above = sideways and not second  # of the spine; of heads on the outer side, where no arrow leaves
        right = second or (sideways and (cluster.module or cluster.index is not None))
        if cluster.outer:  # the corner that the fewest arrows pass, tried on models of every kind
            above, right = not sideways, True
        elif cluster.column:  # sideways that of what is kept behind it, where no dotted line ends
            above, right = cluster.column != "tape" or not sideways, cluster.column == "tape" and self.reverse
        where = f"labelloc={'t' if above else 'b'}, labeljust={'r' if right else 'l'}"
        lines = in_lines(" ".join(lines), 24) if sideways and len(lines) > 2 else lines
        said = [symbols.html(t) if cluster.index else symbols.escape(symbols.clean(t)) for t in lines]
        label = "".join(f'{line}<BR ALIGN="LEFT"/>' for line in said) if len(said) > 1 else said[0]
        look = f"style=rounded, fontsize={SMALL}"
        if not cluster.module:
            look = f'style="rounded,filled", fillcolor="{theme.cluster}", fontsize={CLUSTER}'
        if cluster.column:
            look, label = self._column(cluster), f"<B>{label}</B>"
        look += f", margin={self._margin(cluster)}"
        apart = cluster.outer and cluster.parent is None and not self.lanes
        if apart:  # an unseen frame around it, which keeps passing arrows off its corners
            yield f'{indent}subgraph clusters{cluster.name[7:]} {{ graph [label="", style=invis, margin=6];'
        yield f"{indent}subgraph {cluster.name} {{"
        yield (
            f'{indent}  graph [id="{cluster.name}", class=module, label=<{label}>, {where}, '
            f'color="{theme.rule}", {look}, penwidth=0.9, tooltip={symbols.quote(cluster.tooltip)}];'
        )
        for box in cluster.boxes[:: -1 if self.reverse and cluster.column else 1]:
            yield from self._box(box, indent + "  ")
        for inner in cluster.inner:
            yield from self._cluster(inner, indent + "  ")
        yield f"{indent}}}{' }' * apart}"

    def _column(self, cluster: Cluster) -> str:
        fills = {"fwd": self.theme.cluster, "tape": self.theme.paper, "bwd": self.theme.backward}
        style, purple = "dashed" if cluster.column == "tape" else "filled", self.theme.gradient
        colours = f', color="{purple}", fontcolor="{purple}"' if cluster.column == "bwd" else ""
        return f'style="rounded,{style}", fillcolor="{fills[cluster.column]}", fontsize={CLUSTER}{colours}'

    def _margin(self, cluster: Cluster) -> int:
        """Wide enough for the label to stand beside the arrow that leaves the cluster.

        Around whole modules so narrow that arrows pass clear of its corners: they keep off the boxes inside.
        """
        if cluster.column and self.direction != "LR":
            return 14
        if cluster.module and self.direction != "LR":
            return 5 if cluster.outer else 20
        narrow = self.direction == "LR" or cluster.index or any(b.kind == "const" for b in cluster.boxes)
        return 8 if narrow else 30 if self.picture.level == "equations" else 26

    # --- edges ----------------------------------------------------------------------------------------------

    def _arrow(self, arrow: Arrow) -> str:
        tail, side = arrow.tail, PORT_SIDE[self.direction]
        # of cells below each other but the last an arrow would cross their box: none of them says its cell
        cells = tail.shape == "cells" and (self.direction == "LR" or not tail.stacked)
        # and a weight that is used twice would send both arrows off as one
        cells = cells and sum(box is tail for box, _ in self.between) <= len(tail.cells)
        port = f":{arrow.port}:{side}" if cells and arrow.port else ""
        # of an input each lane's at another side: its corners are round, and two arrows would share one
        sides, frame = {"Q": "w", "K": side, "V": "e"}, arrow.head.cluster
        if self.direction != "LR" and tail.kind == "input" and (frame is None or frame.column):
            port = f":{sides[arrow.head.lane]}" if arrow.head.lane in sides else ""
        fan, into = (self.layout.fans.get(box, []) for box in (tail, arrow.head))
        port = f":o{fan.index(arrow)}:{side}" if arrow in fan else port
        # of cells below each other, which have no port, not from the same corner
        if arrow in into and self.picture.level != "ops":
            slant = "w" * (self.picture.level == "tape")  # there both end above, and would go side by side
            port = port + slant if port else f":{side}" * bool(into[into.index(arrow) - 1])
        parts = [f'id="{arrow.id}"', getattr(self, f"_{arrow.kind}")(arrow)]
        parts += ["weight=10"] * (arrow in self.layout.heavy) + self.layout.extra.get(arrow, [])
        label = self._arrow_label(arrow)
        parts += [f"label=<{label}>"] * bool(label) + [f"tooltip={symbols.quote(arrow.tooltip)}"]
        head = arrow.head.name + self._end(arrow)
        values = (tail.lane, arrow.head.lane) == ("V", "O") and tail.cluster is not arrow.head.cluster
        if values or arrow in self.layout.beside:
            head += ":s" if self.direction == "LR" else ":e"  # straight through the frame's side
        beside = self.direction != "LR" and (tail.lane, arrow.head.lane) == ("Q", "S")
        head += ":w" if beside and (arrow.label or arrow.head.grids) else ""  # or it ends at a round corner
        if frame is not None and frame.outer and arrow.head.lane in sides and not (cells or arrow.gradient):
            # or it cuts the lane before
            head += {"TB": ":n", "BT": ":s"}.get(self.direction, "")
        return f"  {tail.name}{port} -> {head} [{', '.join(parts)}];"

    def _end(self, arrow: Arrow) -> str:
        """Where it ends: at what it brings; but in a head right of the middle, where parameters come from the
        left, theirs end left of those of inputs, or they would run through the tips of these.
        """
        head, end = arrow.head, f":{arrow.head_port}:n" * bool(arrow.head_port)
        if arrow in (into := self.layout.fans.get(head, [])):
            i = into.index(arrow)  # the outermost at a slant, or they would run along a frame's border
            slant = "w" * (i == 1) or "e" * (into[i - 1] is not None and into[i + 1] is None)
            return f":o{i}:{'sn'[self.direction == 'TB']}{slant}"
        side = self._side(head.cluster, head.lane)
        right, far = side > 0, abs(side) > 1.5  # far: another head stands between it and the middle
        if len(head.cells) == 1 and head.lane in [*"QKV"] and (end or self.heads == 1):
            return f":{'l' * (right != bool(end))}h1:n"  # of more heads the parameter's ends in the middle
        if end and arrow.tail.kind == "param":  # of a far head it would run along the border of a frame
            return "" if far else ":lh1:n" if right else end
        across = arrow.tail.kind == "const" and side and self.direction != "LR"
        return f":{'n' * far}{'w' if right else 'e'}" if across else end  # far: above the tips that it passes

    def _fwd(self, arrow: Arrow) -> str:
        cross = arrow.tail.kind == "param" and arrow.head.cluster and arrow.head.cluster.index
        colour = self.theme.kinds[(arrow.head if cross else arrow.tail).kind].stroke  # tells them apart
        if arrow.flows:  # one double line: an invisible second edge would eat the arrow at the tail
            return f'class="fwd bwd", color="{colour}:{self.theme.gradient}", dir=both, arrowtail=onormal'
        return f'class=fwd, color="{colour}"' + ("" if arrow.differentiable else ", style=dashed")

    def _bwd(self, arrow: Arrow) -> str:
        return f'class=bwd, color="{self.theme.gradient}", style=dashed, dir=back, arrowtail=onormal'

    def _saved(self, arrow: Arrow) -> str:
        return f'class=saved, color="{self.theme.second}", style=dotted, dir=none, weight=0'

    def _arrow_label(self, arrow: Arrow) -> str:
        passes = "  " * ((arrow.tail.lane, arrow.head.lane) == ("Q", "S"))  # and keeps off the box of Kᵀ
        shape = f" {arrow.label}{passes}" if arrow.label and self.direction != "LR" else ""
        norm = f'<FONT COLOR="{self.theme.gradient}"> {passes}{arrow.gradient}</FONT>' * bool(arrow.gradient)
        if norm and self.direction == "LR":  # room below it, or the arrow strikes its digits
            return _table(f'<TR><TD>{norm}</TD></TR><TR><TD HEIGHT="8"></TD></TR>')
        space = " " * (self.between[arrow.tail, arrow.head] > 1)  # or the arrow beside it strikes the digits
        return "<BR/>".join(part + space for part in (shape, norm) if part)

    # --- legend ---------------------------------------------------------------------------------------------

    def _legend(self) -> str:
        swatches = _table(f"<TR>{''.join(self._swatches())}</TR>", 2)
        rows = [*self._arrows_said(), *map(self.theme.small, self.picture.captions)]
        look = f'ALIGN="LEFT" COLSPAN="{SPARE + 1}"'
        tall = f'{look} VALIGN="BOTTOM" HEIGHT="14"'  # a superscript keeps off a subscript in the row above
        cells = "".join(f"<TR><TD {tall if '<SUP>' in row else look}>{row}</TD></TR>" for row in rows)
        return _table(f'<TR><TD ALIGN="LEFT">{swatches}</TD>{"<TD></TD>" * SPARE}</TR>{cells}', 1)

    def _swatches(self) -> Iterator[str]:
        kinds = {kind for box in self.picture.order for kind in (box.kind, "fault" * box.fault)}
        for kind, (stroke, fill) in self.theme.kinds.items():
            if kind in kinds and kind in {**LEGEND, "O": ""}:
                said = LEGEND["op" if kind == "O" and not self.lanes else kind] + "  "
                yield f'{self._swatch(kind, stroke, fill)}<TD ALIGN="LEFT">{self.theme.small(said)}</TD>'

    def _swatch(self, kind: str, stroke: str, fill: str) -> str:
        def cell(wide: int, sides: str = "LTRB", border: int = 1) -> str:
            size = f'WIDTH="{wide}" HEIGHT="9" FIXEDSIZE="TRUE" BORDER="{border}" SIDES="{sides}"'
            return f'<TD BGCOLOR="{fill}" COLOR="{stroke}" {size}></TD>'

        if kind != "const":
            return cell(14, border=2 if kind == "param" else 1)
        # STYLE="DASHED" would crash Graphviz 14 when it writes JSON
        dashes = f"<TR>{cell(3, 'LTB')}{cell(3, 'TB')}{cell(3, 'RTB')}</TR>"
        return f"<TD>{_table(dashes, 2)}</TD>"

    def _arrows_said(self) -> Iterator[str]:
        def said(arrow: str, text: str, colour: str = self.theme.text) -> str:
            return f'<FONT COLOR="{colour}" POINT-SIZE="10">{arrow}</FONT>{self.theme.small(" " + text)}'

        arrows, boxes, purple = self.picture.arrows, self.picture.order, self.theme.gradient
        label = ", label = shape" if self.direction != "LR" and any(a.label for a in arrows) else ""
        share = ", norm of its share" if any(a.gradient for a in arrows) else ""
        stops = any(arrow.kind == "fwd" and not arrow.differentiable for arrow in arrows)
        back = any(arrow.kind == "bwd" for arrow in arrows)
        views = any(box.shape == "view" for box in boxes)
        norms = any(box.gradient or any(cell.gradient for cell in box.cells) for box in boxes)
        kinds = [
            (True, said("━▶", f"forward{label}")),
            (stops, said("╍▶", "no gradient flows back")),
            (views, self.theme.small("dashed box: moves elements, computes nothing")),
            (any(arrow.flows for arrow in arrows), said("━▷", f"gradient{share}", purple)),
            (back, said("╌▷", f"gradient{share}", purple)),
            (back, said("·····", "kept by the tape; inputs and parameters live anyway", self.theme.second)),
            (norms, self.theme.small("‖∂‖: Euclidean (Frobenius) norm of the whole")),
        ]
        yield self.theme.small("    ").join(text for shown, text in kinds if shown)


def _with_ports(line: str, parts: list[Cell]) -> str:
    """An equation whose parts are cells, so that arrows end at them."""
    row = ""
    for part in parts:
        before, line = line.split(part.symbol, 1)
        row += f'<TD PORT="l{part.port}">{before}</TD><TD PORT="{part.port}">{part.symbol}</TD>'
    return _table(f'<TR>{row}<TD HEIGHT="19">{line}</TD></TR>')


def _table(rows: str, space: int = 0, pad: int = 0, look: str = 'BORDER="0"', lines: int = 0) -> str:
    return f'<TABLE {look} CELLBORDER="{lines}" CELLSPACING="{space}" CELLPADDING="{pad}">{rows}</TABLE>'


def simple(graph: Graph) -> str:
    """A tape as plain DOT: a quoted label per node, leaves as boxes, an edge per argument slot."""
    lines = ["digraph tape {"]
    for node in graph.nodes:
        called = [symbols.one_line(name) for name in (node.given, node.symbol) if name is not None][:1]
        said = called or [f"{node.kind} {node.shape}"] if node.op is None else [*called, node.op.name]
        text, shape = " = ".join(said), "box" if node.op is None else "ellipse"
        text = text.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;")  # which Graphviz reads
        lines.append(f'  t{node.number} [label="{text}", shape={shape}];')
    for node in graph.nodes:
        lines += [f"  t{source.number} -> t{node.number};" for source in node.parents]
    return "\n".join([*lines, "}", ""])
