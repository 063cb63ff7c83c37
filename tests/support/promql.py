"""Reads PromQL as far as tests need it: the selectors of an expression, and the labels that it groups by."""

import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""\s+|\#[^\n]*|(?P<string>"(?:[^"\\]|\\.)*")|(?P<duration>\[[^\]]*\])|(?P<number>\d+(?:\.\d+)?[smhd]?)
    |(?P<name>[A-Za-z_:][\w:]*)|(?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^<>=(){},])""",
    re.VERBOSE,
)
_GROUPING = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_OF_FUNCTIONS = frozenset({"(", "by", "without"})  # behind the name of a function or an aggregation
_OPERATORS = frozenset({"and", "or", "unless", "offset", "bool"})


@dataclass(frozen=True)
class Selector:
    """One selector.

    Attributes:
        metric: The series' name.
        matchers: (label, operator, value).
        next: The token behind it; empty at the end.
    """

    metric: str
    matchers: tuple[tuple[str, str, str], ...]
    next: str


@dataclass(frozen=True)
class Query:
    """An expression.

    Attributes:
        grouped: All labels that it groups or joins by.
    """

    selectors: tuple[Selector, ...]
    grouped: frozenset[str]


def read(expression: str) -> Query:
    """Returns the parts of an expression.

    Raises:
        ValueError: It has a character that PromQL has not, or a selector without an end.
    """
    tokens = _tokens(expression)
    selectors: list[Selector] = []
    grouped: set[str] = set()
    place = 0
    while place < len(tokens):
        token = tokens[place]
        place += 1
        following = tokens[place] if place < len(tokens) else ""
        if token in _GROUPING and following == "(":
            end = tokens.index(")", place)
            grouped.update(name for name in tokens[place + 1 : end] if name != ",")
            place = end + 1
        elif re.match(r"[A-Za-z_:]", token) and token not in _OPERATORS | _GROUPING and following not in _OF_FUNCTIONS:
            matchers: list[tuple[str, str, str]] = []
            if following == "{":
                end = tokens.index("}", place)
                inside = tokens[place + 1 : end]
                matchers = [(inside[at], inside[at + 1], inside[at + 2][1:-1]) for at in range(0, len(inside), 4)]
                place = end + 1
            selectors.append(Selector(token, tuple(matchers), tokens[place] if place < len(tokens) else ""))
    return Query(tuple(selectors), frozenset(grouped))


def _tokens(expression: str) -> list[str]:
    tokens = []
    place = 0
    while place < len(expression):
        found = _TOKEN.match(expression, place)
        if found is None:
            raise ValueError(f"{expression[place : place + 20]!r} is no PromQL")
        place = found.end()
        if found.lastgroup is not None:
            tokens.append(found[0])
    return tokens
