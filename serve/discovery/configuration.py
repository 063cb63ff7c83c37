"""From engines to a configuration: URLs of one model become its pools, or one that was written is completed. Pure."""

import copy
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from policies.facts import UNKNOWN, common, fact_of_text, method_of, without_build
from serve.config.gateway import GatewayConfig
from serve.config.pool import ModelConfig, PoolConfig
from serve.discovery.described import contradiction, stated_findings
from serve.discovery.reading import Finding, Findings, FoundEngine, facts_of, known
from serve.errors import ConfigError

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._/-]+")
_OF_MODELS = ("family", "version", "quantization", "hybrid", "grammar", "thinking")


class StatedFact(NamedTuple):
    """A fact that the operator states.

    Attributes:
        subject: A pool, `model/pool`, or a model.
    """

    subject: str
    name: str
    value: Any

    @staticmethod
    def of(text: str) -> "StatedFact":
        """Reads `POOL.FACT=VALUE`.

        Raises:
            ConfigError: It is not of that form.
            PolicyError: Its value can't be read.
        """
        about, sign, value = text.partition("=")
        subject, dot, name = about.strip().rpartition(".")
        if not sign or not dot or not subject or not name:
            raise ConfigError(f"--fact {text!r} is not of the form POOL.FACT=VALUE, such as speculative.method=eagle3")
        name = name.strip().replace("-", "_")
        return StatedFact(subject, name, fact_of_text(name, value.strip()))


def models_of(engines: Sequence[FoundEngine], stated: Iterable[StatedFact] = ()) -> dict[str, dict[str, Any]]:
    """Returns the `models` of a configuration with these engines; equal ones share a pool.

    Raises:
        ConfigError: A stated fact is about no pool, or contradicts what an engine says.
    """
    models: dict[str, dict[str, Any]] = {}
    members: dict[tuple[str, str], list[Findings]] = {}
    for name, served, engine in _each_model(engines):
        model = models.setdefault(name, _model_of(engine.findings))
        _join(model, engine.findings, name)
        pool = _pool_of(engine, served if _differs(model, name, served, engine.findings) else None)
        place = _place(model["pools"], pool, _kind(engine.findings))
        members.setdefault((name, place), []).append(engine.findings)
    for fact in stated:
        state(models, members, fact)
    return models


def _each_model(engines: Sequence[FoundEngine]) -> Iterator[tuple[str, str, FoundEngine]]:
    """Yields (our name of a model, the engine's, the engine) for each model that an engine serves."""
    names: dict[Any, str] = {}
    for engine in engines:
        served: tuple[str, ...] = known(engine.findings, "served_names") or ()
        if known(engine.findings, "several"):
            alone = FoundEngine(engine.url, engine.key_env, {})
            yield from ((_name(each), each, alone) for each in served)
            continue
        if not served:
            continue
        root = known(engine.findings, "root")
        # A name that two engines share, or the same weights, make one model of them.
        name = next((names[key] for key in (*served, root) if key in names), None) or _name(served[0])
        names |= dict.fromkeys((*served, *([root] if root else [])), name)
        yield name, served[0], engine
        for adapter in known(engine.findings, "adapters") or ():
            yield _name(adapter), adapter, engine


def _name(served: str) -> str:
    """Returns a name that a configuration may have for a model."""
    name = _NOT_IN_NAMES.sub("-", served.rstrip("/").rsplit("/", 1)[-1] if served.startswith("/") else served)
    return name.lstrip("._/-")[:128] or "model"


def _model_of(findings: Findings) -> dict[str, Any]:
    family = known(findings, "family")
    model: dict[str, Any] = {"family": family or UNKNOWN}
    if family is None:
        model["hybrid"] = True  # nobody knows, so the advisories about such models count
    for name, fact in (("version", "model_version"), ("quantization", "quantization"), ("thinking", "thinking")):
        if (value := known(findings, fact)) is not None:
            model[name] = value
    model["grammar"] = _grammar(findings)
    return {**model, "pools": {}}


def _grammar(findings: Findings) -> str:
    """Returns the grammar of a model's text. One that is likely will do: what it does not read, nobody relies on."""
    grammar = findings.get("grammar")
    return "auto" if grammar is None or grammar.value is None else str(grammar.value)


def _join(model: dict[str, Any], findings: Findings, name: str) -> None:
    """Adds what another engine says of a model: where they differ, nothing is known; and its other names."""
    grammar, thinking = _grammar(findings), known(findings, "thinking")
    if model["grammar"] != grammar != "auto":
        model["grammar"] = grammar if model["grammar"] == "auto" else "none"
    if thinking is not None and model.get("thinking", thinking) != thinking:
        model.pop("thinking")
    served = known(findings, "served_names") or ()
    if name in map(_name, served):  # not an adapter, which has no other name
        others = [each for each in map(_name, served) if each != name and each not in model.get("aliases", ())]
        if others:
            model["aliases"] = [*model.get("aliases", ()), *others]


def _differs(model: Mapping[str, Any], name: str, served: str, findings: Findings) -> bool:
    return served != name or "aliases" in model or len(known(findings, "served_names") or ()) > 1


def _kind(findings: Findings) -> str:
    speculates: Finding | None = findings.get("speculates")
    if speculates is not None and speculates.value:
        return "speculative"
    return "standard" if known(findings, "method") == "none" else "unknown"


def _pool_of(engine: FoundEngine, served: str | None) -> dict[str, Any]:
    pool: dict[str, Any] = {"kind": "remote", "urls": [engine.url]}
    if engine.resolve:
        pool["resolve"] = True
    if engine.key_env:
        pool["api_key_env"] = engine.key_env
    if served:
        pool["served_name"] = served
    if (field := known(engine.findings, "reasoning_field")) is not None:
        pool["reasoning_field"] = field
    return {**pool, "facts": facts_of(engine.findings)}


def _place(pools: dict[str, dict[str, Any]], pool: dict[str, Any], kind: str) -> str:
    """Adds an engine to the pool of its equals, or as another one; returns the pool's name."""
    for name, other in pools.items():
        if _terms(other) == _terms(pool):
            other["urls"] = [*other["urls"], *(url for url in pool["urls"] if url not in other["urls"])]
            return name
    number = sum(name == kind or name.startswith(f"{kind}-") for name in pools)
    name = f"{kind}-{number + 1}" if number else kind
    pools[name] = pool
    return name


def _terms(pool: Mapping[str, Any]) -> str:
    return json.dumps({name: value for name, value in pool.items() if name != "urls"}, sort_keys=True)


def state(
    models: dict[str, dict[str, Any]], members: Mapping[tuple[str, str], Sequence[Findings]], fact: StatedFact
) -> None:
    """Puts what the operator says into models, whose pools have engines with these findings.

    Raises:
        ConfigError: It is about no pool, or contradicts what an engine says.
    """
    if fact.subject in models and fact.name in _OF_MODELS:
        models[fact.subject][fact.name] = fact.value
        if fact.name == "family":
            models[fact.subject].pop("hybrid", None)
        return
    about = [key for key in members if fact.subject in (key[1], "/".join(key))]
    if len(about) != 1:
        pools = ", ".join("/".join(key) for key in members)
        many = "more than one pool is called so: write MODEL/POOL" if about else "there is no such pool"
        raise ConfigError(f"--fact {fact.subject}.{fact.name}: {many}. Pools: {pools}; models: {', '.join(models)}")
    for findings in members[about[0]]:
        _check(fact, findings)
    model, pool = about[0]
    models[model]["pools"][pool].setdefault("facts", {})[fact.name] = fact.value


def _check(fact: StatedFact, findings: Findings) -> None:
    """Refuses a statement that an engine contradicts."""
    found = findings.get(fact.name)
    speculates = findings.get("speculates")
    none = fact.name == "method" and method_of(str(fact.value)) is None
    if none and speculates is not None and speculates.value:
        raise ConfigError(f"--fact {fact.subject}.method={fact.value}: it drafts ({speculates.source})")
    if found is not None and found.confidence == "certain" and str(found.value) != str(fact.value):
        raise ConfigError(
            f"--fact {fact.subject}.{fact.name}={fact.value}: the engine says {found.value} ({found.source})"
        )


PoolName = tuple[str, str]  # model, pool
_BY_HAND = "the configuration"


def complete(
    args: Mapping[str, Any], config: GatewayConfig, found: Mapping[PoolName, Sequence[FoundEngine]]
) -> dict[str, Any]:
    """Returns a configuration with the facts that its engines tell and it does not. The configuration comes as it is
    written, `args`, and parsed.

    Raises:
        ConfigError: An engine contradicts what is written, or the engines of one pool are not alike.
    """
    wrong: list[str] = []
    document = copy.deepcopy(dict(args))
    for model_name, model, pool_name, pool in config.each_pool():
        engines = found.get((model_name, pool_name), ())
        if not engines:
            continue
        place = f"{model_name}/{pool_name}"
        problems = [f"  {place}: {each}" for engine in engines for each in _denied(model, pool, engine)]
        problems += [f"  {place}: {each}" for each in _unlike(pool, engines)]
        wrong += problems
        if not problems:
            written = document["models"][model_name]
            written |= _of_model(model, engines)
            written["pools"][pool_name] |= _of_pool(model_name, model, pool, engines)
    if wrong:
        raise ConfigError("\n".join(("what is written and what engines report contradict each other:", *wrong)))
    return document


def _denied(model: ModelConfig, pool: PoolConfig, engine: FoundEngine) -> Iterator[str]:
    """Yields what an engine denies of what is written, with both texts."""
    stated = dict(stated_findings(pool.facts, _BY_HAND))
    if "method" in pool.facts and (method := method_of(str(pool.facts["method"]))) != UNKNOWN:
        stated["speculates"] = Finding(method is not None, _BY_HAND, "stated")
        stated["method"] = Finding(method or "none", _BY_HAND, "stated")
    for each in stated:
        if denied := contradiction(engine.findings, {each: stated[each]}):
            yield f"{engine.url}: {denied}"
            break  # the rest follows from it
    family = known(engine.findings, "family")
    if family and model.family != UNKNOWN and not (family.startswith(model.family) or model.family.startswith(family)):
        yield f"{engine.url}: the family is {model.family} ({_BY_HAND}), and the weights' name says {family}"
    served = known(engine.findings, "served_names") or ()
    if pool.served_name is not None and served and pool.served_name not in served:
        yield f"{engine.url}: served_name is {pool.served_name} ({_BY_HAND}), and the engine serves {', '.join(served)}"


def _unlike(pool: PoolConfig, engines: Sequence[FoundEngine]) -> Iterator[str]:
    """Yields in what the engines of one pool differ that nobody has settled by hand."""
    for name in ("engine", "engine_version", "method"):
        told = {engine.url: facts_of(engine.findings).get(name) for engine in engines}
        if name not in pool.facts and len({without_build(str(value)) for value in told.values()}) > 1:
            each = ", ".join(f"{value} at {url}" for url, value in told.items())
            yield f"its engines are not alike: {name} is {each}; make a pool of each kind"


def _of_model(model: ModelConfig, engines: Sequence[FoundEngine]) -> dict[str, Any]:
    told = {
        "family": None if model.family != UNKNOWN else _agreed(engines, "family"),
        "version": None if model.version is not None else _agreed(engines, "model_version"),
        "thinking": None if model.thinking is not None else _agreed(engines, "thinking"),
    }
    return {name: value for name, value in told.items() if value is not None}


def _of_pool(name: str, model: ModelConfig, pool: PoolConfig, engines: Sequence[FoundEngine]) -> dict[str, Any]:
    told = common([facts_of(engine.findings) for engine in engines])
    alike = {name: value for name, value in told.items() if value is not None}
    settings = {**(alike.get("settings") or {}), **(pool.facts.get("settings") or {})}
    whole = {**alike, **pool.facts, **({"settings": settings} if settings else {})}
    completed: dict[str, Any] = {"facts": whole}
    served = _agreed(engines, "served_names") or ()
    if pool.served_name is None and served and not {name, *model.exact_aliases} <= {*served}:
        completed["served_name"] = served[0]
    if pool.reasoning_field is None and (field := _agreed(engines, "reasoning_field")) is not None:
        completed["reasoning_field"] = field
    return completed


def _agreed(engines: Sequence[FoundEngine], name: str) -> Any:
    """Returns a fact that all engines tell alike; None if they don't."""
    first, *others = (known(engine.findings, name) for engine in engines)
    return first if all(other == first for other in others) else None
