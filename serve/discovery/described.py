"""Matches engines with their descriptions in files. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packaging.version import InvalidVersion, Version

from policies.command_facts import MODEL, POOL, stated_by
from policies.command_line import EngineCommand
from policies.errors import PolicyError
from policies.facts import UNKNOWN
from serve.discovery.reading import SETTINGS, Finding, Findings, FoundEngine, known

_TELLING = (
    "engine", "engine_version", "speculates", "method", "drafter", "num_speculative_tokens", "tool_parser",
    "reasoning_parser",
)  # fmt: skip
# Parsers whose dialect a forced call shows; any other may read the text of one of these as well.
_TOLD_APART = frozenset(
    ("none", "kimi_k2", "qwen3_coder", "qwen3_xml", "hermes", "glm45", "glm47", "minimax_m2")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DescribedEngine:
    """One engine as a file has it.

    Attributes:
        url: Base URL, without `/v1`; None if the file does not tell.
        names: Under which clients ask for its model now; one may hold a `*`.
        resolve: Each address of the URL's host is an engine.
        command: Its command line; None if the file has none.
    """

    source: str
    url: str | None = None
    key_env: str | None = None
    names: tuple[str, ...] = ()
    resolve: bool = False
    command: EngineCommand | None = None


@dataclass(frozen=True, slots=True)
class Description:
    """The content of a file, as far as engines go.

    Attributes:
        left: What is not carried over, a line each.
    """

    engines: tuple[DescribedEngine, ...] = ()
    left: tuple[str, ...] = ()

    def __add__(self, other: "Description") -> "Description":
        return Description(self.engines + other.engines, self.left + other.left)


def explained(engine: FoundEngine, described: Sequence[DescribedEngine]) -> tuple[FoundEngine, tuple[str, ...]]:
    """Returns an engine with what its command line tells beside its own answers, and what speaks against that.

    Nothing of a command line counts that the engine contradicts: the file is of another engine, or of another day. Of
    the descriptions, that of its URL is meant; else those without a URL which it may be, if they are alike.
    """
    at_url = [each for each in described if each.url == engine.url and each.command is not None]
    nowhere = [each for each in described if each.url is None and each.command is not None]
    candidates, against = at_url or nowhere, []
    fitting: list[tuple[DescribedEngine, Findings]] = []
    for each in candidates:
        assert each.command is not None
        try:
            stated = _findings(each.command, each.source)
        except PolicyError as error:
            return engine, (f"{each.source}: {str(error).removeprefix(f'{MODEL}/{POOL}: ')}; it is ignored here",)
        if said := _other_model(engine.findings, each.command) or contradiction(engine.findings, _telling(stated)):
            against.append(f"{each.source} is not what runs at {engine.url}, and is ignored: {said}")
        else:
            fitting.append((each, stated))
    told = {str({name: finding.value for name, finding in stated.items()}) for _, stated in fitting}
    if len(told) != 1:
        return engine, tuple(against) if at_url else ()
    return replace(engine, findings=completed(engine.findings, fitting[0][1])), ()


def stated_findings(facts: Mapping[str, Any], source: str) -> Findings:
    """Returns the `facts` of a pool as findings, among them as `settings` those that no engine tells."""
    settings = facts.get("settings") or {}
    told = {name: value for name, value in settings.items() if name in SETTINGS and value is not None}
    rest = {name: value for name, value in settings.items() if name not in told}
    values = {name: value for name, value in facts.items() if name != "settings"} | told
    return {
        name: Finding(value, source, "stated")
        for name, value in {**values, **({"settings": rest} if rest else {})}.items()
    }


def completed(found: Findings, stated: Findings) -> Findings:
    """Returns findings with stated ones where an engine does not tell; whether it drafts, it may tell in two ways."""
    in_doubt = (finding := found.get("speculates")) is not None and finding.value is None
    missing = {
        name: finding
        for name, finding in stated.items()
        if known(found, name) is None and not (in_doubt and name in ("speculates", "method"))
    }
    return {**found, **missing}


def contradiction(found: Findings, stated: Findings) -> str | None:
    """Returns what an engine denies of what is stated of it, with both texts; None if nothing."""
    for name, said in stated.items():
        finding = found.get(name)
        if finding is not None and finding.value is not None and _denies(name, finding, said.value):
            return f"{name} is {said.value} ({said.source}), and the engine says {finding.value} ({finding.source})"
    return None


def with_names(
    models: Mapping[str, Mapping[str, Any]], described: Iterable[DescribedEngine]
) -> tuple[dict[str, dict[str, Any]], tuple[str, ...]]:
    """Returns models with the names under which clients ask for them now as aliases, and what did not become one."""
    named = {name: dict(model) for name, model in models.items()}
    owners: dict[str, str] = {
        alias: name for name, model in named.items() for alias in (name, *model.get("aliases", ()))
    }
    left = []
    for each in described:
        model = next((name for name, model in named.items() if _serves(model, each)), None)
        for alias in each.names if model is not None else ():
            owner = owners.setdefault(alias, str(model))
            if owner != model:
                left.append(f"the name {alias} stands for {model} as well; here it is {owner}")
            elif alias != model and alias not in named[owner].get("aliases", ()):
                named[owner]["aliases"] = [*named[owner].get("aliases", ()), alias]
    return named, tuple(dict.fromkeys(left))


def _serves(model: Mapping[str, Any], engine: DescribedEngine) -> bool:
    return any(engine.url in pool["urls"] for pool in model["pools"].values())


def _findings(command: EngineCommand, source: str) -> Findings:
    stated = stated_findings(stated_by(command), source)
    facts = {name: finding.value for name, finding in stated.items()}
    if facts["method"] == UNKNOWN:
        return {name: each for name, each in stated.items() if name not in ("method", "drafter")}
    return {**stated, "speculates": Finding(facts["method"] != "none", source, "stated")}


def _telling(stated: Findings) -> Findings:
    """Returns what tells one engine from another; in the rest a default may be other than the line's reader thinks."""
    return {name: stated[name] for name in _TELLING if name in stated}


def _other_model(found: Findings, command: EngineCommand) -> str | None:
    served = known(found, "served_names") or ()
    given = command.args.get("served_model_name")
    names = [command.model] if given is None else given if isinstance(given, list) else [given]
    root = known(found, "root")
    told = {_last(str(name)) for name in names if name is not None}
    if not told or told & {_last(each) for each in (*served, *([root] if given is None and root else []))}:
        return None
    return f"it serves {', '.join(served)}, not {', '.join(sorted(told))}"


def _denies(name: str, found: Finding, said: Any) -> bool:
    if name == "tool_parser" and found.confidence != "certain":
        return str(said) in _TOLD_APART and str(said) not in str(found.value).split(" or ")
    if name == "engine_version":
        return _release(str(found.value)) != _release(str(said))
    if found.confidence != "certain" and name != "speculates":
        return False
    if name == "kv_cache_dtype" and str(found.value).startswith(str(said)):
        return False  # fp8, and which
    return _last(str(found.value)) != _last(str(said))


def _release(text: str) -> object:
    try:
        return Version(text).release
    except InvalidVersion:
        return text


def _last(text: str) -> str:
    return text.strip().lower().rstrip("/").rsplit("/", 1)[-1]
