"""The tape as a picture: `draw(y)` or `draw(module, x)` → a `Drawing` with .dot and .save("x.svg").

Rooms, in the order of the work: running, record (what layers say), trace (tape → plain graph), axes, depth,
fold, flow (gradients), repeat, names, findings, paint with frames, cells and columns (→ picture), layout, dot
(→ text), render (→ bytes), svg. Graphviz is imported when something is rendered.

Text stays above 6.5 pt on A4 (equations), A3 (ops, tape, up to four heads), a slide (LR of equations, ops).
With gradients, LR of equations takes A3, and of ops A2; where names are those of the code, too, any other of
equations takes A3, and the tape A2. Shapes in numbers take the next size. A whole encoder layer takes A3, a
decoder layer A2; at depth=1 both are read on A4.
"""

from microtensor.viz.drawing import Drawing, draw, to_dot
from microtensor.viz.heatmap import AttentionMaps, attention
from microtensor.viz.record import fold, is_recording, opens_fused, recording, tag
from microtensor.viz.tree import beam_tree

__all__ = ["AttentionMaps", "Drawing", "attention", "beam_tree", "draw", "fold", "is_recording"]
__all__ += ["opens_fused", "recording", "tag", "to_dot"]
