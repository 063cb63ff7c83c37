"""Verdicts on a pool's engine: the requests that it drafts right and wrong, before it serves (`specgate qualify`)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal, get_args

TestFinding = Literal["passed", "failed", "undecided"]
Unqualified = Literal["trust", "suspect", "quarantine"]

# What each test forbids once it has failed.
FORBIDDEN: Mapping[str, tuple[str, ...]] = {
    "tools": ("tools",),
    "json": ("json",),
    "stop": ("stop",),
    "logprobs": ("logprobs",),
    "long": ("any",),
    "two": ("any",),
    "echo": ("tools", "json"),
}
# Whoever answers a single short request right may yet fail where it is stopped, long, or one of several.
_EVERYWHERE = frozenset(("stop", "long", "two", "echo"))
_VOUCHED: Mapping[str, frozenset[str]] = {
    "tools": _EVERYWHERE | {"tools"},
    "json": _EVERYWHERE | {"json"},
    "plain+logprobs": _EVERYWHERE | {"logprobs"},
    "tools+logprobs": _EVERYWHERE | {"tools", "logprobs"},
    "json+logprobs": _EVERYWHERE | {"json", "logprobs"},
}


@dataclass(frozen=True, slots=True)
class Qualification:
    """The verdicts on one engine, of one version, with one model, drafter and set of arguments.

    Attributes:
        trials: Pairs of answers and identifiers that they rest on.
        expires: The first day on which the verdicts no longer hold.
    """

    tests: Mapping[str, TestFinding]
    trials: int
    on: date
    expires: date

    def holds(self, today: date) -> bool:
        """Returns True if it has not expired."""
        return today < self.expires

    @property
    def passed(self) -> tuple[str, ...]:
        """The request classes that it vouches for."""
        right = {test for test, finding in self.tests.items() if finding == "passed"}
        return tuple(name for name, tests in _VOUCHED.items() if tests <= right)

    @property
    def failed(self) -> tuple[str, ...]:
        """The request classes that must not be drafted."""
        wrong = (FORBIDDEN[test] for test, finding in self.tests.items() if finding == "failed")
        return tuple(dict.fromkeys(name for names in wrong for name in names))

    def __str__(self) -> str:
        by_finding = (
            (finding, [test for test, own in self.tests.items() if own == finding]) for finding in get_args(TestFinding)
        )
        findings = "; ".join(f"{finding}: {', '.join(tests)}" for finding, tests in by_finding if tests)
        return f"qualified on {self.on}, expires {self.expires}: {findings}"

    def to_dict(self) -> dict[str, Any]:
        return {"on": str(self.on), "expires": str(self.expires), "trials": self.trials, "tests": dict(self.tests)}


def standing(qualification: Qualification | None, today: date) -> str:
    """Returns in words how far an engine is qualified."""
    if qualification is None:
        return "not qualified"
    if not qualification.holds(today):
        return f"not qualified any more: the verdicts of {qualification.on} expired on {qualification.expires}"
    return str(qualification)


def known_tests(names: Iterable[str]) -> bool:
    return FORBIDDEN.keys() >= set(names)
