"""Where the time of a program goes: `with mt.profile() as p: …`, then `print(p)`. Off, it costs nothing."""

from microtensor.profiler.report import Row, profile

__all__ = ["Row", "profile"]
