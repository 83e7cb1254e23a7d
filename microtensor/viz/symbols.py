"""Names as text: `W_1^Q` → W with sub- and superscript; whatever a user calls a tensor → text that DOT cannot
break.

Every label in a drawing goes through `clean`; node names, ports and URLs go through `safe` or hold no user
text.
"""

from __future__ import annotations

import functools
import html as html_lib
import re
import unicodedata
from collections.abc import Iterable

__all__ = ["clean", "escape", "html", "indexed", "one_line", "quote", "safe"]
__all__ += ["token", "untagged", "which", "words"]

LONGEST = 60
VISIBLE = str.maketrans({" ": "·", "\n": "¶", "\t": "→", "\r": "\\r"})
# A letter with accents and _sub, or a word with a short one (split_h, not layer_norm); then ^super, (which).
SYMBOL = re.compile(
    r"(?:(?P<letter>d?[^\W\d_][\u0300-\u036f]*)(?:_(?P<sub>[^\W_]{1,5}(?:,\d+)?))?"
    r"|(?P<word>[a-z]+)(?:_(?P<short>[^\W_]{1,2}))?)"
    r"(?:\^(?=.)(?P<sup>(?:[^\W_]{1,3})?(?:\(\d+\))?))?"
)


def clean(text: str, longest: int = LONGEST) -> str:
    """One line of printable text. Backslashes become ∖: DOT would expand \\N even in HTML-like labels."""
    return one_line(text, longest).replace("\\", "∖")


def one_line(text: str, longest: int = LONGEST) -> str:
    """Line breaks, tabs become spaces, nothing ∅, a control character its escape; cut in the middle."""
    text = str(text)
    if not text.isprintable():
        text = "".join(" " if c in "\n\r\t\v\f\x85\u2028\u2029" else _printable(c) for c in text)
    text = " ".join(text.split())
    if len(text) > longest:
        end = longest // 3  # where names of one module differ
        text = text[: longest - 1 - end] + "…" + text[-end:]
    return text or "∅"


def token(text: str, longest: int) -> str:
    """A token in one line: a space is written ·, the end of a line ¶, a tab →, a return \\r."""
    return one_line(str(text).translate(VISIBLE), longest)


def _printable(c: str) -> str:
    """A character, or \\u202e for one that is not seen but moves, hides or breaks the text around it.

    The two joiners, U+200C and U+200D, only choose the shapes of their neighbours (Persian, emoji).
    """
    hidden = unicodedata.category(c) in ("Cc", "Cf", "Cs") and c not in "\u200c\u200d"
    return c.encode("unicode_escape").decode() if hidden or c in "\ufffe\uffff" else c


def escape(text: str) -> str:
    """Text as it stands between the tags of an HTML-like label."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def quote(text: str) -> str:
    """A DOT string. It is HTML-escaped too, since Graphviz reads entities in tooltips; newlines are kept."""
    lines = [escape(clean(line, 2000)) for line in text.split("\n") if line.strip()]
    return '"' + "&#10;".join(lines) + '"'


def safe(text: str) -> str:
    """An id: only letters, digits and _ + . - (W^Q → W_Q)."""
    text = unicodedata.normalize("NFD", text.replace("^", "_"))
    return re.sub(r"[^A-Za-z0-9_+.-]", "", text)[:LONGEST] or "x"


def indexed(symbol: str, index: str) -> str:
    """The symbol with one more subscript: W^Q → W_1^Q, b_Q → b_Q,1."""
    base, _, sup = symbol.partition("^")
    return f"{base}{',' if '_' in base else '_'}{index}{'^' if sup else ''}{sup}"


def which(symbol: str, number: int) -> str:
    """The symbol as one of several that layers call so: W^Q → W^Q(2). A subscript would say head 2."""
    return f"{symbol}{'' if '^' in symbol else '^'}({number})"


@functools.lru_cache(maxsize=10_000)
def html(symbol: str) -> str:
    """A symbol as HTML-like label: letters italic, digits and words upright, subscript before superscript."""
    parts = SYMBOL.fullmatch(symbol) if len(symbol) <= LONGEST else None
    if parts is None:
        return escape(clean(symbol))
    base, sub, sup = parts["letter"] or parts["word"], parts["sub"] or parts["short"], parts["sup"] or ""
    text = _italic(base)
    text += f"<SUB>{','.join(map(_italic, sub.split(',')))}</SUB>" if sub else ""
    letters, bracket, number = sup.partition("(")
    return text + (f"<SUP>{_italic(letters)}{bracket}{number}</SUP>" if sup else "")


def _italic(text: str) -> str:
    letters = re.sub(r"[\u0300-\u036f]", "", unicodedata.normalize("NFD", text))
    short = len(letters) == 1 or re.fullmatch("d[A-Za-z]", letters)
    letter = short and letters.isalpha() and letters != "Σ"
    return f"<I>{escape(text)}</I>" if letter else escape(text)


def untagged(html_text: str) -> str:
    """A label as plain text: b_K, W^Q, Kᵀ."""
    text = html_text.replace("<SUP>T</SUP>", "ᵀ").replace("<SUB>", "_").replace("<SUP>", "^")
    return html_lib.unescape(re.sub(r"<[^>]*>", "", text))


def words(labels: Iterable[str]) -> set[str]:
    """The words in labels, and ∘: d_k of √d_k, mask( of a call. 400 B is one, and no letter B."""
    return set(re.findall(r"\b\d+ B\b|\w+\(?|∘", untagged(" ".join(labels).replace("<BR/>", " "))))
