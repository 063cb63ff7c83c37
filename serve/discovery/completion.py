"""From a configuration and what its engines tell to the whole configuration: what was said by hand stands. Pure."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from policies.facts import UNKNOWN, method_of
from serve.config.gateway import GatewayConfig
from serve.config.pool import ModelConfig, PoolConfig
from serve.discovery.described import contradiction, stated_findings
from serve.discovery.finding import Finding, facts_of, known, shared
from serve.discovery.grouping import FoundEngine
from serve.errors import ConfigError

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
        if name not in pool.facts and len(set(told.values())) > 1:
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
    facts = [facts_of(engine.findings) for engine in engines]
    alike = shared(facts)
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
