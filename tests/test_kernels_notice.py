"""The line that says that kernels are being compiled."""

import io
import sys
from types import SimpleNamespace

import pytest

from microtensor.kernels import notice


@pytest.fixture
def clock(monkeypatch):
    """Compiles for so many seconds: clock("microtensor.kernels.rows", 0.4, a helper's name, its time …)"""
    now = [0.0]
    monkeypatch.setattr(notice.time, "perf_counter", lambda: now[0])
    listener = notice._Clock()

    def compiles(module, seconds, *helpers):
        happening = SimpleNamespace(
            data={"dispatcher": SimpleNamespace(py_func=SimpleNamespace(__module__=module))}
        )
        listener.on_start(happening)
        now[0] += seconds
        if helpers:
            compiles(*helpers)
        listener.on_end(happening)

    return compiles


OURS, OTHERS = "microtensor.kernels.rows", "somebody.else"


@pytest.mark.parametrize(
    ("compiled", "lines"),
    [
        ([(OURS, 0.5), (OURS, 0.4), (OURS, 9.0)], 0),  # the last one is over when the next would say so
        ([(OURS, 0.5), (OURS, 0.6), (OURS, 0.1), (OURS, 5.0), (OURS, 0.1)], 1),
        ([(OURS, 1.1, OURS, 0.1)], 1),
        ([(OTHERS, 5.0, OTHERS, 5.0), (OURS, 0.1)], 0),
    ],
)
def test_a_line_is_written_once_after_a_second_of_compiling(compiled, lines, clock, capsys):
    for arguments in compiled:
        clock(*arguments)
    assert capsys.readouterr().err == (notice.LINE + "\n") * lines


def test_a_closed_stderr_stops_no_compiling(clock, monkeypatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    clock(OURS, 2.0, OURS, 1.0)
