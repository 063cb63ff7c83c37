"""Slips as drafters make them, in names of real prompts: `python -m bench.drafted_slips --vocabulary DIR --bfcl DIR`.

A drafter errs by whole tokens, so names are cut as a vocabulary cuts them (`--vocabulary`, a folder of Kimi's): a token
is lost, said twice or over and over, another one, or in its neighbour's place. The rest are what text between two
machines suffers: other signs, capitals, spaces, characters that look the same. The prompts are BFCL's, tau2-bench's and
those of commits (`--repo`), the names are what the right call has of them; each is changed once a kind.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from bench.near_copies import ROOT, Call, edits, gold_calls, suspects, tau2_calls
from bench.public import bfcl
from serve.engine.kimi_tokenizer import KimiTokenizer
from serve.guard.core.argument_names import names_in

_COMMITS = 60


class Vocabulary:
    """Cuts names into tokens, and has others to put in their place.

    Args:
        folder: Of a Kimi model.
    """

    def __init__(self, folder: Path) -> None:
        self._encoding = KimiTokenizer.from_dir(folder).encoding
        tokens = (self._text(token) for token in range(self._encoding.n_vocab))
        self._words = [token for token in tokens if token.isascii() and token.isalpha() and 2 <= len(token) <= 5]

    def cut(self, name: str) -> list[str]:
        """Returns the tokens of a name."""
        return [self._text(token) for token in self._encoding.encode_ordinary(name)]

    def other(self, token: str, chance: random.Random) -> str:
        """Returns another token: as many digits, or a word as long and in the same case."""
        if token.isdigit():
            return "".join(chance.choice("0123456789") for _ in token)
        like = [word for word in self._words if len(word) == len(token) and word.islower() == token.islower()]
        return chance.choice(like or self._words)

    def _text(self, token: int) -> str:
        try:
            return self._encoding.decode_single_token_bytes(token).decode(errors="replace")
        except KeyError:
            return ""


Tokens = list[str]
Change = Callable[[Tokens, int, Vocabulary, random.Random], Tokens]


def _swapped(tokens: Tokens, at: int, _: Vocabulary, __: random.Random) -> Tokens:
    words = [place for place in range(at, len(tokens)) if tokens[place].isalnum()]
    for a, b in islice(pairwise(words), 1):
        tokens[a], tokens[b] = tokens[b], tokens[a]
    return tokens


_BY_TOKEN: Mapping[str, Change] = {
    "a token is lost": lambda tokens, at, _, __: tokens[:at] + tokens[at + 1 :],
    "is said twice": lambda tokens, at, _, __: tokens[: at + 1] + tokens[at:],
    "four times": lambda tokens, at, _, __: tokens[:at] + 4 * [tokens[at]] + tokens[at + 1 :],
    "another one": lambda tokens, at, all_, chance: [*tokens[:at], all_.other(tokens[at], chance), *tokens[at + 1 :]],
    "one more": lambda tokens, at, all_, chance: [*tokens[:at], all_.other("word", chance), *tokens[at:]],
    "swapped with the next": _swapped,
    "the end is lost": lambda tokens, _, __, ___: tokens[:-1],
    "a space more": lambda tokens, at, _, __: [*tokens[:at], " ", *tokens[at:]] if at else tokens,
}

_WORD = r"[A-Za-z]{2,}"
_BY_SIGN: Mapping[str, tuple[str, Callable[[str, random.Random], str]]] = {
    "another sign": (r"(?<=.)[-_./](?=.)", lambda sign, chance: chance.choice("-_./".replace(sign, ""))),
    "a sign is lost": (r"(?<=.)[-_./:](?=.)", lambda _, __: ""),
    "a typographic dash": ("-", lambda _, chance: chance.choice("\u2010\u2011\u2013\u2212")),
    "a hidden character": (r"(?<=.)\b", lambda _, chance: chance.choice("\u200b\u00ad\u2060\ufeff")),
    "a wide character": (r"[A-Za-z\d]", lambda sign, _: chr(ord(sign) + 0xFEE0)),
    "0 for O, l for 1": ("[0OlI15S8B2]", lambda sign, _: dict(zip("0OlI15S8B2", "O01lIS5B8Z", strict=True))[sign]),
    "a word in other case": (_WORD, lambda word, chance: chance.choice((word.upper(), word.title(), word.lower()))),
}


class Named(NamedTuple):
    """A name of a prompt in a right call.

    Attributes:
        prompt: That has it.
        arguments: Of the call.
        name: In both.
    """

    prompt: str
    arguments: Mapping[str, Any]
    name: str


def named(calls: Iterable[Call], most: int, seed: int = 7) -> list[Named]:
    """Returns names of calls, one of each and each prompt's name once."""
    chance, found = random.Random(seed), dict[str, Named]()
    shuffled = [*calls]
    chance.shuffle(shuffled)
    for prompt, arguments in shuffled:
        names = [name for name in names_in(arguments) if _stands_in(prompt, name) and name not in found]
        if names and not suspects(prompt, arguments):
            name = chance.choice(names)
            found[name] = Named(prompt, arguments, name)
            if len(found) == most:
                break
    return [*found.values()]


def slips(name: str, vocabulary: Vocabulary, chance: random.Random) -> Iterator[tuple[str, str]]:
    """Yields each kind of slip with the name as it makes it; without those that a name can't have."""
    tokens = vocabulary.cut(name)
    places = [at for at, token in enumerate(tokens) if any(map(str.isalnum, token))]
    for kind, change in _BY_TOKEN.items():
        if len(places) > 1:
            yield kind, "".join(change([*tokens], chance.choice(places), vocabulary, chance))
    for kind, (pattern, write) in _BY_SIGN.items():
        if found := [*re.finditer(pattern, name)]:
            sign = chance.choice(found)
            yield kind, f"{name[: sign.start()]}{write(sign[0], chance)}{name[sign.end() :]}"


def found_shares(names: Sequence[Named], vocabulary: Vocabulary) -> dict[str, tuple[int, int]]:
    """Returns for each kind of slip how many were found, and how many were made."""
    shares: dict[str, tuple[int, int]] = {}
    for number, (prompt, arguments, name) in enumerate(names):
        for kind, wrong in slips(name, vocabulary, random.Random(number)):
            if wrong != name and not _stands_in(prompt, wrong):
                found, made = shares.get(kind, (0, 0))
                shares[kind] = found + suspects(prompt, _with(arguments, name, wrong)), made + 1
    return shares


def _stands_in(prompt: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", prompt) is not None


def _with(value: Any, name: str, wrong: str) -> Any:
    if isinstance(value, dict):
        return {key: _with(each, name, wrong) for key, each in value.items()}
    if isinstance(value, list):
        return [_with(each, name, wrong) for each in value]
    if isinstance(value, str):
        return value.replace(name, wrong)
    return wrong if str(value) == name else value


def _paths(repos: Iterable[Path]) -> Iterator[Call]:
    """Yields a call for each file of commits, with its path alone."""
    for repo in repos:
        paths = {arguments["path"]: prompt for prompt, arguments in edits(repo, _COMMITS) if "/" in arguments["path"]}
        yield from ((prompt, {"path": path}) for path, prompt in paths.items())


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=Path, required=True, help="a folder with Kimi's tiktoken.model")
    parser.add_argument("--bfcl", type=Path, default=bfcl.folder(), help="the folder of BFCL_v4_*.json")
    parser.add_argument("--tau2", type=Path, help="the folder of tau2-bench's domains")
    parser.add_argument("--repo", type=Path, action="append", help="a git repository")
    parser.add_argument("--most", type=int, default=200, help="names of each source")
    asked = parser.parse_args()
    sources: dict[str, Iterable[Call]] = {"paths of commits": _paths(asked.repo or [ROOT])}
    if asked.tau2 is not None:
        sources["tau2-bench"] = tau2_calls(asked.tau2)
    if asked.bfcl is not None:
        sources["BFCL"] = gold_calls(asked.bfcl)
    vocabulary = Vocabulary(asked.vocabulary)
    names = {source: named(calls, asked.most) for source, calls in sources.items()}
    shares = {source: found_shares(each, vocabulary) for source, each in names.items()}
    print(f"| slip | {' | '.join(f'{source}, {len(each)} names' for source, each in names.items())} |")
    print(f"|---|{'---|' * len(names)}")
    for kind in (*_BY_TOKEN, *_BY_SIGN):
        cells = (share.get(kind, (0, 0)) for share in shares.values())
        print(f"| {kind} | {' | '.join(f'{found / made:.0%} of {made}' if made else '' for found, made in cells)} |")


if __name__ == "__main__":
    main()
