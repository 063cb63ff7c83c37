"""Names that look like a near copy and are derived: what a model makes of a name on purpose.

The rules were found with gold calls of public suites and edits of real source files; `python -m bench.near_copies`
prints how often they let pass what is no slip, and what is one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from unicodedata import normalize

from serve.guard.core.argument_names import (
    DOMAINS,
    ENDINGS,
    LEAST_CHARS,
    digit_turns,
    is_file,
    is_number,
    is_place,
    is_random,
)
from serve.guard.core.slip import NUMBERED, RECORD_DIGITS, Slip

_FEW_LETTERS, _FEW_WORDS = 2, 2
_FEW_DIGITS = 4  # of a number that counts nothing
_MOST_DIGITS = 16
_FIRST_DIGITS = "3"  # as far as people mostly count whose first one has no number
_ROUND_DIGITS = 2  # before the zeros of a round number
_TOKEN_CHARS = 4
_LEAST_REPETITION = 3
_MOST_TURNS = 2  # between letters and digits, that a name with a meaning has: `gpt4o`
_BEGINNING = re.compile(r"[-_./][^\W\d_]")  # of a word, said once more: `core/c/choice.py`
_API_VERSION = re.compile(r"v\d{1,3}")
_FEW_VERSIONS = 3
_ESCAPE = re.compile(r"(%|\\x)[\dA-Fa-f]?$")
_VERSION = re.compile(
    r"\d(?<!\d\d)(\d*(\.\d+)+(\.{2,3}v?\d+(\.\d+)+)?([-.]?(alpha|beta|a|b|rc|dev|post)\.?\d*)?|(?<=v\d)\d*(_\d+)+"
    r"|(?<=0)x0[\da-f]{5}|\d{3}-\d\d-\d\d|(?<=_2)0\d\d[01]\d[0-3]\d(?=_|$))"
    # Builds, and sizes: `b10434`, `dp4ep8`.
    r"|[a-z](?<![^\W_].)((?<=[@-]v)\d+$|(?<=[bvr])\d{4,5}$|[a-z]{1,2}\d{1,2}([a-z]{2,3}\d{1,2}){1,2}(?![^\W_]))"
)
_DIGIT = re.compile(r"\d")
_BRANCHES = frozenset({"HEAD", "main", "master", "latest", "stable", "develop", "trunk"})
_WORD = re.compile(r"[^\W_]+")
_HEXADECIMAL = re.compile(r"[\da-f]+|[\dA-F]+")
_HOST = re.compile(r"\d{1,3}(\.\d{1,3}){3}(:\d+)?")
_LONG_NAME = re.compile(rf"([a-z\d-]+\.){{2,}}({'|'.join(DOMAINS)})|[a-z\d]+([_-][a-z\d]+){{2,}}")  # `a.b.com`, `a_b_c`
_FAMILIAR = re.compile(r"(a?tions?|ings?|ments?|ers?|able|ness|ity|ities|ly|s)$")  # ends of words, which say little
_LEAST_DIGITS_OF_HASH = 12
_NEXT_HASHES = 16
_SHORTENED_CHARS = 8  # of a name, to which people cut hashes and longer ones
_SCHEME = re.compile(r"[a-z][a-z\d+]+:(?=.*[:/].*[:/])")
_JOINED = re.compile(r"[\w :-]*")
_STROKE = re.compile(r"[/\\]")
_MOST_FOLDERS, _ROOTED_PARTS = 2, 3
_SIGNS = frozenset({"-", "_", "", ".", "/"})
_FORMS = frozenset({"", "s", "es", "d", "ed", "r", "er", "ing"})


def is_derived(
    slips: Sequence[Slip], *, creates: bool, creates_file: bool = False, is_like_a_word: Callable[[str], bool]
) -> bool:
    """Returns whether a name was probably meant as it is.

    Args:
        slips: What makes it differ from a name of the prompt.
        creates: Whether the call brings content, so that its names may be new.
        creates_file: Whether it brings one text only, so that its path may be new.
        is_like_a_word: Returns whether something may be a word of the prompt's language.
    """
    if any(map(says_on, slips)):
        return False
    if all(map(_is_next, slips)):  # two make no row unless each would
        return True
    for slip in slips:
        if creates and _is_of_file(slip, creates_file):
            return True
        if says_twice(slip) or misses_folder(slip):
            continue
        for rule in _RULES:
            if rule(slip):
                return True
        may_be_a_token = not creates and slip.said.isalpha() and slip.size <= _TOKEN_CHARS
        if _is_other_word(slip, creates=creates) and not (may_be_a_token and not is_like_a_word(slip.word)):
            return True
    return False


def says_twice(slip: Slip) -> bool:
    """Returns whether the call says a part of the name twice."""
    least = _LEAST_REPETITION
    if slip.said.isalpha() or is_number(slip.source) or _BEGINNING.fullmatch(slip.said):
        least = 2
    if slip.meant or len(slip.said) < least or not any(map(str.isalnum, slip.said)):  # as `../` does on purpose
        return False
    return slip.before.endswith(slip.said) or slip.behind.startswith(slip.said)


def says_on(slip: Slip) -> bool:
    """Returns whether the call says a part of the name three times or more, unless it is of signs or zeros alone."""
    said, row = slip.said, slip.before + slip.said
    if slip.meant or len(said) < _LEAST_REPETITION or not (any(map(str.isalpha, said)) or said.isdigit()):
        return False
    sizes = (size for size in range(1, len(said) // 2 + 1) if len(said) % size == 0)
    return said.strip("0") != "" and any(row[:-size].endswith(said) for size in sizes)


def misses_folder(slip: Slip) -> bool:
    """Returns whether a path lacks one or two of the folders within it, and nothing else."""
    missing = len(_STROKE.findall(slip.meant))
    if slip.said or not 0 < missing <= _MOST_FOLDERS or any(map(str.isspace, slip.meant)):
        return False
    name, source = (_STROKE.split(path) for path in (slip.name, slip.source))
    start = next((at for at, (a, b) in enumerate(zip(name, source, strict=False)) if a != b), len(name))
    if not any(name[:start]) and len(name) <= _ROOTED_PARTS:
        return False  # `/docs` may be that of another root
    return 0 < start < len(name) and name[start:] == source[start + missing :] and "" not in source[start:]


def is_torn_path(slip: Slip) -> bool:
    """Returns whether a path of several folders lacks the first letters of its first one: `rve/guard/core`."""
    is_within = slip.meant[-1:].isalnum() and slip.behind[:1].isalnum()
    return not slip.said and not slip.before and is_within and slip.behind.count("/") > 1


def is_stray_capital(slip: Slip) -> bool:
    """Returns whether the case differs where nobody means it: `guArd/x`, `Guard/x`, `GUARD/core/x`, `tCK-2024`.

    The first letter of a name, of a file's and of a symbol's second word may be meant, and all that has humps.
    """
    source, word = slip.source, slip.source_word
    if slip.said.casefold() != slip.meant.casefold() or not (word.islower() or word.isupper()):
        return False
    is_folder = "/" in slip.behind and source.count("/") > 1
    if _is_host(source) or (is_file(source) and slip.start > source.rfind(".")):
        return True
    if slip.size != 1:  # `near-COPIES.md`
        return is_folder or (source.islower() and ("@" in source or (slip.before != "" and _is_long(slip))))
    if not any(sign in source for sign in "/\\_@:-"):
        return False
    if slip.before[-1:].isalpha() or (slip.meant.isupper() and slip.behind[:1].isalpha()):
        return True
    if is_folder:
        return source.rpartition("/")[0].islower()
    return source.islower() and slip.before != "" and _is_long(slip)


def is_of_domain(slip: Slip) -> bool:
    """Returns whether a difference lies in the last part of a host's name."""
    return "." not in slip.behind and (_is_host(slip.source) or _is_host(slip.name))


def _is_host(name: str) -> bool:
    """Returns whether a name is a host's, and not shorter than `a.b.com`."""
    return "." in name and _LONG_NAME.fullmatch(name) is not None


def _is_long(slip: Slip) -> bool:
    """Returns whether a difference lies behind the first of three words or more, or behind an `@`."""
    return "@" in slip.before or ("/" not in slip.before[-1:] and sum(1 for _ in _words(slip.source)) > _FEW_WORDS)


def _is_uneven(slip: Slip) -> bool:
    """Returns whether a sign between words differs where the same word of signs has others like it: `a_b-c`, `ab-c`."""
    sign = slip.meant
    if len(sign) != 1 or sign not in "-_ :":
        return False
    if sign in "".join(slip.around(_JOINED)) or "@" in slip.behind:
        return True
    if slip.said and slip.said in _SIGNS:
        return slip.is_opaque
    return digit_turns(slip.word) > _MOST_TURNS and is_random(slip.word)


def _is_other_sign(slip: Slip) -> bool:
    """Returns whether a path or an address has another sign in one place: `core/near-copies.py`, `https//a.b.com`."""
    said, meant, source = slip.said, slip.meant, slip.source
    if slip.size <= 2 and "://" in source and "://" not in slip.name:
        return True
    if slip.size != 1 or not {said, meant} <= _SIGNS or not (slip.before and slip.behind):
        return False
    if is_file(source) and ((meant == "." and slip.behind in ENDINGS) or (meant == "/" and not said)):
        return True
    if not meant and not (slip.before[-1].isalnum() and slip.behind[0].isalnum()):
        return said == "." and is_file(source) and "." in (slip.before[-1], slip.behind[0])
    if _is_host(source) or ("@" in source and meant):
        return True
    if meant == "/" and said in {"-", "."} and is_file(slip.name):
        return True
    others = slip.before + slip.behind if {said, meant} & {".", "/"} else source
    return _STROKE.search(others) is not None and (said != "" or meant in "-_" or is_place(slip.name))


def _is_other_spelling(slip: Slip) -> bool:
    """Capitals, the signs between words, or other code points: `foo-bar` for `foo_bar`, 1,000 for 1000."""
    said, meant = _letters(slip.said), _letters(slip.meant)
    is_same = said.casefold() == meant.casefold()
    if not is_same and (slip.name.isascii() or normalize("NFKC", slip.name) != normalize("NFKC", slip.source)):
        return False
    if _is_uneven(slip) or is_stray_capital(slip) or _is_other_sign(slip):
        return False
    if not is_same or said == meant or not slip.is_opaque:
        return True
    # As who writes `W2378156` for a user's `w2378156`.
    return slip.said.casefold() == slip.meant.casefold() and (slip.name.isupper() or slip.name.islower())


def _is_longer_or_shorter(slip: Slip) -> bool:
    """Returns whether only more or less stands before or behind: `US91488179`, a path from another folder."""
    if slip.said and slip.meant:
        return False
    if _is_uneven(slip) or _is_other_sign(slip) or _is_fused(slip) or _has_stray_beginning(slip):
        return False
    more = slip.said or slip.meant
    if slip.said.isalnum() and slip.before[-1:].isalnum() and is_file(slip.source) and not is_file(slip.name):
        return False  # `main.pypy`
    if more in "vV" and not slip.before and slip.behind[:1].isdigit():
        return True
    is_within = slip.before != "" and slip.behind != ""
    if more.isalpha() and not is_within and _letters(slip.name).isdigit() != _letters(slip.source).isdigit():
        return True
    if _is_cut(slip):
        return False
    if is_within:
        return not more.isalnum()
    neighbour = slip.behind[:1] if slip.behind else slip.before[-1:]
    return not neighbour.isalnum() or len(more) > 1


def _is_fused(slip: Slip) -> bool:
    """Returns whether two words run into each other and a part of one is lost: `com/googleson` for `google/gson`."""
    said, meant = slip.said, slip.meant
    if (said and not said.isalnum()) or meant.isalnum() or not any(map(str.isalnum, meant)) or " " in meant:
        return False
    if "@" in slip.before + meant and "." in meant and "." not in said + slip.behind:
        return True  # a host without a domain
    if slip.before and (meant[0] == "@" or (said and slip.behind[:1] == "@" and not meant[0].isalnum())):
        return True
    if said and slip.behind and meant[0] == "/" and slip.before[-1:].isalnum():
        return True
    if not said and meant[0] == "/" and slip.behind[:1] in {"-", "_"}:
        return slip.before[-1:].isalnum()  # `gateway_watch.py` for `gateway/engine_watch.py`
    if not (slip.before[-1:].isalnum() and slip.behind[:1].isalnum()):
        return False
    is_torn = said != "" or meant[0].isalnum() != meant[-1].isalnum()
    return is_torn and (_STROKE.search(slip.source) is not None or "@" in slip.source or _is_long(slip))


def _has_stray_beginning(slip: Slip) -> bool:
    """Returns whether letters precede the first word of a path, an address or an opaque name: `hausdocs/conf.py`."""
    if slip.before or slip.meant or not (len(slip.said) > 1 and slip.said.isalpha() and slip.behind[:1].isalnum()):
        return False
    if "@" in slip.behind or _STROKE.search(slip.behind.rstrip("/\\")):
        return True
    if _letters(slip.source).isdigit():
        return slip.source.count("-") > 1
    return slip.is_opaque or (slip.said.islower() and slip.source.isupper() and any(map(str.isdigit, slip.source)))


def _is_cut(slip: Slip) -> bool:
    """Returns whether a name lacks an end of a word that nobody shortens by that much, as of a UUID; or of a path."""
    if slip.said or (slip.before and slip.behind) or _HOST.fullmatch(slip.source):
        return False
    a, b = (slip.meant[-1], slip.behind[0]) if slip.behind else (slip.before[-1], slip.meant[0])
    is_within = a.isalnum() and b.isalnum()
    if slip.meant.isdigit() and b == "-" and slip.behind.count("-") > 1:
        return True  # a telephone number without its area
    if slip.behind and (b == ":" or (b == "_" and ("@" in slip.behind or _is_of_record(slip)))):
        return slip.meant.isalnum() and len(slip.meant) <= _TOKEN_CHARS
    if slip.is_opaque:
        is_code = slip.behind != "" and _letters(slip.source).isdigit()  # of a country
        least = _SHORTENED_CHARS if _HEXADECIMAL.fullmatch(slip.word) and not slip.word.isdigit() else LEAST_CHARS
        return is_within and not is_code and len(slip.name) > least and 2 * len(slip.meant) < len(slip.name)
    if len(slip.meant) > _TOKEN_CHARS:
        return False
    if slip.behind:
        has_more = "/" in slip.behind.rstrip("/") or "@" in slip.behind or _LONG_NAME.fullmatch(slip.source) is not None
        return is_within and slip.meant.isalnum() and has_more
    if is_within and (_LONG_NAME.fullmatch(slip.source) or "@" in slip.before or _SCHEME.match(slip.source)):
        return True
    if is_within and slip.meant.isdigit():
        return not _is_counted(slip.source_number)
    is_torn = (is_within or a == "_" == b) and not is_file(slip.name)
    return (is_torn or a == ".") and is_file(slip.source)


def _is_of_record(slip: Slip) -> bool:
    """Returns whether a difference is in an opaque name or precedes one: `call` in `call_Zk3vQ81m`."""
    record = next(_words(slip.behind), "")
    return slip.is_opaque or (digit_turns(record) > 1 and is_random(record))


def _is_other_form(slip: Slip) -> bool:
    """Another form of a word, such as its plural, or a numbered one of what was several: `note1` for `notes`."""
    at_end = not slip.behind[:1].isalnum()
    if at_end and slip.meant == "s" and slip.said.isdigit() and slip.source_word.isalpha():
        return True
    is_form = at_end and slip.word.isalpha() and {slip.said, slip.meant} <= _FORMS and not slip.is_opaque
    return is_form and not (len(slip.meant) > 1 and _is_cut(slip)) and is_file(slip.name) >= is_file(slip.source)


def _is_next(slip: Slip) -> bool:
    return _is_next_number(slip) or _is_next_hash(slip)


def _is_next_number(slip: Slip) -> bool:
    """The next in a row, a number of few digits beside a word, another number of zeros."""
    if not (slip.said + slip.meant).isdecimal() or slip.swaps or _HOST.fullmatch(slip.source):
        return False
    said, meant = slip.number, slip.source_number
    if _is_no_version(slip):
        return False
    if not (said and meant) and _is_no_count(slip):
        return False
    if _is_counted(said) and _is_counted(meant) and "@" not in slip.name and not slip.is_opaque:
        return True
    if all(number.endswith("00") and len(number.strip("0")) <= _ROUND_DIGITS for number in (said, meant)):
        return True
    if is_number(slip.name) and said.strip("0") == meant.strip("0"):
        return True
    near = 1 if slip.size == 1 else 10
    return RECORD_DIGITS <= len(said) < _MOST_DIGITS and bool(meant) and 0 < abs(int(said) - int(meant)) <= near


def _is_no_version(slip: Slip) -> bool:
    """Returns whether a path has another word for a version, or a version far from it: `/t5` or `/v31` for `/v1`."""
    if not _API_VERSION.fullmatch(slip.source_word) or _STROKE.search(slip.before) is None:
        return False
    said = _API_VERSION.fullmatch(slip.word)
    return said is None or abs(int(said[0][1:]) - int(slip.source_word[1:])) > _FEW_VERSIONS


def _is_no_count(slip: Slip) -> bool:
    """Returns whether a digit is where none counts: within or before a word, high behind one that had none."""
    before, behind = slip.before[-1:], slip.behind[:1]
    if slip.meant:
        return len(slip.word) == 1 and slip.word.isalpha()  # `/v` for `/v1`
    if behind.islower() and (before.islower() or not before.isalnum()):
        return True
    return before.islower() and (slip.said > _FIRST_DIGITS or "/" in slip.behind)


def _is_next_hash(slip: Slip) -> bool:
    """One that follows in a row of hexadecimal numbers, as serial numbers and identifiers of documents do."""
    if slip.behind[:1].isalnum() or slip.swaps:
        return False
    word, source = slip.word, slip.source_word
    if not len(word) == len(source) >= _LEAST_DIGITS_OF_HASH:
        return False
    if not (_HEXADECIMAL.fullmatch(word) and _HEXADECIMAL.fullmatch(source)) or word.isdigit():
        return False
    return abs(int(word, 16) - int(source, 16)) <= (1 if slip.size == 1 else _NEXT_HASHES)


def _is_counted(number: str) -> bool:
    """Returns whether digits are few, but for zeros before them: a page, a step, `adr/0042`."""
    return len(number.lstrip("0")) < _FEW_DIGITS


def _is_other_kind_of_file(slip: Slip) -> bool:
    """The same name with another ending."""
    stem, dot, ending = slip.name.rpartition(".")
    is_ending = dot != "" and slip.start > len(stem) and ending in ENDINGS
    return is_ending and "@" not in slip.name and not is_of_domain(slip)


def _is_other_version(slip: Slip) -> bool:
    """Another version or date of the same: `tox==4.2.1` for `tox==4.1.0`, `setup@v4` for `setup@v3`."""
    if _DIGIT.search(slip.source) is None or is_number(slip.source) or _HOST.fullmatch(slip.source):
        return False
    end = slip.start + len(slip.meant)
    return any(found.start() <= slip.start and end <= found.end() for found in _VERSION.finditer(slip.source))


def _is_placeholder(slip: Slip) -> bool:
    """An `x` for any digits: `lock.31x.toml` for `lock.314.toml`."""
    parts = (slip.said.casefold(), slip.meant.casefold())
    return "x" in parts and any(map(str.isdigit, parts)) and not slip.is_opaque


def _is_other_branch(slip: Slip) -> bool:
    """The usual names of branches and versions in the place of each other."""
    return {slip.word, slip.source_word} <= _BRANCHES


def _is_other_letter(slip: Slip) -> bool:
    """A letter or two that stand alone, as of a zone or a language: `us-east1-c` for `us-east1-b`."""
    word, source = slip.word, slip.source_word
    few = word.isalpha() and source.isalpha() and word.isascii() and max(len(word), len(source)) <= _FEW_LETTERS
    return few and not slip.swaps and source not in ENDINGS and not slip.is_opaque and not is_of_domain(slip)


def _is_escape(slip: Slip) -> bool:
    """A code for a character, as in URLs."""
    return "%" in slip.said + slip.meant or _ESCAPE.search(slip.before[-3:]) is not None


def _is_other_hump(slip: Slip) -> bool:
    """Another word among those of a symbol: `K8sPodDiscovery` for `K8sDiscovery`."""
    parts = [part for part in (slip.said, slip.meant) if part]
    if not parts[0][0].isupper() or len(parts[0]) == 1 or not all(map(_is_hump, parts)):
        return False
    if slip.before[-1:].isupper() or not (slip.behind[:1].isupper() or not slip.behind):
        return False
    return sum(map(str.isdigit, slip.source)) <= 1 or not slip.is_opaque


def _is_hump(part: str) -> bool:
    """Returns whether a part is a capital and letters, if with a digit behind them: `UTF8`."""
    return part[0].isupper() and part.rstrip("0123456789").isalpha() and part[:2].isalpha()


def _is_other_parameter(slip: Slip) -> bool:
    """Another word in a query: `sort=desc` for `sort=asc`."""
    is_word = slip.word.isalpha() and slip.source_word.isalpha()
    return "?" in slip.before and slip.size > 1 and not slip.swaps and is_word


def _is_somebody_else(slip: Slip) -> bool:
    """Another person's address at the same host."""
    person = slip.source.partition("@")[0]
    return "@" in slip.behind and slip.size > 1 and 2 * len(slip.meant) > len(person)


def _is_other_host(slip: Slip) -> bool:
    """Another host of the same network."""
    if "." in slip.said + slip.meant + slip.behind or slip.swaps or _HOST.fullmatch(slip.name) is None:
        return False
    return abs(int(slip.number or 0) - int(slip.source_number or 0)) <= 1


_RULES = (
    _is_other_spelling, _is_longer_or_shorter, _is_other_form, _is_other_kind_of_file, _is_other_version,
    _is_placeholder, _is_other_branch, _is_other_letter, _is_other_hump, _is_escape, _is_other_host,
    _is_somebody_else, _is_other_parameter,
)  # fmt: skip


def _is_other_word(slip: Slip, *, creates: bool) -> bool:
    """Another word, as another file's name has; not another token within one."""
    if slip.size <= 1:
        return False
    if any(holds(slip) for holds in (_has_no_ending, _is_cut, _is_fused, _is_no_version, is_stray_capital)):
        return False
    if not (slip.said + slip.meant).isalnum():
        return True
    if not slip.said and slip.before[-1] in "._-" and slip.behind[:1] in tuple("._-/"):
        return False  # `build..kts`: a word is lost, and neither of its signs
    if creates and _is_numbered_symbol(slip):
        return True
    if slip.is_opaque:
        is_longer = slip.size > _TOKEN_CHARS  # one of a family, as the editors of projects number things
        return _is_kind(slip) or (is_longer and (creates or slip.source.isupper()))
    if creates:
        return True
    if (slip.said + slip.meant).isdigit():
        return "@" not in slip.name and _is_counted(slip.source_number)
    if is_of_domain(slip) or "@" in slip.name or _STROKE.search(slip.behind.rstrip("/\\")):
        return False
    stem = _FAMILIAR.sub("", slip.source_word)
    kept = len(stem) - len(slip.meant)
    return kept < 2 or 2 * kept < len(stem)  # one letter, or less than half of the word, may be chance


def _is_of_file(slip: Slip, creates_file: bool) -> bool:
    """Returns whether a file says it shortly on purpose, or it is a new file's path with another name or folders."""
    if not slip.said and not (slip.before and slip.behind):
        return True
    in_name = "/" not in slip.behind and not slip.is_opaque
    return creates_file and is_place(slip.name) and (in_name or "/" in slip.said + slip.meant)


def _has_no_ending(slip: Slip) -> bool:
    """Returns whether letters stand in the place of a file's ending that no file has."""
    is_ending = slip.start >= slip.source.rfind(".")
    return is_ending and slip.said.isalpha() and is_file(slip.source) and not is_file(slip.name)


def _is_numbered_symbol(slip: Slip) -> bool:
    """Returns whether what differs is a symbol's number: `r2770_ignore_error` for `r3067_ignore_error`."""
    if not (slip.said + slip.meant).isdigit() or not NUMBERED.match(slip.word):
        return False
    return sum(word.isalpha() and len(word) >= _TOKEN_CHARS for word in _words(slip.name)) > 1


def _is_kind(slip: Slip) -> bool:
    """Returns whether the difference says of what kind a record is: `chk_83f5` for `dbc_83f5`."""
    record = next(_words(slip.behind), "")
    is_word = slip.said == slip.word and slip.said.isalpha() and slip.said.islower()
    return is_word and not slip.before and not record.isalpha()


def _words(name: str) -> Iterator[str]:
    return (found[0] for found in _WORD.finditer(name))


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name))
