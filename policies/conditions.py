"""Evaluates an advisory's conditions on a pool's facts: true, false or unknown."""

import operator
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from policies.errors import PolicyError
from policies.facts import PoolFacts
from policies.stated_facts import UNKNOWN

Test = Callable[[Any], bool | None]

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_COMPARISON = re.compile(r"(<=|>=|==|!=|<|>)\s*(-?\d+(?:\.\d+)?)$")
_PARSED = 1024  # conditions and versions that are kept parsed: an explanation tests the same few against many pools
# The hub caches a model under models--org--name/snapshots/<hash>; the last part of that path is not its name.
_HUB_FOLDER = re.compile(r"models--([^/]*?)--([^/]+)")
_HUB_NAME = re.compile(r"([^./][^/]*)/[^/]+")


def unmet(conditions: Mapping[str, Any], facts: PoolFacts) -> bool:
    """Returns True if a condition is known not to hold: the advisory is not about this pool."""
    return any(_value(name, facts, condition) is False for name, condition in _flat(conditions))


def unknowns(conditions: Mapping[str, Any], facts: PoolFacts) -> tuple[str, ...]:
    """Returns the names of the unknown facts that the conditions depend on."""
    return tuple(sorted(name for name, condition in _flat(conditions) if _value(name, facts, condition) is None))


def check(conditions: Mapping[str, Any]) -> None:
    """Checks at load time that every condition can be evaluated.

    Raises:
        PolicyError: A version range or a comparison is malformed.
    """
    for name, condition in _flat(conditions):
        _test(name, condition)


def _flat(conditions: Mapping[str, Any]) -> list[tuple[str, Any]]:
    settings = conditions.get("settings", {})
    facts = [(name, condition) for name, condition in conditions.items() if name != "settings"]
    return facts + [(f"settings.{name}", condition) for name, condition in settings.items()]


def _value(name: str, facts: PoolFacts, condition: Any) -> bool | None:
    if name == "method" and facts.method is None:
        return False  # no speculation is a known fact
    if name == "method" and facts.method == UNKNOWN:
        return None
    if name.startswith("settings."):
        actual = facts.settings.get(name.removeprefix("settings."))
    elif name == "drafter_owner":
        actual = None if facts.drafter is None else owner(facts.drafter)
    else:
        actual = getattr(facts, name)
    return None if actual is None else _test(name, condition)(actual)


def _test(name: str, condition: Any) -> Test:
    if isinstance(condition, Mapping):
        inner = _test(name, condition["not"])
        return lambda actual: None if (met := inner(actual)) is None else not met
    if name.endswith("_version") and isinstance(condition, str):
        return _in_range(name, condition)
    if isinstance(condition, bool):
        return lambda actual: bool(actual) is condition
    if isinstance(condition, str) and condition[:1] in "<>=!":
        return _compared(name, condition)
    wanted = condition if isinstance(condition, list) else [condition]
    return lambda actual: any(_same(name, actual, value) for value in wanted)


def _same(name: str, actual: Any, wanted: Any) -> bool:
    if isinstance(actual, bool) or isinstance(wanted, bool) or not isinstance(wanted, str):
        return bool(actual == wanted)
    text = short_name(str(actual)) if name in ("drafter", "family") else str(actual)
    return fnmatchcase(text.lower(), wanted.lower())


def short_name(path: str) -> str:
    """Returns a model's own name, given as `org/name`, as a folder or as a folder of the hub's cache."""
    hub = _HUB_FOLDER.search(path)
    return hub[2] if hub else path.rstrip("/").rsplit("/", 1)[-1]


def owner(path: str) -> str:
    """Returns a model's organisation, given as `org/name` or as a folder of the hub's cache; else an empty text."""
    hub = _HUB_FOLDER.search(path) or _HUB_NAME.fullmatch(path)
    return hub[1] if hub else ""


@lru_cache(maxsize=_PARSED)
def _compared(name: str, condition: str) -> Test:
    parts = [_COMPARISON.match(part.strip()) for part in condition.split(",")]
    bounds = [(_COMPARISONS[part[1]], float(part[2])) for part in parts if part]
    if len(bounds) < len(parts):
        raise PolicyError(f"{name}: {condition!r} is not a comparison with a number, such as '<8' or '>=5,<7'")

    def test(actual: Any) -> bool | None:
        if not isinstance(actual, int | float):
            return None
        return all(compare(actual, number) for compare, number in bounds)

    return test


@lru_cache(maxsize=_PARSED)
def _in_range(name: str, condition: str) -> Test:
    try:
        parts = tuple(SpecifierSet(condition))
    except InvalidSpecifier as error:
        raise PolicyError(f"{name}: {condition!r} is not a PEP 440 version range") from error

    def test(actual: Any) -> bool | None:
        version = _version(str(actual))
        return None if version is None else all(_satisfies(version, part.operator, part) for part in parts)

    return test


@lru_cache(maxsize=_PARSED)
def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _satisfies(version: Version, sign: str, part: Any) -> bool:
    # PEP 440 leaves 0.20rc1 out of "<0.20". A pre-release may lack the fix that the release has: here it is inside.
    if sign == "<":
        return Version(version.public) < Version(part.version)
    return bool(part.contains(version, prereleases=True))
