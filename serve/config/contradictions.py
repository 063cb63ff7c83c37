"""Finds facts that contradict each other: a drafter of another model, weights of another version, two of one engine."""

import re
from collections.abc import Iterator

from policies import PoolFacts
from policies.model_names import short_name, variant_of
from serve.config.gateway import GatewayConfig
from serve.config.pool import ModelConfig, PoolConfig

# Trained for something else than the name says: drafter -> the model's version, and what is known.
_MISNAMED = {
    "kimi-k2.5-thinking-eagle3": (
        "2",
        "works with Kimi-K2-Thinking (text only, version 2) and not with the multimodal K2.5 (field report R1)",
    )
}
_PLAIN = re.compile(r"\d(\.\d)?")
_VERSION = re.compile(r"(kimi-?k|qwen-?|glm-?|deepseek-?v)(\d)(?:\.?(\d)(?!\d))?(?![\dbm])", re.IGNORECASE)
_SO = "so the wrong advisories decide, and tool calls or JSON may break unseen"


def contradictions(config: GatewayConfig) -> Iterator[tuple[str, str, str]]:
    """Yields (model, pool, what contradicts what, what will break and what to do)."""
    facts = {(each.model, each.pool): each for each in config.pool_facts()}
    for name, model, pool_name, pool in config.each_pool():
        known = facts[name, pool_name]
        for text in (wrong_pair(known), *_names(model, pool_name, pool, known), *_shared(model, pool_name, pool)):
            if text:
                yield name, pool_name, text


def wrong_pair(facts: PoolFacts) -> str | None:
    """Returns what is wrong with a pool's pair of model and drafter; None if nothing is known against it."""
    if not facts.drafter or facts.drafter == "none":
        return None
    drafter = short_name(facts.drafter)
    model = _of(facts.family or "", facts.model_version) or _of(facts.model, facts.model_version)
    if model is None:
        return None
    if drafter.lower() in _MISNAMED:
        version, known = _MISNAMED[drafter.lower()]
        return None if model == ("kimi", version) else f"the drafter {drafter} {known}"
    trained = _of(drafter, None)
    if trained is None or trained == model:
        return None
    trained_for, drafts_for = (f"{series} {version}" for series, version in (trained, model))
    return (
        f"the drafter {drafter} was trained for {trained_for} and drafts for {drafts_for}: such pairs have cut "
        f"tool-call arguments; use the drafter of {drafts_for}, or, if the model is {trained_for}, correct `family` "
        "and `version`"
    )


def _names(model: ModelConfig, pool_name: str, pool: PoolConfig, facts: PoolFacts) -> Iterator[str]:
    """Yields each contradiction between the facts and the names of a pool's weights.

    A fact that is stated for the very pool outweighs a name: weights do lie in folders of other models' names.
    """
    names = {"served_name": pool.served_name}
    if pool.kind == "vllm":
        names["the engine's model"] = model.engine_args_of(pool_name).get("model")
    for what, path in names.items():
        name = short_name(str(path or ""))
        named, known = _of(name, None), _of(facts.family or "", facts.model_version)
        if named and known and "model_version" not in pool.facts and not _agree(named, known, facts.model_version):
            yield (
                f"{what} {path} names {' '.join(named)}, and the facts say {' '.join(known)}, {_SO}; correct `family` "
                "or `version`, or, if the name is what is wrong, state `facts: {model_version: ...}` for this pool"
            )
        variant = variant_of(name.lower())
        if variant not in ("none", facts.quantization) and "quantization" not in pool.facts:
            yield (
                f"{what} {path} names the variant {variant}, and the facts say {facts.quantization}, {_SO}; correct "
                "`quantization`, or, if the name is what is wrong, state it in `facts` for this pool"
            )


def _shared(model: ModelConfig, pool_name: str, pool: PoolConfig) -> Iterator[str]:
    """Yields each engine that an earlier pool of the model has too, and says another method of."""
    for name, other in model.pools.items():
        if name == pool_name:
            return
        shared = set(pool.addresses) & set(other.addresses)
        if shared and pool.facts.get("method") != other.facts.get("method"):
            yield (
                f"it and the pool {name} have the same engine, {min(shared)}, and state different methods of it; an "
                "engine drafts or does not: correct the url of one of them"
            )


def _agree(named: tuple[str, str], known: tuple[str, str], stated: str | None) -> bool:
    """Returns True if a name tells the known series and version, or less of it; or more, where nobody stated one."""
    (series, version), (known_series, known_version) = named, known
    vague = known_version.startswith(f"{version}.") or (stated is None and version.startswith(f"{known_version}."))
    return series == known_series and (version == known_version or vague)


def _of(name: str, version: str | None) -> tuple[str, str] | None:
    """Returns series and version that a name tells; a version that is stated outweighs it."""
    match = _VERSION.search(name)
    if match is None:
        return None
    series = re.sub(r"\W", "", match[1].lower()).removesuffix("k").removesuffix("v")
    if version is not None and _PLAIN.fullmatch(version):
        return series, version
    return series, ".".join(filter(None, (match[2], match[3])))
