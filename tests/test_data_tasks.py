"""Small tasks as data: their answers are true, and what is tested on is never trained on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from microtensor.data import BOS, EOS, PAD, AdditionTask, PairBatches, PairCorpus, StringTask

TASKS: dict[str, Any] = {
    **{rule: lambda rule=rule: StringTask(rule) for rule in ("copy", "reverse", "sort")},
    "addition": AdditionTask,
    "addition in order": lambda: AdditionTask(2, reverse=False),
}


@pytest.mark.parametrize("name", TASKS)
def test_no_batch_of_a_run_shows_a_held_out_item(name: str) -> None:
    corpus = TASKS[name]()
    batches = PairBatches(corpus, 320)
    trained = {pair.source for i in range(320) for pair in batches.pairs(i)}
    held_out = {pair.source for pair in corpus.test_pairs()}
    assert len(held_out) == 1000
    assert len(trained) > 5000
    assert trained.isdisjoint(held_out)


def test_no_sum_is_trained_on_whose_summands_are_swapped_in_a_held_out_one() -> None:
    corpus = AdditionTask(1, n_test=27)  # of 55 sums of two digits: all others will be seen
    held_out = {frozenset(pair.source[:-1].split("+")) for pair in corpus.test_pairs()}
    trained = {
        frozenset(p.source[:-1].split("+")) for p in corpus.train_pairs(5000, np.random.default_rng(0))
    }
    assert trained.isdisjoint(held_out)
    assert len(trained) + len(held_out) == 55


@given(st.lists(st.sampled_from("abcde"), min_size=1).map("".join))
def test_the_rules_do_what_they_are_called(text: str) -> None:
    answers = {rule: StringTask(rule).answer(text) for rule in ("copy", "reverse", "sort")}
    assert answers["copy"] == text
    assert list(answers["reverse"]) == list(reversed(text))
    assert list(answers["sort"]) == sorted(text)


@given(n=st.integers(1, 6), data=st.data(), reverse=st.booleans())
def test_a_sum_is_the_sum(n: int, data: st.DataObject, reverse: bool) -> None:
    a, b = data.draw(st.tuples(*[st.integers(0, 10**n - 1)] * 2))
    answer = AdditionTask(n, reverse=reverse, n_test=0).answer(f"{a:0{n}}+{b:0{n}}=")
    assert len(answer) == n + 1
    assert int(answer[::-1] if reverse else answer) == a + b


def test_all_texts_are_drawn_in_their_lengths() -> None:
    corpus = StringTask("copy", characters="ba", shortest=2, longest=4, n_test=2)
    assert corpus.characters == "ab"
    sources = {pair.source for pair in corpus.train_pairs(2000, np.random.default_rng(0))}
    assert {len(source) for source in sources} == {2, 3, 4}
    assert len(sources) + 2 == 2**2 + 2**3 + 2**4


def test_a_sum_has_one_length() -> None:
    pairs = AdditionTask(4).train_pairs(500, np.random.default_rng(0))
    assert {(len(pair.source), len(pair.target)) for pair in pairs} == {(10, 5)}


def test_a_seed_fixes_what_is_held_out_and_what_is_drawn() -> None:
    first, again, other = AdditionTask(), AdditionTask(), AdditionTask(seed=1)
    assert first.test_pairs() == again.test_pairs() != other.test_pairs()
    draws = [first.train_pairs(50, np.random.default_rng(7)) for _ in range(2)]
    assert draws[0] == draws[1]


def test_a_batch_is_a_function_of_its_seed_and_number() -> None:
    corpus = StringTask("sort")
    one, two = PairBatches(corpus, 20, batch_size=5, pool=4), PairBatches(corpus, 20, batch_size=5, pool=4)
    later = two.pairs(17)
    assert [one.pairs(i) for i in range(18)][17] == later
    assert PairBatches(corpus, 20, batch_size=5, pool=4, seed=1).pairs(17) != later
    src, tgt = one[17]
    assert src.dtype == tgt.dtype == np.int64
    assert [corpus.decode(row) for row in src.tolist()] == [pair.source for pair in later]
    assert [corpus.decode(row) for row in tgt.tolist()] == [pair.target for pair in later]
    assert (tgt.numpy()[:, 0] == BOS).all()
    assert ((src.numpy() == EOS).sum(1) == 1).all()


def test_a_batch_holds_like_lengths() -> None:
    batches = PairBatches(StringTask("copy"), 16)
    padding = [float((batches[i][0].numpy() == PAD).mean()) for i in range(16)]
    assert max(padding) < 0.2  # without sorting it is 0.3


def test_ids_are_checked() -> None:
    corpus = AdditionTask()
    with pytest.raises(ValueError, match=r"AdditionTask: 'x' in '1x2' is no character.*use '\+0123456789='"):
        corpus.encode("1x2")
    with pytest.raises(ValueError, match="AdditionTask: id 15 is no character; ids are 0 to 14"):
        corpus.decode([15])
    with pytest.raises(IndexError, match="there is no batch 3; batches are 0 to 2"):
        PairBatches(corpus, 3).pairs(3)
    with pytest.raises(ValueError, match="AdditionTask: '1-2' is no sum; write one as \"345"):
        corpus.answer("1-2")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StringTask("shuffle"), r"no rule 'shuffle'; choose among \['copy', 'reverse', 'sort'\]"),
        (lambda: StringTask("copy", shortest=0), "lengths 0 to 12; choose 1 <="),
        (lambda: StringTask("copy", shortest=5, longest=4), "lengths 5 to 4"),
        (lambda: StringTask("copy", characters=""), "characters is ''; give one or more, each once"),
        (lambda: StringTask("copy", characters="aa"), "characters is 'aa'"),
        (lambda: StringTask("copy", shortest=2), "n_test is 1000, and of some sources there are 100 only"),
        (lambda: StringTask("copy", n_test=-1), "n_test is -1"),
        (lambda: AdditionTask(0), "n_digits is 0; make it at least 1"),
        (lambda: AdditionTask(1), "n_test is 1000, and of some sources there are 55 only; hold out at most"),
        (lambda: PairBatches(AdditionTask(), 0), "n_batches is 0; make it at least 1"),
        (lambda: PairBatches(AdditionTask(), 1, pool=0), "pool is 0; make it at least 1"),
    ],
)
def test_bad_arguments_say_what_is_wrong(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_corpus_without_pairs_says_what_to_define() -> None:
    with pytest.raises(NotImplementedError, match="draws no pairs; define train_pairs"):
        PairCorpus().train_pairs(1, np.random.default_rng(0))
    with pytest.raises(NotImplementedError, match="holds no pairs out; define test_pairs"):
        PairCorpus().test_pairs()
