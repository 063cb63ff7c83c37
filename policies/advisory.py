"""Advisories: strict loading from files, and whether their conditions hold of a pool: true, false or unknown."""

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from policies.classes import masks_of
from policies.errors import PolicyError
from policies.facts import UNKNOWN, PoolFacts, release_of
from policies.model_families import owner, short_name

Test = Callable[[Any], bool | None]

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_COMPARISON = re.compile(r"(<=|>=|==|!=|<|>)\s*(-?\d+(?:\.\d+)?)$")
_BEGIN = frozenset({">=", "==", "~="})  # signs of ranges that begin with the version they name
_PARSED = 1024  # conditions and versions that are kept parsed: an explanation tests the same few against many pools
_SCHEMA = Path(__file__).parent / "advisories" / "schema.json"
MOST_BYTES = 2**20  # of a file
_release = lru_cache(maxsize=_PARSED)(release_of)
_TEXTS = frozenset({"title", "summary", "text", "source", "finding", "claim"})  # of a document
EFFECTS = {"speculative": "forbid", "opt_out": "allow", "standard": "allow"}
_HINTS = {
    "'scope_reason' is a required property": (
        ": `affects` names a family or a model's version; name the broken part instead, or say why it can't be named"
    )
}


@dataclass(frozen=True, slots=True)
class Evidence:
    """One piece of evidence: measured by us, read in the engine's code, or reported by others."""

    kind: str
    source: str
    finding: str
    clean: int | None = None
    n: int | None = None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Cure:
    """A remedy; `change` holds the facts that it changes, if they can be named."""

    text: str
    change: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LastCheck:
    """The day on which the evidence was last gone through, and the newest version of each engine that was looked at."""

    date: date
    engine_versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Advisory:
    """A published fact about a configuration. See docs/how-to/write-an-advisory.md.

    Attributes:
        affects: Alternatives of conditions on a pool's facts.
        unsafe: Request classes, `name+name`.
        kind: `correctness`, or `security`: a hole of the engine, which `specgate doctor` names.
        effects: The consequence for each mode of serving: `speculative`, `opt_out`, `standard`.
        checked: None if nobody has said.
        kills: The engine dies or hangs: a suspicion is enough to forbid.
        garbles: Free text becomes garbage, loops or another request's: a suspicion is enough to keep it away, too.
        scope_reason: Why it names a family or a model's version rather than the broken part; None if it names neither.
        problem: Set if the file could not be read; such an advisory counts as affecting everything.
    """

    id: str
    title: str
    summary: str
    status: str
    severity: str
    affects: tuple[Mapping[str, Any], ...]
    unsafe: tuple[str, ...]
    effects: Mapping[str, str]
    cures: tuple[Cure, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    refuted: tuple[Mapping[str, str], ...] = ()
    kind: str = "correctness"
    checked: LastCheck | None = None
    scope_reason: str | None = None
    kills: bool = False
    garbles: bool = False
    problem: str | None = None

    def matches(self, facts: PoolFacts) -> bool:
        """Returns True if the pool is affected as far as is known; unknown facts count against it."""
        return self.status != "withdrawn" and any(not unmet(conditions, facts) for conditions in self.affects)

    def assumptions(self, facts: PoolFacts) -> tuple[str, ...]:
        """Returns the unknown facts that `matches` rests on; empty if the pool is known to be affected."""
        alternatives = [unknowns(conditions, facts) for conditions in self.affects if not unmet(conditions, facts)]
        return min(alternatives, key=lambda names: (len(names), names), default=())

    @property
    def basis(self) -> str:
        """The kind of evidence for it: `measured n=...` by us, else `advisory`."""
        trials = sum(evidence.n or 0 for evidence in self.evidence if evidence.kind == "measured")
        return f"measured n={trials}" if trials else "advisory"


def load_advisories(folder: str | Path) -> tuple[Advisory, ...]:
    """Reads every `*.yaml` of a folder, sorted by id.

    A file that can't be read becomes an advisory with `problem` set that matches everything, because nobody knows what
    it would have forbidden.

    Raises:
        PolicyError: The folder holds no advisories: the path is wrong.
    """
    paths = sorted(Path(folder).glob("*.yaml"))
    if not paths:
        raise PolicyError(f"{folder} holds no advisories (*.yaml)")
    return tuple(_load(path) for path in paths)


def parse_advisory(document: Any, name: str) -> Advisory:
    """Makes an advisory from a parsed document.

    Raises:
        PolicyError: It breaks the schema, or a range, a comparison or a class in it is invalid.
    """
    problems = sorted(_validator().iter_errors(document), key=lambda error: list(map(str, error.path)))
    if problems:
        where = ".".join(map(str, problems[0].path)) or "(root)"
        raise PolicyError(f"{where}: {problems[0].message}{_HINTS.get(problems[0].message, '')}")
    if document["id"] != name:
        raise PolicyError(f"id {document['id']!r} differs from the file's name {name!r}")
    for conditions in document["affects"]:
        check_conditions(conditions)
    for expression in document["unsafe"]:
        masks_of(expression)
    return Advisory(
        **{key: document[key] for key in ("id", "title", "status", "severity")},
        summary=" ".join(document["summary"].split()),
        affects=tuple(document["affects"]),
        unsafe=tuple(document["unsafe"]),
        effects={**EFFECTS, **document.get("effects", {})},
        cures=tuple(Cure(cure["text"], cure.get("change", {})) for cure in document["cures"]),
        evidence=tuple(_evidence(values) for values in document["evidence"]),
        refuted=tuple(document.get("refuted", ())),
        kind=document.get("kind", "correctness"),
        checked=_checked(document.get("checked")),
        scope_reason=document.get("scope_reason"),
        kills=document.get("kills", False),
        garbles=document.get("garbles", False),
    )


def unreadable(name: str, problem: str) -> Advisory:
    """Returns the substitute for a file that can't be read: nothing speculates until the file is fixed."""
    return Advisory(
        id=name,
        title=f"{name} can't be read",
        summary=f"The advisory can't be read, so it counts as matched: {problem}",
        status="confirmed",
        severity="critical",
        affects=({},),
        unsafe=("any",),
        effects=EFFECTS,
        cures=(Cure("Fix the file; `specgate doctor` names the fault.", {}),),
        problem=problem,
    )


def _load(path: Path) -> Advisory:
    if path.exists() and not path.is_file():  # a pipe would hold whoever reads it for ever
        return unreadable(path.stem, f"{path.name} is not a file")
    try:
        if path.stat().st_size > MOST_BYTES:  # YAML of 20 MB takes a minute to read
            return unreadable(path.stem, f"{path.name} has more than {MOST_BYTES} bytes")
        return _parsed(path.read_text(encoding="utf-8"), path.stem)
    except (OSError, ValueError, RecursionError, yaml.YAMLError, PolicyError) as error:
        return unreadable(path.stem, _said(error)[:300])


def _said(error: Exception) -> str:
    """Returns what is wrong in a file, with its line if that is known."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())


@lru_cache(maxsize=1024)
def _parsed(text: str, name: str) -> Advisory:
    """Parses a file once: a process reads the same files again and again, and reading YAML is slow.

    libyaml would read it ten times faster, and ends the process at a deep nesting.
    """
    # The loader is a safe one: it only leaves dates as text.
    return parse_advisory(yaml.load(text, _Loader), name)


class _Loader(yaml.SafeLoader):
    """Leaves dates as text, which is what the schema can check."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML declares it
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _checked(values: Mapping[str, Any] | None) -> LastCheck | None:
    if values is None:
        return None
    try:
        day = date.fromisoformat(values["date"])
        for version in values["engine_versions"].values():
            Version(version)
    except (ValueError, InvalidVersion) as error:
        raise PolicyError(f"checked: {error}") from error
    return LastCheck(day, values["engine_versions"])


def _evidence(values: Mapping[str, Any]) -> Evidence:
    interval = values.get("interval")
    return Evidence(**{**values, "interval": (interval[0], interval[1]) if interval else None})


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(json.loads(_SCHEMA.read_text(encoding="utf-8")))


def cut_texts(document: str) -> Iterator[str]:
    """Yields `line: text` for each text that YAML cuts at ` #`: what follows is a comment, and silently gone."""
    lines = document.splitlines()
    for key, node in _members(yaml.compose(document, yaml.SafeLoader)):
        if key in _TEXTS and isinstance(node, yaml.ScalarNode) and node.style is None:
            line = node.end_mark.line
            rest = lines[line][node.end_mark.column :] if line < len(lines) else ""
            if rest.lstrip().startswith("#"):
                yield f"{line + 1}: {node.value!r}"


def _members(node: yaml.Node | None) -> Iterator[tuple[str, yaml.Node]]:
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _members(item)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield str(key.value), value
            yield from _members(value)


def unmet(conditions: Mapping[str, Any], facts: PoolFacts) -> bool:
    """Returns True if a condition is known not to hold: the advisory is not about this pool."""
    return any(_value(name, facts, condition) is False for name, condition in _flat(conditions))


def unknowns(conditions: Mapping[str, Any], facts: PoolFacts) -> tuple[str, ...]:
    """Returns the names of the unknown facts that the conditions depend on."""
    return tuple(sorted(name for name, condition in _flat(conditions) if _value(name, facts, condition) is None))


def check_conditions(conditions: Mapping[str, Any]) -> None:
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
        version = _release(str(actual))
        return None if version is None else all(_satisfies(version, part.operator, part) for part in parts)

    return test


def _satisfies(version: Version, sign: str, part: Specifier) -> bool:
    """Returns whether a version is in one part of a range, for engines: a build of a version is that version, and a
    pre-release may lack the fix of the release as well as have its fault.
    """
    if sign == "<":  # PEP 440 leaves 0.20rc1 out of "<0.20"
        return Version(version.public) < Version(part.version)
    if sign == ">":  # and 0.20.post1 out of ">0.20"
        return Version(version.public) > Version(part.version)
    if part.contains(version, prereleases=True):
        return True
    # A range that names a pre-release itself knows in which one it begins.
    may_be_release = (
        sign in _BEGIN and version.is_prerelease and not Version(part.version.removesuffix(".*")).is_prerelease
    )
    return may_be_release and part.contains(version.base_version)


def is_newer(version: str, than: str) -> bool:
    """Returns whether a version of an engine is newer than another; builds of one version are equally new.

    Raises:
        InvalidVersion: One is none.
    """
    return Version(Version(version).public) > Version(Version(than).public)
