"""Data sets, loader, tokenizer: what the batches are, that a seed fixes them, and that a loader resumes."""

import math
import os
import re
import sys
from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import microtensor as mt
from microtensor.data import (
    BatchSampler,
    CharTokenizer,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    blocks,
    default_collate,
    python_docs,
    random_split,
    read_text,
)


class Squares(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return {"x": index, "y": index * index}


def generator(seed=0):
    return mt.Generator().manual_seed(seed)


def numbers(n=10):
    return TensorDataset(mt.arange(n), mt.arange(n) * 10)


def test_a_loader_in_order_takes_no_memory_for_the_order():
    class Endless(Squares):
        def __len__(self):
            return 10**11

    assert next(iter(DataLoader(Endless(), 2)))["y"].tolist() == [0, 1]


# --- data sets ----------------------------------------------------------------------------------------------


def test_a_tensor_dataset_gives_tuples():
    x, y = numbers()[3]
    assert (x.item(), y.item()) == (3, 30)
    assert len(numbers()) == 10


@pytest.mark.parametrize(("every", "starts"), [(1, [0, 1, 2, 3]), (2, [0, 2]), (3, [0, 3]), (9, [0])])
def test_blocks_are_what_stands_there_and_the_next_of_each_without_copies(every, starts):
    ids = np.arange(10, 17)
    found = blocks(ids, 3, every)
    assert [x.tolist() for x, _ in found] == [[10 + i, 11 + i, 12 + i] for i in starts]
    assert all((y - x == 1).all() for x, y in found)
    assert all(np.shares_memory(tensor.array, ids) for tensor in found.tensors)


def test_blocks_of_a_text_that_has_none_are_refused():
    for length in (0, 3, 4):
        with pytest.raises(ValueError, match=f"^blocks: length is {length} of 3 ids; choose 1 <= length < 3"):
            blocks([1, 2, 3], length)


def test_random_split_is_disjoint_and_complete():
    for lengths in ([7, 3], [0.7, 0.3], [0.33, 0.33, 0.34]):
        parts = random_split(numbers(), lengths, generator())
        assert sorted(part[i][0].item() for part in parts for i in range(len(part))) == list(range(10))
    assert [len(part) for part in random_split(numbers(11), [0.5, 0.5])] == [6, 5]


def test_random_split_follows_its_generator():
    first, second, other = (
        random_split(range(20), [10, 10], generator(seed))[0].indices for seed in (1, 1, 2)
    )
    assert first == second != other


@pytest.mark.parametrize("lengths", [[5, 4], [0.5, 0.4], [-1, 11], [5.5, 4.5]])
def test_random_split_refuses_lengths_that_do_not_add_up(lengths):
    with pytest.raises(ValueError, match="random_split"):
        random_split(numbers(), lengths)


@pytest.mark.parametrize("wrong", ["a", None, [1], 1j, "2"])
def test_random_split_refuses_lengths_that_are_no_numbers(wrong):
    with pytest.raises(TypeError, match=rf"^random_split: {re.escape(repr(wrong))} is no number; "):
        random_split(numbers(), [5, wrong])


DATA = {
    "tensors": numbers,
    "list": lambda: [*range(10)],
    "own": Squares,
    "subset": lambda: Subset(numbers(20), range(10)),
}
NO_INDEX = ["a", None, 1.5, True, np.bool_(True), [0], mt.tensor([1.0]), 10, -11, 2**70, np.int64(10)]


@pytest.mark.parametrize("wrong", NO_INDEX, ids=repr)
@pytest.mark.parametrize("name", DATA)
def test_an_index_that_a_data_set_has_not_is_told_by_who_was_asked_and_who_gave_it(name, wrong):
    data, kind = DATA[name](), TypeError if type(wrong) not in (int, np.int64) else IndexError
    value = re.escape(f"{wrong!r} as an index of 10 samples; give integers from -10 to 9")
    with pytest.raises(kind, match=f"^Subset: asked for {value}"):
        Subset(data, range(10))[wrong]
    for subset in (Subset(data, [0, wrong]), Subset(Subset(data, [0, wrong]), [1, 0])):
        for call in (lambda s=subset: [s[0], s[1]], lambda s=subset: [*DataLoader(s, 2)]):
            with pytest.raises(kind, match=f"^Subset: its indices hold {value}"):
                call()
    for source in ({"sampler": [0, wrong]}, {"batch_sampler": [[0], [1, wrong]]}):
        with pytest.raises(kind, match=f"^DataLoader: a sampler gave {value}"):
            list(DataLoader(data, **source))


def test_a_subset_counts_from_its_end_and_gives_several_samples_where_its_data_set_does():
    subset = Subset(numbers(), np.array([9, 4, -8]))
    assert [subset[i][0].item() for i in (-3, 1, np.int64(2), mt.tensor(0))] == [9, 4, 2, 9]
    assert subset[1:][0].tolist() == [4, 2]
    assert [x.tolist() for x, _ in DataLoader(subset, 2)] == [[9, 4], [2]]
    assert [x.tolist() for x, _ in DataLoader(Subset(subset, mt.tensor([2, 0])), 2)] == [[2, 9]]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: TensorDataset(), ValueError),
        (lambda: TensorDataset(mt.ones(2), mt.ones(3)), ValueError),
        (lambda: TensorDataset(mt.tensor(1.0)), TypeError),
        (lambda: TensorDataset(np.ones(2)), TypeError),
    ],
)
def test_tensors_that_are_no_dataset_are_refused(make, error):
    with pytest.raises(error, match=r"TensorDataset: .*;"):
        make()


# --- loader -------------------------------------------------------------------------------------------------


def test_batches_come_in_order_and_the_last_is_smaller():
    loader = DataLoader(numbers(), batch_size=4)
    assert [x.tolist() for x, _ in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(loader) == 3
    assert len(list(DataLoader(numbers(), batch_size=4, drop_last=True))) == 2


def test_the_fast_way_gives_what_the_samples_give():
    part = Subset(Subset(numbers(), range(9, -1, -1)), [0, 2, 4, 6])
    fast = [[t.tolist() for t in batch] for batch in DataLoader(part, 3)]
    slow = [[t.tolist() for t in batch] for batch in DataLoader([part[i] for i in range(4)], 3)]
    assert fast == slow == [[[9, 7, 5], [90, 70, 50]], [[3], [30]]]


def test_a_subclass_with_its_own_samples_is_asked_for_them():
    class Doubled(TensorDataset):
        def __getitem__(self, index):
            return tuple(2 * t for t in super().__getitem__(index))

    (batch,) = DataLoader(Doubled(mt.arange(3)), 3)
    assert batch[0].tolist() == [0, 2, 4]


def test_shuffling_shows_every_sample_once_in_a_new_order_each_epoch():
    loader = DataLoader(range(50), 8, shuffle=True, generator=generator())
    epochs = [[i for batch in loader for i in batch.tolist()] for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(50))


def test_a_seed_fixes_the_order():
    orders = [
        [b.tolist() for b in DataLoader(range(20), 3, shuffle=True, generator=generator(5))] for _ in "ab"
    ]
    assert orders[0] == orders[1]
    mt.manual_seed(3)
    first = [b.tolist() for b in DataLoader(range(20), 3, shuffle=True)]
    mt.manual_seed(3)
    assert first == [b.tolist() for b in DataLoader(range(20), 3, shuffle=True)]


def test_collate_fn_gets_the_list_of_samples():
    loader = DataLoader(Squares(), 5, collate_fn=lambda samples: [s["y"] for s in samples])
    assert list(loader) == [[0, 1, 4, 9, 16], [25, 36, 49, 64, 81]]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"batch_size": 0}, ValueError),
        ({"batch_size": 2.5}, ValueError),
        ({"num_workers": 2}, ValueError),
        ({"batch_size": "a"}, ValueError),
        ({"batch_size": -1}, ValueError),
        ({"batch_size": True}, ValueError),
        ({"pin_memory": True}, ValueError),
        ({"pin_memory": "a"}, ValueError),
        ({"generator": np.random.default_rng()}, TypeError),
    ],
)
def test_impossible_arguments_are_refused(arguments, error):
    (name, value), *_ = arguments.items()
    with pytest.raises(error, match=rf"^DataLoader: {name} is {re.escape(repr(value))}.*;"):
        DataLoader(numbers(), **arguments)


def test_a_dataset_without_length_is_refused():
    with pytest.raises(TypeError, match="__len__"):
        DataLoader(iter([1, 2]))
    DataLoader(numbers(), num_workers=0, pin_memory=False)


# --- collating ----------------------------------------------------------------------------------------------


def test_collating_keeps_dtypes_and_structure():
    pair = namedtuple("pair", "a b")
    batch = default_collate(
        [pair(np.float32(1), {"t": mt.ones(2), "n": 3}), pair(np.float32(2), {"t": mt.zeros(2), "n": 4})]
    )
    assert isinstance(batch, pair)
    assert batch.a.dtype == mt.float32
    assert batch.b["t"].tolist() == [[1, 1], [0, 0]]
    assert batch.b["n"].dtype == mt.int64
    assert default_collate([0.5, 1.5]).dtype == mt.float32
    assert default_collate([True, False]).dtype == mt.bool
    for kind in (np.int64, np.int32, np.uint8, np.bool_):  # as in a sum, and not NumPy's float64
        mixed = [np.ones(2, kind), np.ones(2, np.float32)]
        assert default_collate(mixed).dtype == default_collate([*map(mt.tensor, mixed)]).dtype == mt.float32
    assert default_collate([np.ones(2), np.ones(2)]).dtype == mt.float64
    assert default_collate(["a", "b"]) == ["a", "b"]
    assert default_collate([("a", b"c"), ("b", b"d")]) == [("a", "b"), (b"c", b"d")]  # as PyTorch's
    assert default_collate([{"s": "a"}, {"s": "b"}]) == {"s": ["a", "b"]}


@pytest.mark.parametrize(
    ("samples", "error", "text"),
    [
        ([mt.ones(3), mt.ones(4)], ValueError, r"\(3,\), \(4,\)"),
        ([(1, 2), (1,)], ValueError, r"\[1, 2\]"),
        ([{"a": 1}, {"b": 1}], ValueError, "'a'"),
        ([object()], TypeError, "object"),
    ],
)
def test_samples_that_do_not_stack_are_refused(samples, error, text):
    with pytest.raises(error, match=text):
        default_collate(samples)


# --- resuming -----------------------------------------------------------------------------------------------


def batches(loader, n):
    """The next n batches, over as many epochs as it takes."""
    found = []
    while len(found) < n:
        for batch in loader:
            found.append(batch.tolist())
            if len(found) == n:
                break
    return found


@given(stop=st.integers(0, 17), shuffle=st.booleans(), own=st.booleans(), drop_last=st.booleans())
def test_a_resumed_loader_goes_on_with_the_same_batches(stop, shuffle, own, drop_last):
    def make(seed):
        mt.manual_seed(seed)
        return DataLoader(
            range(22), 4, shuffle=shuffle, drop_last=drop_last, generator=generator(seed) if own else None
        )

    want = batches(make(1), 18)
    loader = make(1)
    if stop:
        assert batches(loader, stop) == want[:stop]
    state, rng = loader.state_dict(), mt.get_rng_state()
    again = make(99)
    again.load_state_dict(state)
    mt.set_rng_state(rng)
    assert batches(again, 18 - stop) == want[stop:]


@given(own=st.booleans(), before=st.integers(0, 7))
def test_a_loader_saved_before_its_first_batch_keeps_the_order_it_drew(own, before):
    def make(seed):
        mt.manual_seed(seed)
        return DataLoader(range(12), 4, shuffle=True, generator=generator(seed) if own else None)

    loader = make(1)
    batches(loader, before)
    epoch = iter(loader)
    state, rng = loader.state_dict(), mt.get_rng_state()
    want = [batch.tolist() for batch in epoch] + batches(loader, 4)
    again = make(99)
    again.load_state_dict(state)
    mt.set_rng_state(rng)
    assert batches(again, 7) == want


@pytest.mark.parametrize(
    ("entry", "value"),
    [("seed", "x"), ("batch", -1), ("batch", None), ("seed", 1.5), ("generator", mt.zeros(3))],
)
def test_a_damaged_state_is_refused_and_changes_nothing(entry, value):
    loader = DataLoader(range(6), 2, shuffle=True, generator=generator())
    before = loader.state_dict()
    with pytest.raises(ValueError, match="its"):
        loader.load_state_dict({**before, "batch": 1, "seed": 5, entry: value})
    after = loader.state_dict()
    assert after["generator"].tolist() == before["generator"].tolist()
    assert (after["seed"], after["batch"]) == (None, 0)


def test_a_loader_at_the_end_of_an_epoch_resumes_with_the_end():
    loader = DataLoader(range(4), 2)
    for _ in loader:
        state = loader.state_dict()
    again = DataLoader(range(4), 2)
    again.load_state_dict(state)
    assert list(again) == []
    assert len(list(again)) == 2
    again.load_state_dict(loader.state_dict())
    assert len(list(again)) == 2


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (lambda: DataLoader(range(5), 2, shuffle=True, generator=generator()), "dataset is 6, not 5"),
        (lambda: DataLoader(range(6), 3, shuffle=True, generator=generator()), "batch_size is 2, not 3"),
        (lambda: DataLoader(range(6), 2, generator=generator()), "shuffle is True, not False"),
        (lambda: DataLoader(range(6), 2, shuffle=True), "generator"),
    ],
)
def test_a_state_of_another_loader_is_refused(other, text):
    state = DataLoader(range(6), 2, shuffle=True, generator=generator()).state_dict()
    with pytest.raises(ValueError, match=text):
        other().load_state_dict(state)
    with pytest.raises(ValueError, match="keys"):
        other().load_state_dict({3: 1, "a": 2})
    for wrong in (3, None, "a", [1], mt.ones(1)):
        for call in (other().load_state_dict, other().check_state_dict):
            with pytest.raises(TypeError, match=r"^DataLoader\.load_state_dict: state_dict is .*; give what"):
                call(wrong)


# --- samplers -----------------------------------------------------------------------------------------------


def test_samplers_give_the_indices_that_they_promise():
    data = numbers()
    assert list(SequentialSampler(data)) == list(range(10))
    assert sorted(RandomSampler(data)) == list(range(10)) != list(RandomSampler(data, generator=generator()))
    assert len(set(RandomSampler(data, num_samples=4))) == 4 == len(RandomSampler(data, num_samples=4))
    drawn = list(RandomSampler(data, replacement=True, num_samples=200))
    assert len(drawn) == 200
    assert set(drawn) == set(range(10))
    assert sorted(SubsetRandomSampler([7, 3, 5])) == [3, 5, 7]
    batches = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    for drop_last, kept in ((False, 3), (True, 2)):
        batched = BatchSampler(SequentialSampler(data), 4, drop_last)
        assert list(batched) == batches[:kept]
        assert len(batched) == kept


def test_a_weighted_sampler_draws_in_proportion(rng):
    counts = np.bincount(list(WeightedRandomSampler([1.0, 0.0, 3.0], 4000, generator=generator())))
    # 1000 and 3000 are expected; six standard deviations of a binomial of 4000 are 164
    assert counts[1] == 0
    assert abs(counts[2] - 3000) < 164
    assert sorted(WeightedRandomSampler([1, 0, 3], 2, replacement=False)) == [0, 2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomSampler(numbers(), num_samples=11),
        lambda: RandomSampler(numbers(), num_samples=0),
        lambda: RandomSampler([]),
        lambda: WeightedRandomSampler([0.0, 0.0], 1),
        lambda: WeightedRandomSampler([1.0, -1.0], 1),
        lambda: WeightedRandomSampler([[1.0]], 1),
        lambda: WeightedRandomSampler([1.0, 0.0], 2, replacement=False),
        lambda: BatchSampler([0, 1], 0, False),
        lambda: DataLoader(numbers(), sampler=[0], shuffle=True),
        lambda: DataLoader(numbers(), batch_sampler=[[0]], batch_size=2),
        lambda: DataLoader(numbers(), batch_sampler=[[0]], drop_last=True),
    ],
)
def test_impossible_samplers_are_refused(make):
    with pytest.raises(ValueError, match=r"\w+: .*;"):
        make()


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("num_samples", lambda n: RandomSampler(numbers(), num_samples=n)),
        ("num_samples", lambda n: WeightedRandomSampler([1.0] * 10, n)),
        ("batch_size", lambda n: BatchSampler(range(10), n, False)),
        ("batch_size", lambda n: DataLoader(numbers(), n)),
        ("every", lambda n: [*blocks([*range(10)], 2, n)]),
    ],
)
def test_a_count_is_an_integer_of_one_or_more(name, make):
    assert len(make(np.int64(3))) == len(make(3)) > 0
    for wrong in ("a", 0, -1, 1.5, True, [1], 1j, math.inf):
        with pytest.raises(
            (ValueError, TypeError), match=rf"^\w+: {name} is {re.escape(repr(wrong))}; give "
        ):
            make(wrong)


@pytest.mark.parametrize("wrong", ["a", ["a"], [None], [1j], object(), 3, [[1.0]], [-1.0], [math.nan], []])
def test_weights_that_are_none_are_refused_by_their_sampler(wrong):
    with pytest.raises((ValueError, TypeError), match=r"^WeightedRandomSampler: .*; "):
        WeightedRandomSampler(wrong, 1)


def test_a_sampler_that_is_none_is_refused():
    with pytest.raises(TypeError, match="sampler is int; give something that iterates"):
        DataLoader(numbers(), sampler=3)
    with pytest.raises(TypeError, match="a sampler gave 'a' as an index"):
        list(DataLoader(numbers(), sampler=["a"]))
    with pytest.raises(NotImplementedError, match="define __iter__"):
        list(Sampler())


def test_a_loader_takes_a_sampler_or_lists_of_indices():
    loader = DataLoader(numbers(), 2, sampler=[9, 0, 4])
    assert [x.tolist() for x, _ in loader] == [[9, 0], [4]]
    assert len(loader) == 2
    loader = DataLoader(numbers(), 2, sampler=[9, 0, 4], drop_last=True)
    assert [x.tolist() for x, _ in loader] == [[9, 0]]
    assert len(loader) == 1
    loader = DataLoader(Squares(), batch_sampler=[[1], [2, 3]])
    assert [b["y"].tolist() for b in loader] == [[1], [4, 9]]
    assert len(loader) == 2


def sampled(kind):
    """Loaders over ten samples that draw an order of their own each epoch."""
    data = numbers()
    if kind == "sampler":
        return DataLoader(data, 3, sampler=RandomSampler(data, generator=generator(7)))
    if kind == "weights":
        return DataLoader(data, 3, sampler=WeightedRandomSampler([1.0] * 10, 10))
    return DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data, generator=generator(7)), 3, False))


@pytest.mark.parametrize("stop", [0, 1, 3, 4, 5])
@pytest.mark.parametrize("kind", ["sampler", "weights", "batches"])
def test_a_loader_with_a_sampler_resumes_in_the_middle_of_an_epoch(kind, stop, tmp_path):
    def stream(loader):
        while True:
            yield from ([x.tolist() for x in batch] for batch in loader)

    mt.manual_seed(1)
    loader = sampled(kind)
    batches = stream(loader)
    for _ in range(stop):
        next(batches)
    mt.save([loader.state_dict(), mt.get_rng_state()], tmp_path / "state")
    rest = [next(batches) for _ in range(6)]
    state, random = mt.load(tmp_path / "state")
    again = sampled(kind)
    again.load_state_dict(state)
    mt.set_rng_state(random)
    after = stream(again)
    assert [next(after) for _ in range(6)] == rest


def test_an_order_that_no_sampler_gave_is_refused():
    loader = sampled("sampler")
    next(iter(loader))
    state = loader.state_dict()
    for wrong in ([99], mt.tensor([-1]), ["a"]):
        with pytest.raises(ValueError, match="its order is no list of samples"):
            loader.load_state_dict({**state, "order": wrong})


# --- tokenizer ----------------------------------------------------------------------------------------------


@given(st.text(min_size=1))
def test_decoding_undoes_encoding(text):
    tokenizer = CharTokenizer(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(mt.tensor(tokenizer.encode(text))) == text
    assert CharTokenizer(tokenizer.chars).encode(text) == tokenizer.encode(text)


def test_the_tokenizer_names_what_it_does_not_know():
    tokenizer = CharTokenizer("abc")
    with pytest.raises(ValueError, match="'z' at position 1"):
        tokenizer.encode("az")
    with pytest.raises(ValueError, match="id 3 is not in 0 … 2"):
        tokenizer.decode([3])
    with pytest.raises(ValueError, match="id -1"):
        tokenizer.decode([-1])
    with pytest.raises(ValueError, match="empty"):
        CharTokenizer("")


# --- texts --------------------------------------------------------------------------------------------------


def test_the_documentation_of_python_is_all_its_topics_in_order():
    from pydoc_data.topics import topics

    text = python_docs()
    places = [text.index(topics[name]) for name in sorted(topics)]
    assert len(text) == sum(map(len, topics.values())) + 2 * (len(topics) - 1)
    assert places[0] == 0
    assert sum(map(len, topics.values())) > 300_000


def test_a_python_without_its_documentation_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(FileNotFoundError, match=r"^python_docs: .* without its documentation .*; "):
        python_docs()


def test_a_text_is_read_as_utf8_whatever_ends_its_lines(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf\xc3\xbc\r\nb\rc\n")
    assert read_text(path) == read_text(str(path)) == "ü\nb\nc\n"
    path.write_bytes(b"a\xc3")
    with pytest.raises(ValueError, match=r"^read_text: '.*a\.txt' is not UTF-8 \(byte 0xc3: unexpected end"):
        read_text(path)


def test_a_text_that_cannot_be_read_is_told_and_a_number_is_no_file(tmp_path):
    for name, error in (("b.txt", FileNotFoundError), ("", IsADirectoryError), ("a\0b", ValueError)):
        for path in (tmp_path / name, str(tmp_path / name), os.fsencode(tmp_path / name)):
            with pytest.raises(error, match=r"^read_text: b?'.*' cannot be read \(.+\); give "):
                read_text(path)
    here, there = os.pipe()
    for wrong in (here, 3.5, None, True, ["a"]):
        with pytest.raises(TypeError, match=rf"^read_text: path is {re.escape(repr(wrong))}; give"):
            read_text(wrong)
    os.close(here)  # which is still open, as is our output
    os.close(there)


@pytest.mark.parametrize("ids", ["abc", 3, None, [[1, 2], [3, 4]], ["a", "b"], [True, False], {1, 2, 3}])
def test_blocks_of_what_is_no_text_are_refused(ids):
    with pytest.raises((TypeError, ValueError), match=r"^blocks: .*; "):
        blocks(ids, 1)


# --- names --------------------------------------------------------------------------------------------------


def test_utils_data_has_the_same_names():
    from microtensor.utils.data import DataLoader as Same

    assert Same is DataLoader
    assert mt.utils.data.TensorDataset is TensorDataset
    assert mt.data.PAD == 0
