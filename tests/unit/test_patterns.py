"""Regular expressions mean the same on every Python that specgate supports."""

import ast
import re._constants as op
import re._parser as parser
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
POSSESSIVE = ("*+", "++", "?+", "}+")
ONE = {op.LITERAL, op.NOT_LITERAL, op.IN, op.ANY}  # a character, whose absence moves nothing


def possessive_patterns() -> dict[str, str | bytes]:
    found: dict[str, str | bytes] = {}
    for path in sorted((*ROOT.glob("serve/**/*.py"), *ROOT.glob("policies/**/*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(attr="compile"), args=[ast.Constant(str() | bytes() as text), *_]):
                    if any(sign in repr(text) for sign in POSSESSIVE):
                        found[f"{path.relative_to(ROOT)}:{node.lineno}"] = text
    return found


def stays_until_it_fails(body: Any) -> bool:
    """Tells of what a possessive repeat repeats whether it is back where it began when it fails.

    Before Python 3.11.5 the repeat ended behind what part of it had read (python/cpython#106052), where that part was
    a repeat, or an alternative behind something else.
    """
    *before, (last, inner) = body
    if any(kind not in ONE for kind, _ in before):
        return False
    if last is op.BRANCH:
        return not before and all(not branch or stays_until_it_fails(branch) for branch in inner[1])
    if last in {op.SUBPATTERN, op.ATOMIC_GROUP}:
        return not before and stays_until_it_fails(inner[-1] if last is op.SUBPATTERN else inner)
    if last is op.POSSESSIVE_REPEAT:
        return stays_until_it_fails(inner[2])
    return last in {op.FAILURE, op.ASSERT_NOT, *ONE}


def repeated(pattern: Any) -> list[Any]:
    """Returns what possessive repeats repeat, at any depth."""
    bodies: list[Any] = []
    for kind, inner in pattern:
        if kind is op.POSSESSIVE_REPEAT:
            bodies.append(inner[2])
        parts = inner if isinstance(inner, tuple) else (inner,)
        for part in parts:
            for sequence in part if isinstance(part, list) else (part,):
                if isinstance(sequence, parser.SubPattern):
                    bodies += repeated(sequence)
    return bodies


PATTERNS = possessive_patterns()


@pytest.mark.parametrize("place", PATTERNS)
def test_a_possessive_repeat_reads_the_same_on_the_first_releases_of_python_3_11(place: str) -> None:
    for body in repeated(parser.parse(PATTERNS[place])):
        assert stays_until_it_fails(body), body


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?:ab?c)*+",
        r'(?:\\(?:["n]|u[0-9a-f]{4})[^"\\]*+)*+',
        r'(?:\\["n][^"\\]*+|\\u[0-9a-f][0-9a-f][^"\\]*+)*+',  # the compiler reads `\\` once for both
    ],
)
def test_what_those_releases_misread_is_found(pattern: str) -> None:
    assert not all(map(stays_until_it_fails, repeated(parser.parse(pattern))))
