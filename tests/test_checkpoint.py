"""Files: what is saved comes back, nothing else is accepted, and a write that breaks off harms nothing."""

import dataclasses
import io
import itertools
import json
import math
import os
import pickle
import struct
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import microtensor as mt
from microtensor import nn, optim
from microtensor.data import DataLoader
from microtensor.train import files, load, load_checkpoint, packing, save, save_checkpoint, serialize


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.safetensors"


def same(a, b):
    """Equal in type, dtype and bits, all the way down."""
    if isinstance(a, mt.Tensor | np.ndarray):
        x, y = (v.array if isinstance(v, mt.Tensor) else v for v in (a, b))
        return type(a) is type(b) and x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


# --- save and load ------------------------------------------------------------------------------------------

plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
arrays = st.sampled_from(
    [
        np.arange(6.0).reshape(2, 3).T,
        np.full((), 1.5, np.float32),
        np.zeros((0, 3)),
        np.arange(9)[::-2],
        np.eye(2) > 0,
    ]
)
leaves = plain | arrays | arrays.map(mt.tensor)
trees = st.recursive(
    leaves,
    lambda t: (
        st.lists(t, max_size=3) | st.tuples(t, t) | st.dictionaries(st.text() | st.integers(), t, max_size=3)
    ),
    max_leaves=10,
)


@given(tree=trees)
def test_what_is_saved_comes_back(tree, tmp_path_factory):
    path = tmp_path_factory.mktemp("tree") / "a.safetensors"
    save(tree, path)
    assert same(load(path), tree)


def test_keys_that_look_like_our_own_marks_come_back(path):
    tree = {
        "$tensor": "x",
        "a.b": mt.ones(1),
        "a": {"b": mt.zeros(1), "$dict": [[1, 2]]},
        "__metadata__": mt.ones(2),
    }
    save(tree, path)
    assert same(load(path), tree)


def test_any_safetensors_reader_finds_a_state_dict_under_its_names(path):
    model = nn.Linear(3, 2)
    save(model.state_dict(), path)
    found = load_file(path)
    assert set(found) == {"weight", "bias"}
    assert np.array_equal(found["weight"], model.weight.detach().numpy())


every = [np.dtype(n) for n in ("?", "b", "B", "h", "H", "i", "I", "q", "Q", "e", "f", "d")]


@given(
    tree=st.dictionaries(
        st.text(), st.tuples(st.sampled_from(every), st.lists(st.integers(0, 3), max_size=3))
    )
)
def test_the_library_reads_what_we_write_and_would_write_as_much(tree, tmp_path_factory):
    path = tmp_path_factory.mktemp("library") / "a.safetensors"
    made = {k: np.arange(math.prod(shape)).reshape(shape).astype(d) for k, (d, shape) in tree.items()}
    save(list(made.values()), path)  # names that the library takes: "0", "1", …
    found = load_file(path)
    packer = packing.Packer()
    packer.pack(list(made.values()), "")
    assert same(dict(sorted(found.items())), dict(sorted(packer.arrays.items())))
    length = int.from_bytes(path.read_bytes()[:8], "little")
    assert length % 8 == 0
    assert path.stat().st_size == 8 + length + sum(a.nbytes for a in packer.arrays.values())


def test_saving_takes_no_second_copy_of_the_tensors(path):
    arrays = [np.ones(250_000) for _ in range(8)]  # 2 MB each
    tracemalloc.start()
    try:
        save(arrays, path)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_foreign_safetensors_file_is_a_dict_of_tensors(path):
    save_file({"w": np.ones((2, 2), np.float16), "i": np.arange(3)}, path)
    found = load(path)
    assert found["w"].dtype == mt.float32
    assert found["i"].tolist() == [0, 1, 2]


def test_a_tied_tensor_is_stored_once_and_comes_back_tied(path):
    w = mt.randn(100, 100)
    save({"a": w, "b": {"c": w.detach()}}, path)
    assert os.path.getsize(path) < 1.1 * w.numel() * 4
    found = load(path)
    assert found["a"] is found["b"]["c"]


def test_what_was_loaded_can_be_changed(path):
    save({"w": mt.zeros(3), "a": np.zeros(3)}, path)
    found = load(path)
    found["w"].add_(1.0)
    found["a"] += 1
    assert found["w"].tolist() == found["a"].tolist() == [1, 1, 1]


def test_numpy_scalars_become_python_numbers(path):
    save({"a": np.float32(0.5), "b": np.int64(3), "c": np.bool_(True)}, path)
    assert same(load(path), {"a": 0.5, "b": 3, "c": True})


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        ({"a": [1, {"f": print}]}, r"a\.1\.f is builtin"),
        (object(), "the object is object"),
        ({"a": {(1, 2): 3}}, r"a has the key \(1, 2\)"),
        ({"a": np.array(["x"])}, "a is of <U1"),
        ({"a": {1, 2}}, "a is set"),
    ],
)
def test_what_cannot_be_stored_is_named_and_no_file_is_made(tree, text, path):
    with pytest.raises(TypeError, match=rf"save: {text}.*;"):
        save(tree, path)
    assert not list(path.parent.iterdir())


def nested(depth, make=lambda x: [x]):
    value = 0
    for _ in range(depth):
        value = make(value)
    return value


def cyclic(make, put):
    inner = make()
    put(inner, {"x": [inner]})
    return {"a": inner}


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        ({"a": [1, 10**4300]}, r"a\.1 is an integer that has 14285 bits"),
        ({"a": {-(10**5000): 1}}, "a has a key that has 16610 bits"),
        ({"a": ["\ud800"]}, r"a\.0 is a string that is no Unicode text: '\\ud800'"),
        ({"a": {"\udfff": 1}}, "a has a key that is no Unicode text"),
        (nested(5000), r"0\.0\..*… is nested 100 deep"),
        (nested(5000, lambda x: {"k": x}), r"k\.k\..*… is nested 100 deep"),
        (cyclic(list, list.append), r"a\.0\.x\.0 contains itself"),
        (cyclic(dict, lambda d, x: d.update(y=x)), r"a\.y\.x\.0 contains itself"),
    ],
)
def test_a_value_that_cannot_be_written_is_named_and_no_file_is_made(tree, text, path):
    with pytest.raises(ValueError, match=rf"save: {text}.*;"):
        save(tree, path)
    assert not list(path.parent.iterdir())


def test_the_largest_values_that_are_taken_come_back(path):
    shared = [1]
    tree = {
        "n": [2**14284 - 1, -(10**4299)],
        "deep": nested(98),
        "tuple": nested(98, lambda x: (x,)),
        "s": "\U0010ffff",
    }
    save({**tree, "twice": [shared, shared]}, path)
    assert same(load(path), {**tree, "twice": [[1], [1]]})


def test_an_empty_path_or_a_folder_is_said(tmp_path):
    with pytest.raises(ValueError, match="save: the path is empty; give"):
        save(1, "")
    with pytest.raises(IsADirectoryError, match="is a folder; give"):
        save(1, tmp_path)
    assert not list(tmp_path.iterdir())
    save(1, os.fsencode(tmp_path / "a"))
    assert load(tmp_path / "a") == 1


def test_load_takes_pytorchs_switches_where_they_mean_nothing(path):
    mt.save({"a": 1}, path)
    for options in ({"map_location": "cpu"}, {"map_location": mt.device("cpu")}, {"weights_only": True}, {}):
        assert mt.load(path, **options) == {"a": 1}
    assert mt.load(path, None, weights_only=False) == {"a": 1}
    with pytest.raises(RuntimeError, match="load: there is no device 'cuda' here; "):
        mt.load(path, map_location="cuda")
    with pytest.raises(TypeError, match="load: weights_only is 'yes'; give bool"):
        mt.load(path, weights_only="yes")


def test_a_missing_folder_or_file_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        save({}, tmp_path / "missing" / "a.safetensors")
    with pytest.raises(FileNotFoundError, match="no file"):
        load(tmp_path / "a.safetensors")


# --- dtypes that NumPy has not ------------------------------------------------------------------------------


def write_raw(path, tensors, metadata=None):
    """A safetensors file of {name: (dtype, shape, bytes)}."""
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_bfloat16_is_read_as_the_same_numbers_in_float32(path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    values = torch.randn(3, 5).bfloat16()
    values[0] = torch.tensor([math.inf, -math.inf, 0.0, -0.0, 1e-40])
    save_torch({"w": values, "other": torch.ones(2), "empty": values[:0], "one": values[1, 0].clone()}, path)
    found = load(path)
    assert found["w"].dtype == mt.float32
    for name in ("w", "empty", "one"):
        want = {"w": values, "empty": values[:0], "one": values[1, 0]}[name].float().numpy()
        assert found[name].array.tobytes() == want.tobytes()
        assert found[name].shape == want.shape


@pytest.mark.parametrize(("dtype", "size"), [("F8_E4M3", 1), ("F8_E5M2", 1), ("F8_E8M0", 1), ("C64", 8)])
def test_a_dtype_that_cannot_be_read_is_named(dtype, size, path):
    write_raw(path, {"a": ("F32", [1], bytes(4)), "w": (dtype, [2], bytes(2 * size))})
    with pytest.raises(ValueError, match=rf"tensor 'w' of .* is {dtype}, .*; convert it to float32"):
        load(path)


# --- damage -------------------------------------------------------------------------------------------------


@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_an_altered_file_is_refused(where, bit, tmp_path_factory):
    path = tmp_path_factory.mktemp("altered") / "a.safetensors"
    save({"w": mt.arange(8), "n": [1, "é"], "x": 0.5}, path)
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] ^= 1 << bit
    path.write_bytes(data)
    try:
        found = load(path)
    except ValueError:
        return
    # the bit may turn \u00e9 in the JSON into \u00E9, which is the same
    assert (found["w"].tolist(), found["n"], found["x"]) == (list(range(8)), [1, "é"], 0.5)


def test_no_bit_of_our_own_mark_turns_our_file_into_a_foreign_one(path):
    save({"w": mt.ones(2), "n": 1}, path)
    data = path.read_bytes()
    begin = data.index(b"microtensor")
    for at, bit in itertools.product(range(begin, begin + len("microtensor")), range(8)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
        with pytest.raises(ValueError, match=r"load: .*(damaged|altered)"):
            load(path)


def test_a_flipped_bit_of_the_header_is_damage_and_never_another_version(path):
    save({"w": mt.ones(2), "h": mt.zeros(2, dtype=mt.float64), "n": 1}, path)
    data = path.read_bytes()
    for at, bit in itertools.product(range(8 + int.from_bytes(data[:8], "little")), range(8)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
        try:
            found = load(path)  # what is blank for JSON may be another blank
        except serialize.DamagedFileError:
            continue
        assert (found["w"].tolist(), found["h"].tolist(), found["n"]) == ([1, 1], [0, 0], 1)


@given(part=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_refused(part, tmp_path_factory):
    path = tmp_path_factory.mktemp("truncated") / "a.safetensors"
    save({"w": mt.arange(8)}, path)
    data = path.read_bytes()
    path.write_bytes(data[: int(part * len(data))])
    with pytest.raises(ValueError, match="damaged"):
        load(path)


def test_a_pickle_is_not_opened(path):
    path.write_bytes(pickle.dumps({"w": 1}))
    with pytest.raises(ValueError, match="no safetensors file"):
        load(path)


def test_save_and_load_take_binary_file_objects_and_the_bytes_are_those_of_a_file(path):
    what = {"weights": [mt.tensor([1.5, -2.0]), mt.arange(3)], "epoch": 3}
    buffer = io.BytesIO()
    save(what, buffer)
    save(what, path)
    assert buffer.getvalue() == path.read_bytes()
    buffer.seek(0)
    assert str(load(buffer)) == str(load(path)) == str(what)
    with open(path, "rb") as file:
        assert str(load(file, "cpu", weights_only=True)) == str(what)
    with pytest.raises(ValueError, match=r"load: '.*copy of the file object' is damaged"):
        load(io.BytesIO(buffer.getvalue()[:-1]))


def test_a_file_of_a_later_format_is_refused(path):
    save({"a": 1}, path)
    data = path.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + n])
    ours = {"version": 2, "sha256": serialize._digest("later", {}, 2), "structure": "later"}
    header["__metadata__"]["microtensor"] = json.dumps(ours)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + n :])
    with pytest.raises(ValueError, match="format version 2, this program reads 1"):
        load(path)


def forge(path, structure, tensors=None):
    """A file with a valid checksum that save() would not have written."""
    arrays = tensors or {}
    text = structure if isinstance(structure, str) else json.dumps(structure)
    ours = {"version": 1, "sha256": serialize._digest(text, arrays), "structure": text}
    save_file(arrays, path, {"microtensor": json.dumps(ours)})


@pytest.mark.parametrize(
    "structure",
    [
        {"$tensor": "missing"},
        {"$array": ["w"]},
        {"$tuple": 3},
        {"$dict": [[1, 2, 3]]},
        {"$dict": [[[], 2]]},
        {"$float": []},
        {"$float": 10**400},
        {"$other": 1},
        "{",
        "[" * 100_000,
        '{"a":' * 3000 + "1" + "}" * 3000,
        "1" * 5000,
    ],
    ids=lambda s: str(s)[:20],
)
def test_a_forged_structure_is_refused(structure, path):
    forge(path, structure, {"w": np.ones(2)})
    with pytest.raises(ValueError, match=r"the structure of .* was not written by save"):
        load(path)


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "3", "null", '{"version": 1, "structure": "\\ud800"}'])
def test_forged_metadata_is_refused(text, path):
    save_file({}, path, {"microtensor": text})
    with pytest.raises(ValueError, match="load: "):
        load(path)


def test_a_write_that_breaks_off_leaves_the_old_file(path, monkeypatch):
    save({"a": 1}, path)

    def half(descriptor, pieces):
        with open(descriptor, "wb") as file:
            file.write(next(iter(pieces)))
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "_fill", half)
    with pytest.raises(KeyboardInterrupt):
        save({"a": 2}, path)
    assert load(path) == {"a": 1}
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_new_file_is_on_the_disk_before_it_takes_the_name(path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, _real=real, _name=name: (calls.append(_name), _real(*a)))
    save({"a": 1}, path)
    assert calls == ["fsync", "replace", "fsync"]


KILLED = """
import os, signal, sys
sys.path.insert(0, {root!r})
from microtensor.train import files, serialize

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def half(descriptor, pieces):
    os.write(descriptor, b"half")
    die()

def after(real):
    return lambda *a: (real(*a), die())

moments = [(files, "_fill", half), (os, "fsync", die), (os, "replace", die),
           (os, "replace", after(os.replace)), (os, "fsync", after(os.fsync))]
for i, (module, name, replacement) in enumerate(moments):
    path = os.path.join(sys.argv[1], f"{{i}}.safetensors")
    serialize.save({{"a": 1}}, path)
    if os.fork() == 0:
        setattr(module, name, replacement)
        serialize.save({{"a": 2}}, path)
        os._exit(0)
    _, status = os.wait()
    assert os.WTERMSIG(status) == signal.SIGKILL
    print(serialize.load(path)["a"], end=" ")
    serialize.save({{"a": 3}}, path)  # what the killed process left behind is not in the way
    assert serialize.load(path) == {{"a": 3}}
left = [name for name in os.listdir(sys.argv[1]) if not name.endswith(".safetensors")]
files.sweep(sys.argv[1])
print(len(left), len(os.listdir(sys.argv[1])))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the moments of a kill are made by forking")
def test_a_kill_at_each_moment_of_writing_leaves_the_old_or_the_new_file(tmp_path):
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    command = [sys.executable, "-W", "ignore", "-c", KILLED.format(root=root), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.split() == ["1", "1", "1", "2", "1", "4", "5"]  # sweep() leaves the files alone


# --- checkpoints --------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Config:
    width: int = 4
    rates: tuple = (0.1, 0.2)


def parts(width=4, kind=optim.AdamW, bias=True):
    model = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2, bias=bias))
    optimizer = kind(model.parameters(), lr=0.1)
    loader = DataLoader(range(10), 2, shuffle=True, generator=mt.Generator().manual_seed(0))
    return model, optimizer, optim.lr_scheduler.StepLR(optimizer, 3), loader


def train(model, optimizer, scheduler, loader):
    for batch in loader:
        x = mt.ones(len(batch), 3)
        optimizer.zero_grad()
        nn.functional.dropout(model(x), 0.5).sum().backward()
        optimizer.step()
        scheduler.step()
        break


def values(model):
    return {name: t.array.copy() for name, t in model.state_dict().items()}


def test_a_checkpoint_holds_everything_and_restores_it(path):
    model, optimizer, scheduler, loader = mine = parts()
    train(*mine)
    noise, old = mt.Generator().manual_seed(1), np.random.default_rng(2)
    generators = {"noise": noise, "old": old}
    save_checkpoint(path, model, optimizer, scheduler=scheduler, loader=loader, step=1, generators=generators,
                    config=Config(), extra={"best": math.inf})  # fmt: skip
    want = values(model)
    draws = [mt.rand(3).tolist(), noise.numpy.random(), old.random()]
    found = load_checkpoint(path)
    assert (found.step, found.config, found.extra) == (
        1,
        {"width": 4, "rates": (0.1, 0.2)},
        {"best": math.inf},
    )
    other = parts()
    found.restore(*other[:2], scheduler=other[2], loader=other[3], generators=generators)
    assert same(values(other[0]), want)
    assert same(other[1].state_dict(), optimizer.state_dict())
    assert other[2].state_dict() == scheduler.state_dict()
    assert same(other[3].state_dict(), loader.state_dict())
    assert [mt.rand(3).tolist(), noise.numpy.random(), old.random()] == draws


def test_restoring_weights_alone_leaves_random_states(path):
    model = parts()[0]
    save_checkpoint(path, model)
    before = mt.get_rng_state().tolist()
    other = parts()[0]
    load_checkpoint(path).restore(other)
    assert same(values(other), values(model))
    assert mt.get_rng_state().tolist() != before  # parts() drew from it, restore() did not go back


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"width": 5}, r"0\.weight is float32\(4, 3\), not float32\(5, 3\)"),
        ({"bias": False}, r"2\.bias is unexpected"),
        ({"kind": optim.Adam}, "its optimizer is AdamW, not Adam"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_changes(options, text, path):
    model, optimizer, scheduler, loader = mine = parts()
    train(*mine)
    save_checkpoint(path, model, optimizer, scheduler=scheduler, loader=loader, config={"width": 4})
    other = parts(**options)
    before = values(other[0]), other[1].state_dict(), mt.get_rng_state().tolist()
    with pytest.raises(ValueError, match=text) as caught:
        load_checkpoint(path).restore(*other[:2], scheduler=other[2], loader=other[3], generators={})
    assert "{'width': 4}" in str(caught.value)
    assert same((values(other[0]), other[1].state_dict(), mt.get_rng_state().tolist()), before)


def test_another_dtype_loader_schedule_or_generator_does_not_fit(path):
    model, optimizer, scheduler, loader = parts()
    save_checkpoint(
        path, model, optimizer, scheduler=scheduler, loader=loader, generators={"a": mt.Generator()}
    )
    found = load_checkpoint(path)
    with pytest.raises(ValueError, match=r"float32.*not float64"):
        found.restore(parts()[0].double())
    with pytest.raises(ValueError, match="batch_size is 2, not 3"):
        found.restore(model, loader=DataLoader(range(10), 3, shuffle=True, generator=mt.Generator()))
    with pytest.raises(ValueError, match="its scheduler is StepLR, not NoamLR"):
        found.restore(model, scheduler=optim.lr_scheduler.NoamLR(optimizer, 4, 4))
    with pytest.raises(ValueError, match="no random state 'b'; its random state 'a' has no generator"):
        found.restore(model, generators={"b": mt.Generator()})
    with pytest.raises(ValueError, match="another kind"):
        found.restore(model, generators={"a": np.random.default_rng()})
    save_checkpoint(path, model)
    with pytest.raises(ValueError, match="it has no optimizer"):
        load_checkpoint(path).restore(model, optimizer)


def test_a_file_that_is_no_checkpoint_or_a_later_one_is_refused(path):
    save({"model": {}}, path)
    with pytest.raises(ValueError, match="no checkpoint"):
        load_checkpoint(path)
    save({"checkpoint": 2}, path)
    with pytest.raises(ValueError, match="version 2, this program reads 1"):
        load_checkpoint(path)


FORGERIES = {
    "step": ["x", True, None],
    "model": [[], {"a": 1}, None],
    "optimizer": [3, {}, {"class": "AdamW", "state": 3},
                  {"class": "AdamW", "state": {"state": 3, "param_groups": [3]}},
                  {"class": "AdamW", "state": {"state": {0: 3}, "param_groups": [{"params": [0]}]}}],
    "scheduler": [3, {"class": "StepLR", "state": 3}, {"class": "StepLR", "state": {"base_lrs": 3}}],
    "loader": [3, {}, {"seed": "x", "batch": 0, "generator": mt.zeros(3), "dataset": 10, "batch_size": 2,
                       "shuffle": True}],
    "random": [3, {}, {"default": 3}, {"default": mt.zeros(3)}, {"default": {"bit_generator": "PCG64"}}],
}  # fmt: skip


@pytest.mark.parametrize("entry", [*FORGERIES, "missing", "more"])
def test_a_forged_checkpoint_is_refused_and_changes_nothing(entry, path):
    model, optimizer, scheduler, loader = mine = parts()
    train(*mine)
    save_checkpoint(path, model, optimizer, scheduler=scheduler, loader=loader)
    content = load(path)
    before = values(model), optimizer.state_dict(), scheduler.state_dict(), loader.state_dict()
    with mt.no_grad():
        content["model"]["0.bias"].add_(1.0)  # were it restored, it would be seen
    for value in FORGERIES.get(entry, [None]):
        forged = {**content, entry: value}
        if entry == "missing":
            del forged["missing"], forged["extra"]
        save(forged, path)
        with pytest.raises(ValueError, match=r"load_checkpoint: .*;"):
            load_checkpoint(path).restore(model, optimizer, scheduler=scheduler, loader=loader, generators={})
        after = values(model), optimizer.state_dict(), scheduler.state_dict(), loader.state_dict()
        assert same(after, before)


def test_a_damaged_state_of_a_numpy_generator_is_refused(path):
    old = np.random.default_rng(2)
    save_checkpoint(path, parts()[0], generators={"old": old})
    content = load(path)
    content["random"]["old"]["state"] = 3
    save(content, path)
    with pytest.raises(ValueError, match="its random state 'old' is damaged"):
        load_checkpoint(path).restore(generators={"old": old})


def test_tied_weights_stay_tied(path):
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    save_checkpoint(path, model)
    want = values(model)
    with mt.no_grad():
        model[0].weight.fill_(0.0)
    load_checkpoint(path).restore(model)
    assert same(values(model), want)
    assert model[1].weight is model[0].weight


def test_the_same_object_gives_the_same_bytes(tmp_path):
    obj = {"b": mt.ones(2), "a": [mt.zeros(3), 1.5, "text"], "c": {"deep": mt.arange(4)}}
    files = {
        (mt.save(obj, tmp_path / f"{i}.safetensors"), (tmp_path / f"{i}.safetensors").read_bytes())[1]
        for i in range(4)
    }
    assert len(files) == 1
