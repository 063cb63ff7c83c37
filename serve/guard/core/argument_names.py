"""Names in a call's arguments: paths, addresses, identifiers, numbers; what is copied and not made up.

And what a name is without what nobody writes on purpose: signs that look like others, a space.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any
from unicodedata import normalize

import msgspec

from serve.request.completion import MALFORMED

_DASHES = (*range(0x2010, 0x2016), 0x2212)
_INVISIBLE = (0xAD, *range(0x200B, 0x200E), 0x2060, 0xFEFF)
_PLAIN = {**dict.fromkeys(_DASHES, "-"), **dict.fromkeys(_INVISIBLE)}
_LIKE_ASCII = "".join(map(chr, (*_DASHES, *_INVISIBLE)))  # that are no letters and stand in names by mistake only

LEAST_CHARS = 5
_MOST_CHARS = 256
_LONG_CHARS = 1000  # from there on a text is content, in which only opaque names are copies
_SYMBOL_CHARS, _RANDOM_CHARS = 8, 8
_MOST_VALUES = 2000  # of one call that are looked at
_LEAST_FIGURES = 4  # of a number, without the zeros that round it

_PROGRAMS = """
    awk bash bun cargo cat cd chmod chown cp curl deno diff docker dotnet du echo env find git go grep gunzip gzip head
    helm java kill kubectl less ln ls make mkdir more mv node npm npx open pip pnpm poetry psql pytest python python3 rg
    rm rsync ruby scp sed sh sort source ssh sqlite3 stat tail tar tee touch tsc uniq unzip uv vi vim wc wget which
    xargs yarn zip
"""

_PICTURES = "\u2600-\u27bf\ufe0f\U0001f000-\U0001faff"
_WHOLE = re.compile(rf"[\w./\\:@#+~%?&={_LIKE_ASCII}{_PICTURES}-]+")
# A path with spaces in it, from a root on.
_WORDS_OF_PATH = re.compile(r"([A-Za-z]:|~|\.{1,2})?[/\\][^\s\"'`<>|;*?$]+( [^\s\"'`<>|;*?$]+)+")
_ADDRESS = re.compile(r"[a-z]+://\S+|[\w.+-]+@[\w-]+\.[\w.-]+")
_IN_LINE = re.compile(r"(?:sha256:)?([^\s\"'`<>|;&(),=\[\]{}*$]{5,256})")
_OPAQUE_IN_LINE = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w-]{8,66}")
_OPAQUE_IN_TEXT = re.compile(
    r"(?<![\w./+-])(?=[\w-]*\d)(?=[\w-]*[A-Za-z])(?:[A-Za-z0-9_-]{12,48}|[\da-f]{49,66})(?![\w/+=-]|\.\w)"
)
# What stands between the words of ASCII that it looks at, each to a space; the words are found faster so.
_BETWEEN_WORDS = str.maketrans({sign: " " for sign in map(chr, range(128)) if not (sign.isalnum() or sign in "_./+=-")})
_LEAST_OPAQUE_CHARS = 12
_BYTE_ORDER_MARK = "\ufeff"
_PATCHED = re.compile(r"^(?:\*\*\* (?:Update|Delete) File: |--- a/)([^\t\r\n]+)", re.MULTILINE)  # a file that is there
_JSON_BEGINS = ("{", "[")
_DIGIT = re.compile(r"\d")
_DIGITS_OR_NONE = re.compile(r"\d+|\D+")
# A line of a file: of a list, a comment, an assignment, or with a lock file's digest.
_FILE_LINE = re.compile(r"\s|[-*+|] |//|/\*|#+ |\[[^\]]*\]: |[\w.]++ :?= |(?:[^=]*+=)+?(?<=[A-Za-z0-9+/]{40}=)")
# A key, or one that opens a block or goes on.
_ENDS_FILE_LINE = ("{", "(", "[", ",", ":", "=>", ");", "};", "];")
_ENCODED = r"(?=.{64}(.{12})?$)(?=.*[a-z])(?=.*[A-Z])[A-Za-z0-9+/]+"  # a line of PEM or MIME
# What a model knows by heart, or writes itself: numbers of a program too.
_KNOWN = re.compile(
    r"(CVE|GO|PYSEC|RUSTSEC|DSA|USN)-\d{4}-\d+|GHSA(-\w{4}){3}|0b[01_]+|0x[\da-f]{1,16}u?l*", re.IGNORECASE
)
_EXPONENT = re.compile(r"[+-]?[\d.]+[eE][+-]?\d+")
_SETTING = re.compile(r"(?:--[\w.-]+|[A-Z][A-Z0-9_]*)=(\S*)")  # only its value is a name
_COMMAND = re.compile(rf"(sudo |[A-Z_]+=\S+ )*({'|'.join(_PROGRAMS.split())}|SELECT|INSERT INTO|DELETE FROM|UPDATE) ")
_PROSE = re.compile(r"[A-Z][A-Za-z']* [^<>{}=;\"`]+")
_HUMP_OR_RUN = re.compile(r"[A-Z][a-z]{2,}|[a-z]{3,}|[A-Z]{4,}")
_SPOKEN = re.compile(r"[^aeiouy]{0,3}([aeiouy]{1,3}[^aeiouy]{1,3})*[aeiouy]{1,3}[^aeiouy]{0,3}")
_GROUPED = re.compile(r"[+(]?(?=(?:\D*\d){8})[\dA-Z][\dA-Z ()./-]{7,48}")
_SYMBOL = re.compile(r"[\w.-]*\w")
_WORD = re.compile(r"[^\W_]+")
_TWO_WORDS = re.compile(r"[^\W_][\W_]+[^\W_]")
_JOINTS = "_-#"
_PUNCTUATION = ".,:;!?"
_DATE = (
    r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([T ].*)?|\d{1,2}(:\d\d){1,2}|\d{4}-\d\d|(\d+[dhms]){2,}|[12]\d{3}[01]\d[0-3]\d"
    r"|1[5-9]\d{8}(\d{3})?(\.\d+)?"  # seconds since 1970, which are computed
)
_MOMENT = re.compile(_DATE)
_NO_NAME = re.compile(rf"{_DATE}|{_EXPONENT.pattern}|{_ENCODED}")
DOMAINS = ("com", "org", "net", "io", "dev", "ai")
_ENDINGS = """
    py pyi pyc pyx ipynb js jsx mjs cjs ts tsx mts vue json jsonl json5 yml yaml toml md mdx rst txt csv tsv c h cc
    hh cpp hpp cxx cs go rs rb php java kt swift scala sh bash zsh bat ps1 sql db html htm css scss sass less xml
    svg png jpg jpeg gif webp pdf doc docx xls xlsx ppt pptx log lock cfg ini conf env gz zip tar tgz bz2 xz whl exe
    bin so proto graphql tf tpl patch diff bak tmp parquet lua ex exs erl hs jl dart gradle kts svelte zig nim wasm
    jar pem sqlite
"""
ENDINGS = frozenset((*_ENDINGS.split(), *DOMAINS))  # of files, and of hosts


def names_in(arguments: Any) -> Iterator[str]:
    """Yields the names in parsed arguments, each of them once."""
    seen: set[str] = set()
    for value in _values(arguments):
        for name in _names_in_text(value) if isinstance(value, str) else _number_in(value):
            if name not in seen:
                seen.add(name)
                yield name


def contents_in(arguments: Any) -> int:
    """Returns how many texts of files there are: several lines, or one that looks so; an old and a new in a patch."""
    values = arguments.values() if isinstance(arguments, dict) else ()
    return sum([_is_content(value) + _is_patch(value) for value in values if isinstance(value, str)])


def is_number(text: str) -> bool:
    """Returns whether a text is a number that nobody rounded."""
    plain = text.translate(_UNSIGNED)
    return plain.isdigit() and len(plain) >= LEAST_CHARS and len(plain.strip("0")) >= _LEAST_FIGURES


def is_place(text: str) -> bool:
    """Returns whether a text is a path, a file's name, a URL or an address of mail."""
    if "/" in text or "\\" in text or "@" in text[1:]:
        return _TWO_WORDS.search(text) is not None
    return is_file(text)


def is_file(text: str) -> bool:
    """Returns whether a text is a file's name, with an ending that files have."""
    stem, _, ending = text.rpartition(".")
    return len(stem) > 2 and ending in ENDINGS


def is_spaced(text: str) -> bool:
    """Returns whether a text may be a path or a file's name with one space too many: `src/ main.py`, `main .py`."""
    before, space, behind = text.partition(" ")
    if not space or " " in behind or not before or not behind:
        return False
    whole = before + behind
    return _WHOLE.fullmatch(whole) is not None and (is_place(whole) or _is_torn(before, behind))


def _is_torn(before: str, behind: str) -> bool:
    """Returns whether a space tears an identifier or a number apart, where people put none: `user_45 16`."""
    whole = before + behind
    if "_" in (before[-1], behind[0]):
        return True
    if len(whole) < LEAST_CHARS or not any(map(str.isdigit, whole)):
        return False
    if before[-1] in _JOINTS or behind[0] in _JOINTS:
        return True
    if digit_turns(whole) > 2 and is_random(whole) and not whole.isupper():
        return True
    return before[-1].isdigit() == behind[0].isdigit() and ("_" in whole or len(behind) <= 2 < len(before))


def digit_turns(text: str) -> int:
    """Returns how often digits follow what is none, or the other way round."""
    return max(len(_DIGITS_OR_NONE.findall(text)) - 1, 0)


def is_random(text: str) -> bool:
    """Returns whether at least half of a text is not words: `9f2c41ab`, and not `Psr17Factory`."""
    signs = sum(map(str.isalnum, text))
    words = (run for run in _HUMP_OR_RUN.findall(text) if run.istitle() or _SPOKEN.fullmatch(run.lower()))
    return 2 * sum(map(len, words)) <= signs


_UNSIGNED = str.maketrans("", "", ".-+: ")


def texts_in(arguments: Any) -> list[str]:
    """Returns the texts in parsed arguments, as far as names are looked for."""
    return [value for value in _values(arguments) if isinstance(value, str)]


def _values(arguments: Any) -> Sequence[Any]:
    waiting = [arguments]
    found: list[Any] = []
    for _ in range(_MOST_VALUES):
        if not waiting:
            break
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += reversed(value.values())
        elif isinstance(value, list):
            waiting += reversed(value)
        elif isinstance(value, str) and value[:1] in _JSON_BEGINS and (inner := _decoded(value)):
            waiting += reversed(texts_in(inner))  # its numbers may be computed
        else:
            found.append(value)
    return found


def _decoded(text: str) -> Any:
    """Returns what a text holds that is an object or a list in JSON, and no file's; else None."""
    try:
        return None if _is_content(text) else msgspec.json.decode(text)
    except MALFORMED:
        return None


def _number_in(value: Any) -> Iterable[str]:
    if not isinstance(value, int | float) or abs(value) > 1e64:  # `str` refuses thousands of digits
        return ()
    text = str(value)
    return (text,) if is_number(text) and not _MOMENT.fullmatch(text) else ()


def _names_in_text(text: str) -> Iterable[str]:
    text = text.removeprefix(_BYTE_ORDER_MARK)
    if text.isascii() and text.isalpha() and text[1:].islower():  # a word, as most texts are
        return ()
    if _is_content(text):
        words = (word for word in text.translate(_BETWEEN_WORDS).split() if len(word) >= _LEAST_OPAQUE_CHARS)
        opaque = (name for word in words if _DIGIT.search(word) for name in _OPAQUE_IN_TEXT.findall(word))
        patched = filter(_is_name, _PATCHED.findall(text)) if _is_patch(text) else ()
        return chain(patched, (name for name in opaque if _has_random_piece(name) and not _MOMENT.match(name)))
    text = text.strip()
    if setting := _SETTING.fullmatch(text):
        text = setting[1]
    if len(text) < LEAST_CHARS:
        return ()
    if len(text) <= _MOST_CHARS and _WHOLE.fullmatch(text):
        return (text,) if _is_name(folded(text)) else ()
    words = (word.strip(_PUNCTUATION) for word in _IN_LINE.findall(text))
    if _COMMAND.match(text):
        return [word for word in words if is_place(word) or (_OPAQUE_IN_LINE.fullmatch(word) and is_random(word))]
    if len(text) <= _MOST_CHARS and is_file(text) and _WORDS_OF_PATH.fullmatch(text):
        return (text,)
    if is_spaced(text):
        return [text, *filter(_is_opaque_in_line, words)]
    if _GROUPED.fullmatch(text):
        return () if _MOMENT.fullmatch(text) else (text,)
    is_prose = _PROSE.fullmatch(text) is not None  # code has other packages, and paths as they are elsewhere
    return [word for word in words if (is_prose and _is_place_in_prose(word)) or _is_opaque_in_line(word)]


def _is_place_in_prose(word: str) -> bool:
    return (is_file(word) and ("/" in word or "\\" in word)) or _ADDRESS.fullmatch(word) is not None


def _is_opaque_in_line(word: str) -> bool:
    return _OPAQUE_IN_LINE.fullmatch(word) is not None and _has_random_piece(word)


def _has_random_piece(word: str) -> bool:
    """Returns whether a part of a word is letters and digits in no order, as nobody writes who programs."""
    pieces = (piece for piece in _WORD.findall(word) if len(piece) >= _RANDOM_CHARS and digit_turns(piece) > 1)
    return any(map(is_random, pieces)) and not _is_known(word)


def _is_known(word: str) -> bool:
    return _KNOWN.fullmatch(word) is not None or _EXPONENT.fullmatch(word) is not None


def _is_content(text: str) -> bool:
    if len(text) > _LONG_CHARS or "\n" in text:
        return True
    return text.endswith(_ENDS_FILE_LINE) or _FILE_LINE.match(text) is not None


def _is_patch(text: str) -> bool:
    return "*** Begin Patch" in text or "--- a/" in text


def _is_name(text: str) -> bool:
    if _NO_NAME.fullmatch(text):
        return False
    return is_place(text) or is_number(text) or _has_letters_and_digits(text) or _is_symbol(text)


def _has_letters_and_digits(text: str) -> bool:
    return not text.isalpha() and any(map(str.isdigit, text)) and any(map(str.isalpha, text))


def _is_symbol(text: str) -> bool:
    """Returns whether a text is a name of several words, as programs have."""
    if len(text) < _SYMBOL_CHARS:
        return False
    is_joined = "_" in text or "-" in text
    if not is_joined and (text.islower() or text.isupper()):  # as nearly all words are, long ones too
        return False
    return _SYMBOL.fullmatch(text) is not None and (
        is_joined or any(a.islower() and b.isupper() for a, b in pairwise(text))
    )


def folded(text: str) -> str:
    """Returns a text in ASCII as far as its characters look like that: `a-b` for an en dash, and full width."""
    return text if text.isascii() else normalize("NFKC", text.translate(_PLAIN))


def plain_spellings(name: str) -> Iterator[str]:
    """Yields what else a name may have been meant to be, each of them in ASCII."""
    plain = folded(name)
    if not plain.isascii():
        return
    is_grouped = plain.upper() == plain and not is_spaced(plain)  # as an IBAN is: people write it either way
    joined = plain if is_grouped else plain.replace(" ", "")
    for spelling in (plain, joined):
        if spelling != name:
            yield spelling
    if "_" in plain and "@" not in plain and not (plain.islower() or _is_in_a_style(plain)):
        yield plain.lower()


def _is_in_a_style(name: str) -> bool:
    """Returns whether the capitals of a name with underscores may be meant, as those of `MAX_SIZE` or `Max_size`."""
    stem = name.rpartition(".")[0] if is_file(name) else name
    few_digits = len(_DIGIT.findall(name)) < _LEAST_FIGURES - 1
    return stem.isupper() or stem.istitle() or (few_digits and stem[1:].islower())
