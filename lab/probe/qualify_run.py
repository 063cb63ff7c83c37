"""Finds the two engines that a qualification compares, and asks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import httpx
from openai import AsyncOpenAI, OpenAIError

from lab.probe.plan import with_version
from lab.probe.qualify import Ask, Heard, QualifyTerms, qualify
from lab.probe.runner import answered, key_in
from lab.probe.trace import Trace
from policies import PoolFacts
from serve.config.gateway import GatewayConfig
from serve.config.pool import PoolConfig
from serve.config.signed_verdicts import EngineVerdict, key_of
from serve.discovery.asking import ask_passively
from serve.discovery.identity import EngineIdentity, agreed
from serve.discovery.reading import Findings, engine_metrics, facts_of, read
from serve.errors import ConfigError
from serve.request.patch import OPT_OUT


@dataclass(frozen=True, slots=True)
class EnginePair:
    """Two engines of one model, or one that is asked in two ways.

    Attributes:
        facts: Of the pool that is to have the first one, as configured.
        url, standard: Their base URLs, without `/v1`.
        keys: Their API keys.
        opts_out: The second one is the first one, told to leave drafts out.
    """

    facts: PoolFacts
    url: str
    standard: str
    keys: tuple[str | None, str | None]
    opts_out: bool


@dataclass(frozen=True, slots=True)
class Qualified:
    """The verdicts, and which engine they are about."""

    key: Mapping[str, Any]
    tests: Mapping[str, EngineVerdict]


def pair_of(
    config: GatewayConfig, model: str, pool: str, url: str | None, standard: str | None, api_key_env: str | None
) -> EnginePair:
    """Returns the engines to ask.

    Args:
        config: The gateway's.
        model: The configuration's name of the model.
        pool: Of the pool.
        url: Of its engine, if that is not configured.
        standard: Of the other one, likewise.
        api_key_env: Environment variable that holds the key of both.

    Raises:
        ConfigError: One of them is not named, or the pool drafts nothing.
    """
    facts = _facts(config, model, pool)
    if not facts.speculative:
        raise ConfigError(f"{model}/{pool} does not speculate: there is nothing to qualify")
    pools = config.models[model].pools
    base = _base(url) or _address(pools[pool])
    if base is None:
        raise ConfigError(f"{model}/{pool} has no address of its own: start such an engine by itself, and give --url")
    others = [each for each in config.pool_facts() if each.model == model and not each.speculative]
    name = next((each.pool for each in others if _address(pools[each.pool])), None)
    opts_out = standard is None and name is None and facts.opt_out
    other = _base(standard) or (base if opts_out else name and _address(pools[name]))
    if not other:
        raise ConfigError("there is nothing to compare with: give --standard, an engine of the model without a drafter")
    given = key_in(api_key_env)
    keys = (
        given or _key(pools[pool], model, pool),
        given or (_key(pools[name], model, name) if name and standard is None else _key(pools[pool], model, pool)),
    )
    return EnginePair(facts, base, other, keys, opts_out)


async def run_qualify(
    config: GatewayConfig, pair: EnginePair, terms: QualifyTerms, timeout_s: float, advance: Callable[[str], None]
) -> Qualified:
    """Qualifies an engine.

    Args:
        config: The gateway's.
        pair: The engines.
        terms: On which they are compared.
        timeout_s: Longest time for one request.
        advance: Called with a test's name after each trial.

    Raises:
        ConfigError: The engine does not answer, or is not what the configuration says.
    """
    model, pool = pair.facts.model, pair.facts.pool
    told = await _told(pair.url, pair.keys[0])
    key = key_of(config, config.facts_now(pair.facts, _learned(config, pair, told)))
    if key is None:
        raise ConfigError(
            f"{pair.url} does not tell its version: state engine and engine_version in facts of {model}/{pool}"
        )
    names = _name(config, pair, told), _name(config, pair, await _told(pair.standard, pair.keys[1]))
    urls = pair.url, pair.standard
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(
                AsyncOpenAI(base_url=with_version(url), api_key=secret or "none", timeout=timeout_s, max_retries=0)
            )
            for url, secret in zip(urls, pair.keys, strict=True)
        ]
        more = {"vllm_xargs": OPT_OUT} if pair.opts_out else {}
        return Qualified(key, await qualify(_asking(first, second, names, more), _within(terms, told), advance))


def _asking(first: AsyncOpenAI, second: AsyncOpenAI, names: tuple[str, str], more: Mapping[str, Any]) -> Ask:
    async def ask(drafts: bool, body: dict[str, Any]) -> Heard:
        request = {**body, "model": names[0]} if drafts else {**body, "model": names[1], **more}
        trace = Trace()
        try:
            answer, _ = await answered(first if drafts else second, request, trace)
        except (OpenAIError, httpx.HTTPError) as error:
            return Heard(None, trace, f"{type(error).__name__}: {error}"[:300])
        if not request["stream"]:
            trace.add(answer)
        return Heard(answer, trace)

    return ask


async def _told(url: str, secret: str | None) -> tuple[Findings, str]:
    answers = await ask_passively(url, secret)
    findings = read(answers)
    if not findings:
        raise ConfigError(f"no engine answers at {url}: {answers['metrics'].error or 'it tells nothing of itself'}")
    return findings, answers["metrics"].text


def _learned(config: GatewayConfig, pair: EnginePair, told: tuple[Findings, str]) -> Mapping[str, Any]:
    """Returns what a gateway would learn of the engine.

    Raises:
        ConfigError: It is another engine than the configuration says.
    """
    settings = config.models[pair.facts.model].pools[pair.facts.pool]
    findings, metrics = told
    speculates = findings.get("speculates")
    if speculates is not None and speculates.confidence == "certain" and not speculates.value:
        raise ConfigError(f"{pair.url} drafts nothing: there is nothing to qualify")
    if settings.kind != "remote":
        return {name: value for name, value in facts_of(findings).items() if name in ("engine", "engine_version")}
    identity, seen = EngineIdentity(settings.facts), engine_metrics(metrics)
    identity.must_be_asked(seen, 0.0)
    identity.learn(seen, findings)
    _, known = agreed({pair.url: identity}, settings.facts)
    if known != settings.facts:
        differs = {name: known.get(name) for name in known if known.get(name) != settings.facts.get(name)}
        raise ConfigError(f"{pair.url} is not what `facts` say; it tells {differs}: correct them first")
    return known


def _within(terms: QualifyTerms, told: tuple[Findings, str]) -> QualifyTerms:
    """Returns the terms for an engine that may take less at once than usual."""
    length = told[0].get("max_model_len")
    return replace(terms, context=min(terms.context, int(length.value))) if length else terms


def _name(config: GatewayConfig, pair: EnginePair, told: tuple[Findings, str]) -> str:
    """Returns the name under which an engine knows the model."""
    finding = told[0].get("served_names")
    served = [str(name) for name in finding.value] if finding else []
    name = config.models[pair.facts.model].pools[pair.facts.pool].served_name or pair.facts.model
    return name if name in served or not served else served[0]


def _facts(config: GatewayConfig, model: str, pool: str) -> PoolFacts:
    found = {(each.model, each.pool): each for each in config.pool_facts()}
    if (model, pool) not in found:
        known = ", ".join("/".join(name) for name in found)
        raise ConfigError(f"there is no pool {model}/{pool}; there are {known}")
    return found[model, pool]


def _base(url: str | None) -> str | None:
    return url and url.rstrip("/").removesuffix("/v1")


def _address(pool: PoolConfig) -> str | None:
    return pool.addresses[0] if pool.addresses else None


def _key(pool: PoolConfig, model: str, name: str) -> str | None:
    secret = pool.api_key(f"models.{model}.pools.{name}")
    return secret.read() if secret else None
