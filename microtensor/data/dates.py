"""Dates as people write them in many languages, each with its ISO 8601 form: a corpus for translation.

The strings come from the Unicode CLDR through Babel, made on the fly from a calendar: nothing is downloaded.
This file knows calendars. It refuses to know tensors, models and devices: it hands out strings.
"""

import datetime
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from microtensor.annotations import hold
from microtensor.data.pairs import BOS, EOS, PAD, PairCorpus
from microtensor.random import as_seed

__all__ = ["BOS", "EOS", "FORMATS", "LOCALES", "PAD", "DateCorpus", "DatePair", "normalize"]

LOCALES = (
    *("en_US", "en_GB", "de_DE", "fr_FR", "es_ES", "it_IT", "pt_BR", "nl_NL", "sv_SE", "pl_PL", "cs_CZ"),
    *("fi_FI", "tr_TR", "el_GR", "ru_RU", "uk_UA", "he_IL", "ar_EG", "fa_IR", "hi_IN", "mr_IN", "bn_BD"),
    *("th_TH", "ja_JP", "ko_KR", "zh_CN"),
)

FORMATS = ("full", "long", "medium", "yMMMd", "yMMMEd", "yMd")
"""CLDR's names: three standard lengths, then skeletons (y year, MMM short month, M number, d day, E weekday).

Left out is "short": in many locales it keeps only two digits of the year, which do not say the century.
"""

# CLDR's numbering systems, by their zero; Babel (2.19) writes every date in Latin digits, people do not.
_ZEROS = {"latn": "0", "arab": "\u0660", "arabext": "\u06f0", "beng": "\u09e6", "deva": "\u0966"}


class DatePair(NamedTuple):
    """One example: `source`, a date as written in `locale`, and `target`, the same day in ISO 8601.

    Source: ours.
    """

    source: str
    target: str
    locale: str


class DateCorpus(PairCorpus):
    """Pairs such as ("mercredi 4 mars 1998", "1998-03-04"), split by calendar day into training and test.

    No source has two targets. A pattern that puts the number of the month before the day and the year last
    (3/4/1998 in the USA) is left out, because most of the world reads it the other way round; whatever else
    clashes within the year 2000 is an error, and the tests try every kind of year. All calendars are
    Gregorian, that of `fa_IR` too.

    locales: Babel's names. formats: CLDR's names, see FORMATS; what a locale writes alike counts once.
    first_year, last_year: both included, of four digits each.
    n_test: how many days are held out; no training pair shows any of them, in any locale or format.
    seed: draws the held-out days and their test pairs; training pairs come from the `rng` of `train_pairs`.

    Raises: ModuleNotFoundError without Babel; ValueError for unknown locales or formats, an impossible
        range, or a source with two targets.
    Source: Unicode CLDR, through Babel. Differs: digits are the locale's own, and text is `normalize`d.

    >>> corpus = DateCorpus()
    >>> day = datetime.date(1998, 3, 4)
    >>> [corpus.write(day, locale, "full") for locale in ("en_US", "fr_FR", "bn_BD")]
    ['Wednesday, March 4, 1998', 'mercredi 4 mars 1998', 'বুধবার, ৪ মার্চ, ১৯৯৮']
    """

    max_source_length: int
    """Of the longest source, in characters, without BOS and EOS. A target has 10."""

    patterns: dict[str, tuple[str, ...]]
    """For each locale its distinct CLDR patterns, such as "d MMMM y"."""

    def __init__(
        self,
        *,
        locales: Sequence[str] = LOCALES,
        formats: Sequence[str] = FORMATS,
        first_year: int = 1900,
        last_year: int = 2099,
        n_test: int = 1000,
        seed: int = 0,
    ) -> None:
        if not 1000 <= first_year <= last_year <= 9999:
            raise ValueError(
                f"DateCorpus: years {first_year} to {last_year} are no range of four-digit years; "
                f"choose 1000 <= first_year <= last_year <= 9999"
            )
        days = _days(first_year, last_year)
        if not 0 <= n_test < len(days):
            raise ValueError(
                f"DateCorpus: n_test {n_test} leaves no day to train on; choose 0 <= n_test < {len(days)}"
            )
        self.patterns = {locale: _patterns(locale, formats) for locale in locales}
        self._locales = tuple(self.patterns)
        for locale, patterns in self.patterns.items():
            if not patterns:
                raise ValueError(
                    f"DateCorpus: {locale} writes none of {tuple(formats)} without doubt; add 'long'"
                )
        if not self._locales:
            raise ValueError("DateCorpus: there are no locales; see LOCALES for names")

        # A leap year shows every month, weekday, digit and length; the year's own digits add nothing new.
        leap_year = _days(2000, 2000)
        targets = self.sources(leap_year)
        self.characters = "".join(sorted({*"-0123456789", *"".join(targets)}))
        self.max_source_length = max(map(len, targets))

        rng = np.random.default_rng(as_seed("DateCorpus", seed))
        days = [days[i] for i in rng.permutation(len(days))]
        self.test_days = frozenset(days[:n_test])
        self.train_days = days[n_test:]
        self._test_pairs = [self._pair(day, rng) for day in days[:n_test]]

    def write(self, day: datetime.date, locale: str, format: str) -> str:
        """The day as `locale` writes it in `format`, a name as in FORMATS or a pattern such as "d MMMM y".

        Raises: ValueError for a locale that Babel has not, or a pattern that it cannot write.
        Source: Unicode CLDR, through Babel. Differs: digits are the locale's own, and text is `normalize`d.
        """
        return _write(day, locale, _named_patterns(locale).get(format, format))

    def sources(self, days: Iterable[datetime.date]) -> dict[str, str]:
        """Everything the corpus can say about these days: each source with its target.

        Raises: ValueError if one source has two targets; TypeError for what is no day.
        Source: ours.
        """
        targets: dict[str, str] = {}
        for day in days:
            if not isinstance(day, datetime.date):
                raise TypeError(f"DateCorpus: {day!r:.60} is no day; give datetime.date(1998, 3, 4)")
            target = day.isoformat()
            for locale, patterns in self.patterns.items():
                for pattern in patterns:
                    source = _write(day, locale, pattern)
                    if targets.setdefault(source, target) != target:
                        raise ValueError(
                            f"DateCorpus: {source!r} is {targets[source]} and, in {locale} by {pattern!r}, "
                            f"also {target}; leave out that locale or format"
                        )
        return targets

    def train_pairs(self, n: int, rng: np.random.Generator) -> list[DatePair]:
        """n pairs of training days, drawn with replacement: the day, then its locale, then its pattern.

        Raises: ValueError for a negative n; TypeError for an rng that is not NumPy's.
        Source: ours.
        """
        drawn = rng.integers(len(self.train_days), size=self._at_least_none(n))
        return [self._pair(self.train_days[int(i)], rng) for i in drawn]

    def test_pairs(self) -> list[DatePair]:
        """Each held-out day once, in a random locale and format; the same list for the same seed.

        Source: ours.
        """
        return list(self._test_pairs)

    def encode(self, text: str) -> list[int]:
        """The ids of the normalized text, without BOS and EOS.

        Raises: ValueError naming the first character that no source of the corpus has.
        Source: ours.
        """
        text = normalize(text)
        if unseen := [char for char in text if char not in self.characters]:
            name = unicodedata.name(unseen[0], "a character without a name")
            raise ValueError(
                f"DateCorpus: {unseen[0]!r} ({name}) in {text!r} is in no date of the corpus; write the date "
                f"as one of its {len(self._locales)} locales does, capitals and all: '3 mars 1998'"
            )
        return super().encode(text)

    def _pair(self, day: datetime.date, rng: np.random.Generator) -> DatePair:
        locale = self._locales[int(rng.integers(len(self._locales)))]
        patterns = self.patterns[locale]
        source = _write(day, locale, patterns[int(rng.integers(len(patterns)))])
        return DatePair(source, day.isoformat(), locale)


def normalize(text: str) -> str:
    """One spelling of what looks the same: Unicode NFKC, no invisible characters, single spaces.

    CLDR writes narrow no-break spaces and marks of direction that no keyboard has; NFKC also turns
    full-width forms into plain ones. The corpus is normalized, and so is all text that is encoded.

    Source: Unicode Standard Annex #15, NFKC.

    >>> normalize(" １９９８\u202fг. ")
    '1998 г.'
    """
    text = unicodedata.normalize("NFKC", text)
    return " ".join("".join(char for char in text if unicodedata.category(char) != "Cf").split())


def _babel(name: str) -> ModuleType:
    """A module of Babel, imported when first needed: the corpus is optional, `import microtensor` is not."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError('dates: Babel is missing; pip install "microtensor[examples]"') from error


@cache
def _locale(name: str) -> tuple[Any, dict[int, str]]:
    """Babel's locale, and the `str.translate` table to its digits."""
    try:
        locale = _babel("babel.core").Locale.parse(name)
    except (ValueError, _babel("babel.core").UnknownLocaleError) as error:
        raise ValueError(f"DateCorpus: Babel has no locale {name!r}; see LOCALES for names") from error
    system = locale.default_numbering_system
    if system not in _ZEROS:
        raise ValueError(
            f"DateCorpus: {name} writes digits in {system!r}, known are {sorted(_ZEROS)}; "
            f"leave it out or add its zero to _ZEROS"
        )
    zero = ord(_ZEROS[system])
    return locale, {ord("0") + i: chr(zero + i) for i in range(10)}


def _named_patterns(locale: str) -> dict[str, str]:
    """CLDR's patterns of dates for this locale, by the name of their format."""
    babel_locale, _ = _locale(locale)
    known = {**babel_locale.datetime_skeletons, **babel_locale.date_formats}
    return {name: str(pattern.pattern) for name, pattern in known.items()}


def _patterns(locale: str, formats: Iterable[str]) -> tuple[str, ...]:
    """The distinct patterns that say the whole date, with no doubt about century, day and month."""
    found: dict[str, None] = {}  # a set that keeps its order
    known = _named_patterns(locale)
    for format in formats:
        if format not in known:
            raise ValueError(f"DateCorpus: {locale} has no format {format!r}; see FORMATS for names")
        pattern = known[format]
        letters = re.sub("'[^']*'", "", pattern)  # quoted text is literal
        two_digit_year = re.search(r"(?<!y)yy(?!y)", letters)
        month_number_first = re.search(r"(?<!M)MM?(?!M)[^d]*d.*y", letters)
        if not two_digit_year and not month_number_first:
            found[pattern] = None
    return tuple(found)


def _write(day: datetime.date, locale: str, pattern: str) -> str:
    babel_locale, digits = _locale(locale)
    try:
        text: str = _babel("babel.dates").parse_pattern(pattern).apply(day, babel_locale)
    except (ValueError, KeyError) as error:
        raise ValueError(f"DateCorpus: {pattern!r} writes no date, {error}; give 'd MMMM y'") from error
    return normalize(text.translate(digits))


def _days(first_year: int, last_year: int) -> list[datetime.date]:
    first, last = (datetime.date(first_year, 1, 1).toordinal(), datetime.date(last_year, 12, 31).toordinal())
    return [datetime.date.fromordinal(day) for day in range(first, last + 1)]


hold(__name__)
