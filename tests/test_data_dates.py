"""The corpus of dates: no source with two readings, no test day in training, the same pairs for a seed."""

import datetime
import os
import re
import subprocess
import sys
import unicodedata
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("babel")

from babel.dates import get_day_names, get_month_names

from microtensor.data import dates
from microtensor.data.dates import BOS, EOS, LOCALES, PAD, DateCorpus, normalize

# Every way a year can run: the common and the leap years that start on each of the seven weekdays.
YEAR_TYPES = (*range(2001, 2004), 2005, 2006, 2009, 2010, *range(2000, 2028, 4))


@pytest.fixture(scope="module")
def corpus() -> DateCorpus:
    return DateCorpus()


def days_of(year: int) -> list[datetime.date]:
    first = datetime.date(year, 1, 1)
    n_days = (datetime.date(year + 1, 1, 1) - first).days
    return [first + datetime.timedelta(days=i) for i in range(n_days)]


def numbers(text: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", text)]  # \d and int know every script's digits


def in_latin_digits(text: str) -> str:
    return "".join(str(int(char)) if char.isdecimal() else char for char in text)


def test_year_types_are_all_fourteen() -> None:
    kinds = {(datetime.date(year, 1, 1).weekday(), len(days_of(year))) for year in YEAR_TYPES}
    assert len(kinds) == len(YEAR_TYPES) == 14


def test_no_source_has_two_targets_in_any_kind_of_year(corpus: DateCorpus) -> None:
    # Exhaustive for all years: equal sources show equal years (next test), and within a year a source
    # depends on the year's own four digits and on its kind only. `sources` raises on a clash.
    for year in YEAR_TYPES:
        assert len(corpus.sources(days_of(year))) > 40 * 365


@pytest.mark.parametrize("year", [1900, 1912, 1999, 2000, 2024, 2099])
def test_a_source_shows_its_year_as_its_only_long_number(corpus: DateCorpus, year: int) -> None:
    for source in corpus.sources(days_of(year)):
        assert [n for n in numbers(source) if n > 31] == [year]


@pytest.mark.parametrize("locale", LOCALES)
def test_a_source_says_its_day_month_and_year(corpus: DateCorpus, locale: str) -> None:
    names = {
        "MMMM": get_month_names("wide", locale=locale),
        "MMM": get_month_names("abbreviated", locale=locale),
    }
    for day in days_of(1998):
        for pattern in corpus.patterns[locale]:
            source = in_latin_digits(corpus.write(day, locale, pattern))
            letters = next((letters for letters in names if letters in pattern), None)
            if letters:
                name = normalize(names[letters][day.month])
                assert name in source
                assert sorted(numbers(source.replace(name, "", 1))) == [day.day, day.year]
            else:
                year_month_day = [day.year, day.month, day.day]
                assert numbers(source) in (year_month_day, year_month_day[::-1])


def test_weekdays_are_those_of_the_calendar(corpus: DateCorpus) -> None:
    for locale in LOCALES:
        if any("EEEE" in pattern for pattern in corpus.patterns[locale]):
            names = get_day_names("wide", locale=locale)
            for day in days_of(1998)[:7]:
                assert normalize(names[day.weekday()]) in corpus.write(day, locale, "full")


def test_a_month_number_before_the_day_and_a_final_year_is_left_out(corpus: DateCorpus) -> None:
    day = datetime.date(1998, 3, 4)
    assert corpus.write(day, "en_US", "yMd") == "3/4/1998"
    assert "3/4/1998" not in corpus.sources([day])
    assert corpus.sources([datetime.date(1998, 4, 3)])["3/4/1998"] == "1998-04-03"


def test_two_digit_years_are_left_out() -> None:
    corpus = DateCorpus(locales=("es_ES",), formats=("long", "short"), n_test=0)
    assert corpus.write(datetime.date(1998, 3, 4), "es_ES", "short") == "4/3/98"
    assert corpus.patterns == {"es_ES": ("d 'de' MMMM 'de' y",)}


def test_a_source_with_two_targets_is_an_error() -> None:
    corpus = DateCorpus(locales=("en_US", "es_ES"), n_test=0)
    corpus.patterns["en_US"] += ("M/d/y",)  # what the constructor leaves out
    with pytest.raises(
        ValueError, match=r"'2/1/1998' is 1998-01-02 and, in en_US by 'M/d/y', also 1998-02-01"
    ):
        corpus.sources(days_of(1998))


def test_the_corpus_has_twenty_locales_and_both_directions(corpus: DateCorpus) -> None:
    assert len(corpus.patterns) >= 20
    assert all(len(patterns) >= 4 for patterns in corpus.patterns.values())
    directions = {unicodedata.bidirectional(char) for char in corpus.characters}
    assert {"L", "R", "AL"} <= directions
    assert sum(char.isdecimal() for char in corpus.characters) == 50  # Latin and four more scripts' digits


@pytest.mark.parametrize(
    ("locale", "source"),
    [("ar_EG", "٤ مارس ١٩٩٨"), ("fa_IR", "۴ مارس ۱۹۹۸"), ("mr_IN", "४ मार्च, १९९८"), ("bn_BD", "৪ মার্চ, ১৯৯৮")],
)
def test_digits_are_native(corpus: DateCorpus, locale: str, source: str) -> None:
    assert corpus.write(datetime.date(1998, 3, 4), locale, "long") == source


def test_training_never_shows_a_test_day() -> None:
    corpus = DateCorpus(first_year=1999, last_year=2000, n_test=300)
    targets = {pair.target for pair in corpus.train_pairs(20_000, np.random.default_rng(0))}
    held_out = {day.isoformat() for day in corpus.test_days}
    assert len(targets) == 731 - 300
    assert not targets & held_out
    assert {pair.target for pair in corpus.test_pairs()} == held_out


def test_test_pairs_are_a_thousand_days_in_every_locale(corpus: DateCorpus) -> None:
    pairs = corpus.test_pairs()
    assert len({pair.target for pair in pairs}) == len(pairs) == 1000
    assert {pair.locale for pair in pairs} == set(LOCALES)


def test_pairs_are_true(corpus: DateCorpus) -> None:
    for pair in corpus.test_pairs()[:200]:
        assert corpus.sources([datetime.date.fromisoformat(pair.target)])[pair.source] == pair.target


def test_a_seed_fixes_the_pairs() -> None:
    one, again, other = (DateCorpus(locales=LOCALES[::9], seed=seed) for seed in (0, 0, 1))
    assert one.test_pairs() == again.test_pairs()
    assert one.test_days != other.test_days
    first, second = (one.train_pairs(50, np.random.default_rng(7)) for _ in range(2))
    assert first == second


def test_pairs_and_ids_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "import numpy as np; from microtensor.data.dates import DateCorpus\n"
        "c = DateCorpus(locales=('de_DE', 'he_IL', 'mr_IN'), n_test=20)\n"
        "print(ascii((c.characters, c.test_pairs(), c.train_pairs(20, np.random.default_rng(0)))))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_every_string_of_every_year_can_be_encoded(corpus: DateCorpus) -> None:
    for pair in corpus.train_pairs(5000, np.random.default_rng(1)):
        assert corpus.decode(corpus.encode(pair.source)) == pair.source
        assert corpus.decode(corpus.encode(pair.target)) == pair.target
        assert len(pair.source) <= corpus.max_source_length


def test_characters_are_sorted_and_normal(corpus: DateCorpus) -> None:
    assert list(corpus.characters) == sorted(set(corpus.characters))
    assert corpus.vocab_size == len(corpus.characters) + 3
    assert not any(unicodedata.category(char) in ("Cf", "Cc") for char in corpus.characters)


def test_batch_frames_and_pads(corpus: DateCorpus) -> None:
    ids = corpus.batch(["3 mars 1998", "1998"])
    assert ids.shape == (2, 13)
    assert ids.dtype == np.int64
    assert (ids[:, 0] == BOS).all()
    assert ids[0, -1] == ids[1, 5] == EOS
    assert (ids[1, 6:] == PAD).all()
    assert corpus.decode(ids[1]) == "1998"
    assert corpus.batch([]).shape == (0, 0)


def test_decode_stops_at_the_first_end_and_refuses_unknown_ids(corpus: DateCorpus) -> None:
    one = corpus.encode("1")
    assert corpus.decode([BOS, *one, EOS, *one]) == "1"
    with pytest.raises(ValueError, match=f"id {corpus.vocab_size} is no character"):
        corpus.decode([corpus.vocab_size])


def test_an_unknown_character_is_named(corpus: DateCorpus) -> None:
    with pytest.raises(ValueError, match=r"'ß' \(LATIN SMALL LETTER SHARP S\) in '3\. Maß 1998'"):
        corpus.encode("3. Maß 1998")


def test_what_looks_alike_is_encoded_alike(corpus: DateCorpus) -> None:
    assert corpus.encode("4. Ma\u0308rz 1998") == corpus.encode("4. März 1998")
    assert corpus.encode("4 марта 1998\u202fг.") == corpus.encode("4 марта １９９８  г. ")
    assert normalize("٤\u200f/٣\u200f/١٩٩٨") == "٤/٣/١٩٩٨"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"locales": ("tlh_XX",)}, "no locale 'tlh_XX'"),
        ({"locales": ("my_MM",)}, "my_MM writes digits in 'mymr'"),
        ({"formats": ("yearly",)}, "no format 'yearly'"),
        ({"locales": ()}, "there are no locales"),
        ({"locales": ("en_US", "fr_FR"), "formats": ("yMd",)}, "en_US writes none of"),
        ({"first_year": 2000, "last_year": 1999}, "years 2000 to 1999"),
        ({"first_year": 1999, "last_year": 1999, "n_test": 365}, "leaves no day to train on"),
    ],
)
def test_bad_arguments_say_what_is_wrong(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DateCorpus(**arguments)  # type: ignore[arg-type]


def test_without_babel_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ModuleType:
        if name.startswith("babel"):
            raise ModuleNotFoundError(name)
        return import_module(name)

    monkeypatch.setattr(dates, "import_module", missing)
    dates._locale.cache_clear()
    with pytest.raises(ModuleNotFoundError, match=re.escape('pip install "microtensor[examples]"')):
        DateCorpus()
