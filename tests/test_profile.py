"""`mt.profile`: counts, times without children, modules, the trace, and that everything is put back."""

from __future__ import annotations

import contextlib
import json
import threading
import weakref

import numpy as np
import pytest

import microtensor as mt
from microtensor import nn, ops, optim
from microtensor.mode import mode
from microtensor.profiler import recorder, report
from models import Transformer, TransformerConfig

CALL, STEP = nn.Module.__call__, optim.Optimizer.step


@pytest.fixture(autouse=True)
def _all_is_put_back():
    before = (mode.run, mode.quiet, mode.vjp, mode.watch)
    yield
    assert (mode.run, mode.quiet, mode.vjp, mode.watch) == before
    assert (nn.Module.__call__, optim.Optimizer.step) == (CALL, STEP)


class Clock:
    """Nanoseconds that pass when a test says so."""

    def __init__(self):
        self.now = 10**9

    def __call__(self):
        return self.now

    def spend(self, ns):
        self.now += ns


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(recorder, "now", made)
    monkeypatch.setattr(report, "now", made)
    return made


def leaf(*shape):
    return mt.ones(*shape, requires_grad=True)


def small_transformer():
    mt.manual_seed(0)
    config = TransformerConfig(20, 20, d_model=8, n_heads=2, d_ff=16, n_encoder_layers=2, n_decoder_layers=1)
    return Transformer(config)


def step_of(model, optimizer):
    src, tgt = mt.randint(3, 20, (2, 6)), mt.randint(3, 20, (2, 5))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(src, tgt[:, :-1]).flatten(0, 1), tgt[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    return loss


def by_name(p, by="op"):
    return {row.name: row for row in p.rows(by)}


# --- what is counted ----------------------------------------------------------------------------------------


def test_calls_flop_and_kept_bytes_are_those_of_the_tape():
    model, x = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)), mt.ones(4, 3)
    with mt.profile() as p:
        y = (model(x) * 2.0).sum()
        tape = mt.tape(y)
        y.backward()
    rows = by_name(p)
    for name in {e.op for e in tape.entries}:
        mine = [e for e in tape.entries if e.op == name]
        assert rows[name].calls == rows[name].backward_calls == len(mine)
        assert rows[name].flop == sum(e.flop for e in mine)
        assert rows[name].kept == sum(e.kept for e in mine)
    assert sum(row.flop for row in p.rows()) == tape.flop > 0
    assert sum(row.kept for row in p.rows()) == tape.bytes_kept > 0


def test_a_product_takes_one_product_for_each_gradient():
    x, w = mt.ones(4, 3), leaf(3, 5)
    with mt.profile() as p:
        (x @ w).sum().backward()
    with mt.profile() as both:
        (leaf(4, 3) @ w).sum().backward()
    product = 2 * 4 * 3 * 5
    assert [by_name(q)["matmul"].flop for q in (p, both)] == [product, product]
    assert [by_name(q)["matmul"].backward_flop for q in (p, both)] == [product, 2 * product]


def test_bytes_made_are_those_of_results_and_residuals_but_not_of_views():
    x = leaf(4, 6)
    with mt.profile() as p:
        y = x.reshape(6, 4).transpose(0, 1)
        z = y.exp()
        nn.functional.layer_norm(z, (6,))
    result, residuals = ops.layer_norm.forward(z.array, np.ones(6, "f"), np.zeros(6, "f"), eps=1e-5)
    rows = by_name(p)
    assert rows["reshape"].made == rows["permute"].made == 0
    assert rows["exp"].made == 4 * 6 * 4
    assert rows["layer_norm"].made == result.nbytes + sum(r.nbytes for r in residuals) > 4 * 6 * 4


def test_a_residual_may_be_a_plain_number():
    with mt.profile() as p:
        nn.functional.cross_entropy(
            leaf(2, 3), mt.tensor([0, 1]), reduction="none"
        )  # its share of the sum is 1.0
    assert by_name(p)["cross_entropy"].calls == 1


def test_nothing_is_kept_where_nothing_is_recorded():
    with mt.profile() as p, mt.no_grad():
        leaf(3).exp()
    assert (by_name(p)["exp"].calls, by_name(p)["exp"].kept, by_name(p)["exp"].backward_calls) == (1, 0, 0)


def test_a_tape_made_before_is_profiled_backward():
    y = leaf(3).exp().sum()
    with mt.profile() as p:
        y.backward()
    row = by_name(p)["exp"]
    assert (row.calls, row.backward_calls, row.backward_flop, row.kept) == (0, 1, 3, 12)
    assert p.rows("module") == []


def test_what_is_kept_counts_once_however_often_it_is_walked():
    with mt.profile() as p:
        y = leaf(3).exp().sum()
        y.backward(retain_graph=True)
        y.backward()
    assert (by_name(p)["exp"].backward_calls, by_name(p)["exp"].kept) == (2, 12)


# --- times --------------------------------------------------------------------------------------------------


def test_times_are_without_what_lies_inside(clock, declare):
    @declare("inner")
    def inner(x):
        clock.spend(5)
        return x * 1.0

    @inner.vjp
    def inner_vjp(g):
        clock.spend(11)
        return (g,)

    @declare("outer")
    def outer(x):
        clock.spend(2)
        inner(mt.tensor(x))  # a forward that runs an op on tensors
        clock.spend(1)
        return x * 1.0

    @outer.vjp
    def outer_vjp(g):
        clock.spend(20)
        return (inner(g),)

    x = leaf(3)
    with mt.profile() as p:
        y = outer(inner(x)).sum()
        clock.spend(100)
        (g,) = mt.autograd.grad(y, x, create_graph=True)  # its VJPs run ops on tensors
    rows = by_name(p)
    assert [round(1e9 * t) for t in (rows["inner"].forward, rows["outer"].forward)] == [3 * 5, 3]
    assert [round(1e9 * t) for t in (rows["inner"].backward, rows["outer"].backward)] == [11, 20]
    assert rows["inner"].calls == 3
    assert round(1e9 * p.seconds) == 15 + 3 + 11 + 20 + 100
    assert g.tolist() == [1, 1, 1]


def test_a_gradient_that_a_vjp_puts_off_is_its_own_time_and_not_another_call(clock, declare):
    @declare("late")
    def late(a, b):
        return a * b

    @late.vjp
    def late_vjp(g, a, b):
        def gradient(factor, ns):
            clock.spend(ns)
            return g * factor

        clock.spend(1)
        return lambda: gradient(b, 10), lambda: gradient(a, 100)

    x = leaf(3)
    with mt.profile() as p:
        late(x, mt.ones(3)).sum().backward()
    row = by_name(p)["late"]
    assert (row.backward_calls, round(1e9 * row.backward)) == (1, 11)  # b needs none
    assert x.grad.tolist() == [1, 1, 1]


def test_the_optimiser_and_what_is_left_over_are_told_apart(clock):
    class Descent(optim.Optimizer):
        def _update(self, p, g, state, group):
            clock.spend(30_000_000)
            p -= g

    w = leaf(2)
    optimizer = Descent([w], {})
    with mt.profile() as p:
        w.sum().backward()
        optimizer.step()
        clock.spend(70_000_000)
    assert "30 ms  30.0 %  Descent.step" in repr(p)
    assert "70 ms  70.0 %  Python between the ops" in repr(p)


def test_all_times_together_are_the_time_of_the_block():
    model = small_transformer()
    optimizer = optim.Adam(model.parameters())
    with mt.profile() as p:
        step_of(model, optimizer)
    steps = sum(s.own for s in p._spans if s.kind == "step") / 1e9
    assert 0 < sum(row.seconds for row in p.rows()) + steps + p._own / 1e9 <= p.seconds


# --- modules ------------------------------------------------------------------------------------------------


def test_a_module_has_what_it_calls_and_its_backward():
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Tanh(), nn.Linear(3, 2)))
    with mt.profile() as p:
        (model(mt.ones(1, 3)) * 3.0).sum().backward()
    rows = by_name(p, "module")
    assert set(rows) == {"Sequential", "0", "1", "1.0", "1.1"}
    assert {name: row.calls for name, row in rows.items()} == dict.fromkeys(rows, 1)
    assert rows["Sequential"].flop == rows["0"].flop + rows["1"].flop
    assert rows["1"].backward == pytest.approx(rows["1.0"].backward + rows["1.1"].backward)
    assert rows["1"].backward > 0
    assert rows["Sequential"].seconds < sum(row.seconds for row in p.rows())  # mul and sum are outside


def test_an_op_of_a_module_that_calls_itself_counts_once():
    class Twice(nn.Module):
        def forward(self, x, depth=1):
            return self(x, depth - 1).exp() if depth else x.exp()

    with mt.profile() as p:
        Twice()(leaf(2)).sum().backward()
    row = by_name(p, "module")["Twice"]
    assert (row.calls, row.flop) == (2, 4)
    assert row.seconds <= by_name(p)["exp"].seconds * (1 + 1e-9)


def test_paths_are_those_below_the_first_module_or_below_the_one_given():
    def names(module, *called):
        with mt.profile(module) as p:
            for part in called:
                part(mt.ones(1, 3))
        return sorted(by_name(p, "module"))

    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    assert names(None, net, net[1]) == ["0", "1", "Sequential"]
    assert names(None, net[1], net) == ["Linear", "Sequential", "Sequential.0"]
    assert names(net, net[1]) == ["1"]
    assert names(None, nn.Linear(3, 2), nn.Linear(3, 2)) == ["Linear", "Linear 2"]


def test_a_module_that_is_no_attribute_is_called_by_its_class():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = (nn.Linear(3, 3), nn.Linear(3, 3))  # a tuple registers nothing

        def forward(self, x):
            return self.parts[1](self.parts[0](x))

    with mt.profile() as p:
        Hidden()(mt.ones(1, 3))
    assert sorted(by_name(p, "module")) == ["Hidden", "Hidden.Linear", "Hidden.Linear 2"]


# --- a whole step, and its trace ----------------------------------------------------------------------------


def nested(events):
    """(event, the events around it, outermost first); fails where two overlap and neither holds the other."""
    around = []
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        while around and event["ts"] >= around[-1]["ts"] + around[-1]["dur"] - 1e-6:
            around.pop()
        for outer in around:
            assert event["ts"] + event["dur"] <= outer["ts"] + outer["dur"] + 1e-6, (event, outer)
        yield event, list(around)
        around.append(event)


def test_the_trace_of_a_training_step_is_json_in_which_ops_lie_in_their_modules(tmp_path):
    model = small_transformer()
    optimizer = optim.Adam(model.parameters())
    with mt.profile() as p:
        step_of(model, optimizer)
    p.save(tmp_path / "trace.json")
    p.save(tmp_path / "trace.json")
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json"]
    trace = json.loads((tmp_path / "trace.json").read_text())
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert {"name", "cat", "ts", "dur", "pid", "tid", "args"} <= set.intersection(*map(set, events))
    assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in events)
    assert max(e["ts"] + e["dur"] for e in events) <= p.seconds * 1e6
    counts = {"op": 0, "op, backward": 0}
    for event, around in nested(events):
        if event["cat"] in counts:
            counts[event["cat"]] += 1
            modules = [e["name"].removesuffix(" backward") for e in around if e["cat"].startswith("module")]
            assert (modules or [""])[-1] == event["args"]["module"]
            assert all(e["cat"].endswith("backward") == event["cat"].endswith("backward") for e in around)
    assert counts["op"] == sum(row.calls for row in p.rows())
    assert counts["op, backward"] >= sum(row.backward_calls for row in p.rows())
    names = {e["name"] for e in events}
    assert {"Transformer", "encoder.layers.1.self_attention", "Adam.step", "linear"} <= names
    assert {"Transformer backward", "encoder.layers.1.self_attention backward", "linear backward"} <= names
    product = next(e for e in events if e["name"] == "linear")
    assert len(product["args"]["inputs"]) == 3
    assert product["args"]["output"][-1] == product["args"]["inputs"][1][0]


def test_two_backwards_are_two_spans_of_their_module():
    layer = nn.Linear(3, 2)
    with mt.profile() as p:
        y = layer(mt.ones(1, 3)).sum()
        y.backward(retain_graph=True)
        y.backward()
    groups = list(report._backward_of_modules(p._spans))
    assert [g["name"] for g in groups] == ["Linear backward", "Linear backward"]


def test_second_derivatives_in_a_module_nest_as_well(tmp_path):
    layer, x = nn.Linear(3, 3), leaf(2, 3)
    with mt.profile() as p:
        (g,) = mt.autograd.grad(layer(x).tanh().softmax(-1)[0, 0], x, create_graph=True)
        (g * g).sum().backward()
    p.save(tmp_path / "t.json")
    events = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert len(list(nested(events))) == len(events)
    assert layer.weight.grad.norm().item() > 0


def test_numbers_are_the_same_bits_and_the_tape_is_freed_as_ever():
    def trained(block):
        model = small_transformer()
        optimizer = optim.Adam(model.parameters(), lr=0.01)
        with block:
            loss = step_of(model, optimizer)
            loss = step_of(model, optimizer)
            entry = weakref.ref(loss.grad_fn)
            value = loss.item()
            del loss
            assert entry() is None
        return value, [p.array.tobytes() for p in model.parameters()]

    assert trained(mt.profile()) == trained(contextlib.nullcontext())


# --- who listens --------------------------------------------------------------------------------------------


def test_all_is_put_back_after_errors_in_an_op_a_vjp_a_module_and_a_step(declare):
    @declare("faulty")
    def faulty(x):
        return x * 1.0

    @faulty.vjp
    def faulty_vjp(g):
        raise ArithmeticError

    class Broken(nn.Module):
        def forward(self, x):
            raise KeyError(x.exp())

    w = leaf(3)
    w.grad = mt.ones(3)
    faults = [
        (ValueError, lambda: mt.ones(2) + mt.ones(3)),
        (ArithmeticError, lambda: faulty(leaf(3)).sum().backward()),
        (KeyError, lambda: Broken()(leaf(1))),
        (NotImplementedError, lambda: optim.Optimizer([w], {}).step()),
    ]
    for error, fault in faults:
        with pytest.raises(error), mt.profile() as p:
            fault()
        assert (mode.run, mode.vjp, nn.Module.__call__) == (mode.quiet, None, CALL)
        assert p.seconds > 0
        assert all(span.end >= span.start for span in p._spans)
    with mt.profile() as p:  # within the block, too: what follows an error is seen
        with pytest.raises(KeyError):
            Broken()(leaf(1))
        leaf(2).exp()
    assert (by_name(p)["exp"].calls, by_name(p, "module")["Broken"].flop) == (2, 1)


def test_a_block_in_a_block_hears_its_own_part_and_any_may_end_first():
    outer, inner = mt.profile(), mt.profile()
    x = leaf(2)
    outer.__enter__()
    x.exp()
    inner.__enter__()
    x.sqrt()
    outer.__exit__(None, None, None)
    x.exp()
    inner.__exit__(None, None, None)
    x.exp()
    assert {row.name: row.calls for row in outer.rows()} == {"exp": 1, "sqrt": 1}
    assert {row.name: row.calls for row in inner.rows()} == {"exp": 1, "sqrt": 1}


def test_a_block_within_a_module_hears_the_rest_of_it():
    class Watched(nn.Module):
        def forward(self, x):
            with mt.profile() as self.p:
                return x.exp()

    watched = Watched()
    with mt.profile() as p:
        watched(leaf(2)).sqrt()
    assert [row.name for row in watched.p.rows()] == ["exp"]
    assert sorted(by_name(p)) == ["exp", "sqrt"]


def test_a_block_in_a_generator_lasts_until_the_generator_ends():
    def steps():
        with mt.profile() as p:
            yield p
            yield leaf(2).exp()

    generator = steps()
    p = next(generator)
    next(generator)
    with mt.profile() as later:
        leaf(2).sqrt()
        generator.close()
        leaf(2).sqrt()
    assert {row.name: row.calls for row in p.rows()} == {"exp": 1, "sqrt": 1}
    assert {row.name: row.calls for row in later.rows()} == {"sqrt": 2}


def in_thread(function):
    """Run it in a thread and pass on what it returns or raises."""
    results = []

    def run():
        try:
            results.append((function(), None))
        except BaseException as error:
            results.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    value, error = results[0]
    if error is not None:
        raise error
    return value


def test_threads_hear_only_themselves():
    barrier = threading.Barrier(2, timeout=60)
    profiles = {}

    def work(name, function):
        net = nn.Sequential(nn.Linear(3, 3))
        with mt.profile() as profiles[name]:
            barrier.wait()
            for _ in range(20):
                function(net(mt.ones(1, 3))).sum().backward()
            barrier.wait()

    threads = [threading.Thread(target=work, args=(f.__name__, f)) for f in (mt.exp, mt.tanh)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(profiles) == 2
    for name, p in profiles.items():
        assert {row.name: row.calls for row in p.rows()} == {name: 20, "linear": 20, "sum": 20}
        assert {row.name: row.calls for row in p.rows("module")} == {"Sequential": 20, "0": 20}
    assert len({p._recorder.thread for p in profiles.values()}) == 2


def test_a_thread_without_a_profile_is_not_heard_and_goes_on():
    with mt.profile() as p:
        value = in_thread(lambda: nn.Linear(3, 2)(mt.ones(1, 3)).sum().item())
        leaf(1).exp()
    assert isinstance(value, float)
    assert [row.name for row in p.rows()] == ["exp"]


def test_a_block_that_ends_in_another_thread_leaves_this_one_as_it_was():
    p = mt.profile()
    p.__enter__()
    leaf(2).exp()
    in_thread(lambda: p.__exit__(None, None, None))
    y = leaf(2).exp()
    assert mode.run is mode.quiet
    y.sum().backward()
    assert mode.vjp is None
    assert by_name(p)["exp"].calls == 1
    p = mt.profile()
    p.__enter__()
    y = leaf(2).exp().sum()
    in_thread(lambda: p.__exit__(None, None, None))
    y.backward()
    assert (by_name(p)["exp"].calls, by_name(p)["exp"].backward_calls) == (1, 0)
    p = mt.profile()
    p.__enter__()
    in_thread(lambda: p.__exit__(None, None, None))
    with mt.profile() as later:  # before anything else has run here
        leaf(2).exp()
    assert by_name(later)["exp"].calls == 1


def test_a_method_replaced_meanwhile_stays_replaced():
    heard = []
    try:
        with mt.profile():
            ours = nn.Module.__call__

            def theirs(self, *args):
                heard.append(type(self).__name__)
                return ours(self, *args)

            nn.Module.__call__ = theirs
        with mt.profile() as p:
            nn.Linear(2, 2)(mt.ones(1, 2))
        assert nn.Module.__call__ is theirs
    finally:
        nn.Module.__call__ = CALL
    assert (heard, [row.calls for row in p.rows("module")]) == (["Linear"], [1])


@pytest.mark.parametrize("inside", [True, False])
def test_anomaly_detection_and_profiling_do_not_disturb_each_other(inside):
    anomaly = mt.autograd.detect_anomaly()
    first, second = (mt.profile(), anomaly) if inside else (anomaly, mt.profile())
    with first, second:
        leaf(2).exp().sum().backward()
        below = leaf(2) * -1.0
        with pytest.raises(RuntimeError, match="detect_anomaly: log made"):
            below.log()
    p = first if inside else second
    rows = by_name(p)
    assert (rows["exp"].calls, rows["exp"].backward_calls, rows["log"].calls) == (1, 1, 1)


def test_numpy_stays_quiet_in_ops_alone():
    with mt.profile():
        assert mt.zeros(1).log().item() == -np.inf
        with pytest.warns(RuntimeWarning):
            np.log(np.zeros(1))


# --- asking wrongly -----------------------------------------------------------------------------------------


def test_what_is_wrong_is_said():
    p = mt.profile()
    assert repr(p) == "<profile, not entered yet>"
    for ask in (p.rows, p.table, lambda: p.seconds, lambda: p.save("x")):
        with pytest.raises(RuntimeError, match=r"profile\.\w+: its block has not ended; ask after"):
            ask()
    with p:
        assert repr(p) == "<profile, running>"
        with pytest.raises(RuntimeError, match="has not ended"):
            p.table()
        with pytest.raises(RuntimeError, match="profile: it has been entered before; make another"):
            p.__enter__()
    with pytest.raises(RuntimeError, match="profile: it has been entered before"):
        p.__enter__()
    with pytest.raises(ValueError, match=r"profile.rows: by is 'line'; choose"):
        p.table(by="line")
    for limit in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match=f"profile.table: limit is {limit!r}; give an integer"):
            p.table(limit=limit)
    with pytest.raises(TypeError, match="profile: the module is int; give"):
        mt.profile(3)


def test_a_table_is_sorted_and_says_what_it_leaves_out(clock, declare):
    @declare("slow")
    def slow(x):
        clock.spend(3_000_000)
        return x

    @declare("fast")
    def fast(x):
        clock.spend(1_000_000)
        return x

    with mt.profile() as p:
        fast(slow(mt.ones(2)))
    lines = p.table().splitlines()
    assert [line.split()[0] for line in lines] == ["op", "slow", "fast"]
    assert "75.0 %" in lines[1]
    assert p.table(limit=1).splitlines()[-1] == "… and 1 more, 1 ms"
    with mt.profile() as nothing:
        clock.spend(1)
    assert nothing.table().splitlines()[1:] == []
