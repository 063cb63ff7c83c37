"""What a name is without what nobody writes on purpose: signs that look like others, a space, a part said on and on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from unicodedata import normalize

_DASHES = (*range(0x2010, 0x2016), 0x2212)
_INVISIBLE = (0xAD, *range(0x200B, 0x200E), 0x2060, 0xFEFF)
_PLAIN = {**dict.fromkeys(_DASHES, "-"), **dict.fromkeys(_INVISIBLE)}
LIKE_ASCII = "".join(map(chr, (*_DASHES, *_INVISIBLE)))  # that are no letters and stand in names by mistake only
_MOST_TOKENS = 24
_TOKEN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d{1,3}|[^\W_]")  # as vocabularies have them, three digits at a time
_LONG_NUMBER = re.compile(r"(?<!\d)(?:\d{3})+\d{1,2}(?!\d)")
_SIGNS = str.maketrans("", "", "#.-+ ")
_REPEATED = re.compile(r"(\S{2,12}?)\1{2,}")
_LEAST_LEFT = 5  # characters


def folded(text: str) -> str:
    """Returns a text in ASCII as far as its characters look like that: `a-b` for an en dash, and full width."""
    return text if text.isascii() else normalize("NFKC", text.translate(_PLAIN))


def plain_spellings(name: str) -> Iterator[str]:
    """Yields what else a name may have been meant to be, each of them in ASCII."""
    plain = folded(name)
    if not plain.isascii():
        return
    is_grouped = plain.upper() == plain  # digits and capitals, as of an IBAN: people write them either way
    joined = plain if is_grouped else plain.replace(" ", "")
    once = _REPEATED.sub(_once, plain)
    for spelling in (plain, joined, once if len(once) >= _LEAST_LEFT else plain):
        if spelling != name:
            yield spelling


def swapped_tokens(name: str, first: int, last: int) -> Iterator[str]:
    """Yields a name with two neighbours among its tokens in each other's place, unless these are two words alone.

    Args:
        name: To change.
        first: Where at the latest the first of the two begins.
        last: Where at the earliest the last of them ends.
    """
    tokens = [*_TOKEN.finditer(name)]
    least = 2 if name.translate(_SIGNS).isdigit() else 3
    for a, b in pairwise(tokens) if least <= len(tokens) <= _MOST_TOKENS else ():
        if a[0] != b[0] and a.start() <= first and b.end() >= last:
            yield f"{name[: a.start()]}{b[0]}{name[a.end() : b.start()]}{a[0]}{name[b.end() :]}"
    for digits in _LONG_NUMBER.finditer(name):  # whose last token, a shorter one, may have come before the one before
        end, rest = digits.end(), len(digits[0]) % 3
        if end - 3 - rest > first or end < last:
            continue
        yield f"{name[: end - 3 - rest]}{name[end - 3 : end]}{name[end - 3 - rest : end - 3]}{name[end:]}"


def _once(found: re.Match[str]) -> str:
    part, name = found[1], found.string
    is_said = any(map(str.isalpha, part)) or name.isdigit()  # and no `../`, nor what an address has: `10.10.10.7`
    return part if is_said and len(set(part)) > 1 else found[0]
