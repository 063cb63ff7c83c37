"""Finds what is wrong with a configuration, or with the command line of an engine.

Most of it by making the decision for every kind of request; the rest by looking where keys, secrets and the store are.
"""

import asyncio
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from policies import (
    Advisory,
    Decision,
    Override,
    PolicyError,
    PolicySettings,
    PoolFacts,
    RequestFeatures,
    compile_policy,
    decide,
)
from policies.classes import BIT
from policies.command_facts import facts_of_command
from policies.command_line import EngineCommand, read_command, with_file
from policies.explain import tried_cures
from policies.facts import fact_of_text, release_of
from policies.freshness import MAX_AGE_DAYS, NEWER_ENGINE, age_days, newest_checked
from policies.policy import Policy
from policies.qualification import standing
from policies.vllm_options import full_names
from serve.access.key_file import read_key_file
from serve.config.access import open_gateway
from serve.config.compiled_policy import read_advisories
from serve.config.gateway import GatewayConfig, PolicyConfig
from serve.config.grammar import grammar_findings
from serve.config.lint import (
    contradictions,
    graph_findings,
    missing_folders,
    seat_findings,
    uncovered_steps,
    unknown_options,
)
from serve.config.pool import PoolConfig
from serve.config.signed_verdicts import read_qualifications
from serve.errors import ConfigError, SharedStateError
from serve.tools.decider import Decider

_TOOLS = {"tools": 1, "tool_choice": "auto", "stream": True}
# Kinds of request that users send; each is tried with and without thinking.
_KINDS: tuple[dict[str, Any], ...] = (
    {},
    _TOOLS,
    {**_TOOLS, "strict_tools": True},
    {**_TOOLS, "tool_choice": "required"},
    {**_TOOLS, "tool_history": True},
    {"response_format": "json_object"},
    {"response_format": "json_schema", "strict_schema": True},
)
_STOCK_PARSERS = {
    "kimi_k2": "specgate_kimi_k2",
    "qwen3_coder": "specgate_qwen3_coder",
    "qwen3_xml": "specgate_qwen3_coder",
    "hermes": "specgate_hermes",
}
# Facts that many advisories depend on; a pool that speculates should state them.
_IMPORTANT_FACTS = ("family", "engine", "engine_version", "drafter", "tool_parser", "hybrid", "prefix_caching")
_ENGINE_FACTS = ("engine", "engine_version")  # every pool should state these
_MOST_NAMES = 5  # of advisories in a sentence; all of them are in the rows of requests
_GOLDEN = "InferenceX golden acceptance lengths, SPEED-Bench coding, thinking on"
# (family, method, tokens per step with 1, 2, ... drafted tokens, source)
_PUBLISHED: tuple[tuple[str, str, tuple[float, ...], str], ...] = (
    ("kimi*", "eagle3", (1.83, 2.43, 2.88, 3.24, 3.46, 3.62, 3.71, 3.77), f"{_GOLDEN}, Kimi-K2.5-NVFP4"),
    ("qwen3.[5-9]*", "mtp", (1.93, 2.73, 3.39, 3.97, 4.41, 4.80, 5.04, 5.21), f"{_GOLDEN}, Qwen3.5-397B"),
)
_TOOL_TEXT = "tool calls gain most: 3.7-3.8 tokens per step with 3 drafted (model card of kimi-k2.5-eagle3, BFCL)"
_SECRET_ARGS = ("api-key", "hf-token")
_SECRET_NAME = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|OTLP\w*_HEADERS)$", re.IGNORECASE)
if TYPE_CHECKING:
    from serve.limits.store import RedisStore


def examine(decider: Decider, host: str | None = None, store: tuple[str, str] | None = None) -> dict[str, Any]:
    """Returns the whole report as plain values. A host of None is one that nobody knows; the finding about the store is
    that of `try_store`.
    """
    policy = decider.policy
    models = {name: _model(policy, name) for name in policy.models}
    seats = [_finding(level, text, model, pool) for model, pool, level, text in seat_findings(decider.config)]
    away = {
        (model, text): _finding("info", f"{text}: where it is loaded, `specgate fetch` says what is missing", model)
        for model, _, text in missing_folders(decider.config)
    }
    openness = open_gateway(decider.config.access, host)
    findings = [
        *([_finding("error", openness)] if openness else []),
        *_of_pools("error", contradictions(decider.config)),
        *_of_pools("error", unknown_options(decider.config)),
        *away.values(),
        *_policy_findings(policy),
        *_pool_findings(policy),
        *_knowledge(policy),
        *_qualified(policy),
        *_unusable_verdicts(decider.config),
        *_access_file(decider.config),
        *_idle_access(decider.config),
        *_unstated_methods(decider.config),
        *(_finding("warning", text, model) for model, text in grammar_findings(decider.config.models)),
        *_holes(policy),
        *_request_findings(policy, models),
        *seats,
        *_of_pools("warning", graph_findings(decider.config)),
        *_of_pools("warning", secret_findings(decider.config)),
        *([_finding(*store)] if store else []),
    ]
    order = ("error", "warning", "info")
    return {
        "healthy": not any(finding["level"] == "error" for finding in findings),
        "policy": policy.digest,
        "models": models,
        "findings": sorted(
            findings, key=lambda finding: (order.index(finding["level"]), finding["model"], finding["pool"])
        ),
    }


def examine_line(words: Sequence[str], stated: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts that a command line tells, and what the shipped advisories forbid there.

    Raises:
        PolicyError: The line starts no known engine or can't be read, or a stated fact is none.
    """
    command = _with_file(read_command(words))
    facts = facts_of_command(command, stated)
    policy = compile_policy((facts,), read_advisories(PolicyConfig()), PolicySettings())
    graphs = uncovered_steps(facts, full_names(command.args)) if command.engine == "vllm" else ()
    examined = _examine_engine(policy, graphs)
    unread = f"{command.config} can't be read here, and may set any option: run this where it is, or write them out"
    return {
        "engine": command.engine,
        "model": command.model,
        "left_open": sorted(command.unknown),
        **examined,
        "findings": [*([_finding("warning", unread)] if command.config else []), *examined["findings"]],
    }


def _with_file(command: EngineCommand) -> EngineCommand:
    """Returns a command with the options of its file, if it has one that is here."""
    if command.config is None:
        return command
    try:
        text = Path(command.config).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return command
    return with_file(command, text)


def stated_facts(texts: Sequence[str]) -> dict[str, Any]:
    """Returns facts from texts such as `engine_version=0.32.0` and `settings.page_size=1`.

    Raises:
        PolicyError: A text has no `=`, or no value behind it.
    """
    stated: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise PolicyError(f"--fact {text!r}: write NAME=VALUE, for example engine_version=0.32.0")
        setting = name.removeprefix("settings.")
        (stated if setting == name else settings)[setting] = fact_of_text(setting, value)
    whole = stated.get("settings", {})
    return {**stated, "settings": {**whole, **settings}} if settings and isinstance(whole, dict) else stated


def _examine_engine(policy: Policy, graphs: Iterable[str]) -> dict[str, Any]:
    """Returns what is to be said of one engine that stands alone, as plain values."""
    (facts,) = policy.facts
    rows = [_engine_row(policy, features) for features in _requests(policy, facts.model)]
    usual = {" ".join(features.classes) for features in _usual(facts.model)}

    def finding(level: str, advisory: Advisory, requests: list[str], effect: str) -> dict[str, Any]:
        text = f"{advisory.id}: {advisory.summary} {effect} {_kinds(requests)}."
        return _finding(level, text, facts.model, facts.pool, advisory, policy)

    def against(advisory: Advisory, requests: list[str]) -> str:
        """Returns the level: a rare request that fails without drafts as well is no fault of this command line."""
        return "warning" if advisory.effects["standard"] == "forbid" and usual.isdisjoint(requests) else "error"

    findings = [
        *(finding(against(*each), *each, "Forbids") for each in _named(policy, rows, "forbidden_by")),
        *(finding("warning", *each, "Endangers") for each in _named(policy, rows, "warned_by")),
        *_pool_findings(policy, "with `--fact`"),
        *_knowledge(policy),
        *_holes(policy),
        *(_finding("warning", text, facts.model, facts.pool) for text in graphs),
    ]
    healthy = not any(each["advisory"] and each["level"] == "error" for each in findings)
    return {"healthy": healthy, "facts": facts.to_dict(), "requests": rows, "findings": findings}


def _of_pools(level: str, found: Iterable[tuple[str, str, str]]) -> Iterator[dict[str, Any]]:
    return (_finding(level, text, model, pool) for model, pool, text in found)


def _engine_row(policy: Policy, features: RequestFeatures) -> dict[str, Any]:
    decision = decide(policy, features, None)
    forbidden = [reason.advisory for reason in decision.reasons if reason.effect == "forbid"]
    warned = [reason.advisory for reason in decision.reasons if reason.effect == "warn"]
    return {
        "classes": list(decision.classes),
        "allowed": not decision.refused,
        "forbidden_by": forbidden,
        "warned_by": warned,
    }


def _named(policy: Policy, rows: Iterable[dict[str, Any]], by: str) -> Iterator[tuple[Advisory, list[str]]]:
    """Yields each advisory that a row names in a member, and the kinds of request of those rows."""
    named: dict[str, list[str]] = {}
    for row in rows:
        for advisory in row[by]:
            named.setdefault(advisory, []).append(" ".join(row["classes"]))
    return ((advisory, named[advisory.id]) for advisory in policy.advisories if advisory.id in named)


def _kinds(requests: list[str]) -> str:
    more = f" and {len(requests) - 1} more kinds of request" if len(requests) > 1 else ""
    return f"{requests[0]}{more}"


def _model(policy: Policy, name: str) -> dict[str, Any]:
    pools = [facts for facts in policy.facts if facts.model == name]
    alone = {facts.pool: _alone(policy, facts) for facts in pools}
    return {
        "pools": {facts.pool: facts.to_dict() for facts in pools},
        "requests": [_row(policy, features, alone) for features in _usual(name)],
        "gain": {facts.pool: gain for facts in pools if (gain := expected_gain(facts))},
    }


def _requests(policy: Policy, model: str) -> Iterator[RequestFeatures]:
    yield from _usual(model)
    yield from _further(policy, model)


def _usual(model: str) -> Iterator[RequestFeatures]:
    for thinking in (False, True):
        for kind in _KINDS:
            yield RequestFeatures(model, thinking=thinking, **kind)


def _further(policy: Policy, model: str) -> Iterator[RequestFeatures]:
    """Yields a request of each kind of which a rule about the model speaks, and that is not among the usual ones."""
    tried = [features.mask for features in _usual(model)]
    rules = [rule for option in policy.models[model].options for rule in option.rules]
    for wanted in dict.fromkeys(mask for rule in rules for mask in rule.masks):
        if not any(wanted & mask == wanted for mask in tried):
            features = RequestFeatures.of_classes(model, [name for name, bit in BIT.items() if wanted & bit])
            tried.append(features.mask)
            yield features


def _row(policy: Policy, features: RequestFeatures, alone: Mapping[str, Policy]) -> dict[str, Any]:
    decision = decide(policy, features, None)
    return {
        "classes": list(decision.classes),
        "pool": decision.pool,
        "speculative": decision.speculative,
        "opt_out": decision.opt_out,
        "refused": decision.refused,
        "reasons": [asdict(reason) for reason in decision.reasons],
        "pools": {pool: _verdict(decide(own, features, None)) for pool, own in alone.items()},
    }


def _alone(policy: Policy, facts: PoolFacts) -> Policy:
    """Returns the policy as if a pool, in its main mode, were the only one."""
    main = dataclasses.replace(facts, opt_out=False, canary_share=None)
    return compile_policy((main,), policy.advisories, _settings_for(policy, facts), policy.today)


def _verdict(decision: Decision) -> dict[str, Any]:
    """Returns what a decision says of the only pool."""
    effects = {reason.effect for reason in decision.reasons}
    return {
        "allowed": not decision.refused,
        "speculative": decision.speculative,
        "effect": "optimistic" if decision.optimistic else "warn" if "warn" in effects else "",
        "forbidden_by": [reason.advisory for reason in decision.reasons if reason.effect == "forbid"],
    }


def _settings_for(policy: Policy, facts: PoolFacts) -> Any:
    def applies(override: Override) -> bool:
        return override.action != "pin" and override.speaks_of(facts.model, facts.pool)

    return dataclasses.replace(policy.settings, overrides=tuple(filter(applies, policy.settings.overrides)))


def _finding(
    level: str,
    message: str,
    model: str = "",
    pool: str = "",
    advisory: Advisory | None = None,
    policy: Policy | None = None,
) -> dict[str, Any]:
    """Returns a finding; its cures were tried on the pools of which the advisory speaks."""
    tried: dict[str, None] = {}
    if advisory is not None and policy is not None:
        for facts in policy.facts:
            if facts.model == model and pool in ("", facts.pool) and advisory.matches(facts):
                tried |= dict.fromkeys(tried_cures(advisory, facts, policy.advisories))
    return {
        "level": level,
        "model": model,
        "pool": pool,
        "advisory": advisory.id if advisory else None,
        "message": message,
        "cures": list(tried),
    }


def _policy_findings(policy: Policy) -> Iterator[dict[str, Any]]:
    for problem in policy.unreadable:
        yield _finding("error", f"an advisory can't be read, so nothing speculates: {problem}")
    if policy.settings.mode == "advise":
        yield _finding("warning", "mode is `advise`: a caller's `enable_speculative: true` overrides every advisory")
    if policy.settings.optimistic and not policy.settings.guard:
        yield _finding("warning", "`optimistic` has no effect without the guard: suspected hazards forbid speculation")
    for override in policy.settings.overrides:
        if not override.holds(policy.today):
            text = f"the override {override.action!r} ({override.reason}) expired on {override.expires}"
            yield _finding("warning", text)
        elif override.action == "waive":
            text = f"{override.advisory} is waived until {override.expires}: {override.reason}"
            yield _finding("warning", text, override.model or "")


def _access_file(config: GatewayConfig) -> Iterator[dict[str, Any]]:
    """Yields what is wrong with the file of keys; one that is not here may be where the gateway runs."""
    if config.access.file is None:
        return
    file = Path(config.access.file)
    try:
        read_key_file(file)
    except ConfigError as error:
        yield _finding("error" if file.exists() else "warning", str(error))


def _idle_access(config: GatewayConfig) -> Iterator[dict[str, Any]]:
    """Yields what says who may enter, or who is told apart, where nobody is asked for a key."""
    access = config.access
    stated = access.model_dump(exclude_unset=True, exclude_none=True)
    names = ("file", "oidc", "stale_max_s", "cache_salt")
    idle = [f"access.{name}" for name in names if stated.get(name, "off") != "off"]
    if access.mode == "off" and idle:
        text = (
            f"without effect, as access.mode is `off`: {' and '.join(idle)}. Whoever reaches the port may do "
            "everything, and shares the engines' prompt caches with all others; set access.mode to "
            "`required`, or leave this out"
        )
        yield _finding("warning", text)


def _pool_findings(policy: Policy, where: str = "in `facts`") -> Iterator[dict[str, Any]]:
    for facts in policy.facts:
        important = _IMPORTANT_FACTS if facts.speculative else _ENGINE_FACTS
        unknown = [name for name in important if getattr(facts, name) is None and facts.kind != "sim"]
        if unknown:
            text = f"unknown, so advisories that depend on it count as matched: {', '.join(unknown)}; set it {where}"
            yield _finding("warning", text, facts.model, facts.pool)
        if facts.engine_version is not None and release_of(facts.engine_version) is None and facts.kind != "sim":
            text = (
                f"the engine_version {facts.engine_version!r} tells no release, so it counts as unknown: set the one"
                f" that this build began from, such as 0.32.0, {where}"
            )
            yield _finding("warning", text, facts.model, facts.pool)
        if facts.canary_share:
            text = f"a canary: first choice for {facts.canary_share:.3g} of conversations, last choice for the others"
            yield _finding("info", text, facts.model, facts.pool)
        if _drafts_are_stale(facts):
            text = (
                "speculates in pipeline stages with synchronous scheduling on vLLM's V2 runner, which decodes from"
                " stale tokens (vllm#52071): remove no-async-scheduling, or use tensor parallelism alone; specgate does"
                " not start such an engine"
            )
            yield _finding("error", text, facts.model, facts.pool)
        ours = _STOCK_PARSERS.get(facts.tool_parser or "")
        if ours and facts.kind == "vllm":
            text = f"vLLM's parser {facts.tool_parser!r} has open bugs, with or without speculation; use {ours!r}"
            yield _finding("info", text, facts.model, facts.pool)
        if facts.tool_parser == "none" and facts.kind == "vllm":
            yield _finding(
                "info", "the engine parses no tool calls (tool-call-parser is not set)", facts.model, facts.pool
            )
        if (facts.family or "").startswith("kimi") and facts.settings.get("tokenizer_mode") == "auto":
            text = "tokenizer-mode auto may shift Kimi's special ids (transformers 5); specgate_kimi checks them"
            yield _finding("warning", text, facts.model, facts.pool)


def _drafts_are_stale(facts: PoolFacts) -> bool:
    stages = facts.settings.get("pipeline_parallel_size")
    return (
        facts.speculative
        and facts.engine == "vllm"
        and facts.runner == "v2"
        and facts.async_scheduling is False
        and isinstance(stages, int)
        and stages > 1
    )


def _knowledge(policy: Policy) -> Iterator[dict[str, Any]]:
    """Yields what is to be said about how far the advisories reach: their age, and engines newer than all of them."""
    days = age_days(policy.advisories, policy.today)
    if days is not None:
        level = "warning" if days > MAX_AGE_DAYS else "info"
        yield _finding(level, f"the advisories were last gone through {days} days ago; take newer ones after a month")
    newer = next((each for each in policy.advisories if each.id == NEWER_ENGINE), None)
    for facts in policy.facts:
        if newer is not None and newer.matches(facts) and not newer.assumptions(facts):
            checked = newest_checked(policy.advisories)
            reach = (
                f"{facts.engine_version} is newer than {checked[facts.engine]}, the newest that advisories were held to"
                if facts.engine in checked
                else f"is no engine that any advisory was held to (those are {', '.join(checked)})"
            )
            text = f"{facts.engine} {reach}: tools, JSON and logprobs count as suspected with speculation"
            yield _finding("warning", text, facts.model, facts.pool, newer, policy)


def _qualified(policy: Policy) -> Iterator[dict[str, Any]]:
    """Yields how far each drafting engine is qualified; that one is not is a warning only where it has to be."""
    for facts in policy.facts:
        if not facts.speculative or (facts.kind == "sim" and facts.qualification is None):
            continue
        holds = facts.qualification is not None and facts.qualification.holds(policy.today)
        level = "info" if policy.settings.unqualified == "trust" or holds else "warning"
        text = f"its engine is {standing(facts.qualification, policy.today)}"
        yield _finding(level, text if holds else f"{text}; `specgate qualify` does it", facts.model, facts.pool)


def _unusable_verdicts(config: GatewayConfig) -> Iterator[dict[str, Any]]:
    """Yields why the verdicts on engines can't be used, if they can't."""
    try:
        read_qualifications(config.policy, strict=True)
    except ConfigError as error:
        yield _finding("error", str(error))


def _unstated_methods(config: GatewayConfig) -> Iterator[dict[str, Any]]:
    """Yields a finding for each remote pool of which nobody says whether its engine drafts tokens."""
    for model, _, name, pool in config.each_pool("remote"):
        if "method" not in pool.facts:
            text = (
                "`facts` does not say `method`, so the pool counts as one that drafts in some unknown way, and gets no "
                "request that any advisory on drafts forbids; say `method: none` if its engine has no drafter"
            )
            yield _finding("warning", text, model, name)


def _holes(policy: Policy) -> Iterator[dict[str, Any]]:
    """Yields a finding for each known hole of an engine, and one for all that an unknown engine may have."""
    for facts in policy.facts:
        presumed = []
        for advisory in policy.advisories:
            if advisory.kind == "security" and advisory.matches(facts):
                unknown = advisory.assumptions(facts)
                if set(unknown) & set(_ENGINE_FACTS):
                    presumed.append(advisory.id)
                    continue
                note = f" (assumed: {', '.join(unknown)} not known)" if unknown else ""
                text = f"{advisory.id}: {advisory.summary}{note}"
                yield _finding("warning", text, facts.model, facts.pool, advisory, policy)
        if presumed:
            text = f"its engine is unknown, and may have {len(presumed)} known holes: {first_of(presumed)}"
            yield _finding("warning", text, facts.model, facts.pool)


def _request_findings(policy: Policy, models: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    advisories = {advisory.id: advisory for advisory in policy.advisories}
    for name in models:
        found: dict[tuple[str, str], list[str]] = {}  # what an advisory does, by advisory and level
        usual = frozenset(_usual(name))
        for features in _requests(policy, name):
            decision = decide(policy, features, None)
            for advisory, level, effect in _effects(decision, advisories, usual=features in usual):
                if level == "warning" and (advisory, "error") in found:
                    level = "error"  # one finding is enough, and the usual requests come first
                found.setdefault((advisory, level), []).append(f"{effect} ({' '.join(decision.classes)})")
        presumed: dict[str, list[str]] = {}
        known: list[dict[str, Any]] = []
        for (advisory, level), texts in found.items():
            known_as = advisories.get(advisory)
            unknown = _presumed(policy, known_as, name) if known_as is not None else ()
            if set(unknown) & set(_ENGINE_FACTS):
                presumed.setdefault(level, []).append(advisory)
                continue
            finding = _finding(level, f"{advisory}: {_kinds(texts)}", name, "", known_as, policy)
            if unknown:
                finding["cures"].insert(0, f"State {', '.join(unknown)} in `facts`: it is not known to concern you")
            known.append(finding)
        yield from (_unknown_engine(policy, name, level, names) for level, names in presumed.items())
        yield from known


def _presumed(policy: Policy, advisory: Advisory, model: str) -> tuple[str, ...]:
    """Returns the unknown facts for which an advisory counts as matched; empty if a pool is known to be affected."""
    matched = [facts for facts in policy.facts if facts.model == model and advisory.matches(facts)]
    unknown = [advisory.assumptions(facts) for facts in matched]
    return () if not all(unknown) else tuple(dict.fromkeys(name for names in unknown for name in names))


def _unknown_engine(policy: Policy, model: str, level: str, names: list[str]) -> dict[str, Any]:
    """Returns one finding for all advisories that count only because nobody has said which engine it is."""
    pools = [
        facts.pool
        for facts in policy.facts
        if facts.model == model and (facts.engine is None or release_of(facts.engine_version or "") is None)
    ]
    effects = {"error": "stop or endanger requests", "warning": "are suspected", "info": "send requests elsewhere"}
    finding = _finding(
        level, f"{len(names)} advisories {effects[level]} only because the engine is unknown: {first_of(names)}", model
    )
    told = "`engine: vllm`, `engine_version`, `method` (`none` without a drafter) and the parsers"
    stated = f"State in `facts` of {', '.join(pools)} what runs there: {told}; then look again"
    running = {(facts.model, facts.pool) for facts in policy.facts if facts.kind == "remote"}
    asked = ["`specgate front --config FILE --write NEW_FILE` asks the engines that run, and states it"]
    return {**finding, "cures": [*(asked if any((model, pool) in running for pool in pools) else ()), stated]}


def first_of(names: Sequence[str], most: int = _MOST_NAMES) -> str:
    """Returns the first of some names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _effects(decision: Decision, advisories: dict[str, Advisory], *, usual: bool) -> Iterator[tuple[str, str, str]]:
    """Yields (advisory, level, effect) for each advisory that influenced the decision. Users send the usual requests,
    so that these need a pool; of others it is enough to know.
    """
    uncovered = "error" if usual else "warning"
    for reason in decision.reasons:
        advisory = advisories.get(reason.advisory)
        confirmed = advisory is not None and advisory.status == "confirmed" and advisory.severity != "low"
        if reason.effect == "forbid" and decision.refused:
            yield reason.advisory, uncovered, "refused, because no other pool is allowed"
        elif reason.effect == "forbid" and advisory is not None:
            alternative = "the in-engine opt-out" if decision.opt_out else f"pool {decision.pool}"
            yield reason.advisory, "info", f"served by {alternative} instead"
        elif reason.effect == "warn" and confirmed:
            yield reason.advisory, uncovered, f"a confirmed hazard on pool {decision.pool}, and no pool is free of it"
        elif reason.effect in ("warn", "optimistic"):
            yield reason.advisory, "warning", f"suspected on pool {decision.pool} ({reason.effect})"


def expected_gain(facts: PoolFacts) -> str | None:
    """Returns a sentence on the gain of speculation on such a pool, or None if nothing is published."""
    drafted = facts.num_speculative_tokens
    for family, method, lengths, source in _PUBLISHED:
        if fnmatchcase(facts.family or "", family) and facts.method == method and drafted:
            length = lengths[min(drafted, len(lengths)) - 1]
            note = f"; {_TOOL_TEXT}" if method == "eagle3" else ""
            return f"about {length:.1f} tokens per step with {drafted} drafted ({source}){note}"
    return None


def secret_findings(config: GatewayConfig) -> Iterator[tuple[str, str, str]]:
    """Yields (model, pool, what is wrong); a warning each, because the gateway's nodes may differ from this one."""
    for name, model, pool, settings in config.each_pool():
        key = settings.api_key(f"models.{name}.pools.{pool}")
        try:
            if key is not None:
                key.read()
        except ConfigError as error:
            yield name, pool, str(error)
        args = model.engine_args_of(pool)
        shown = [f"engine_args {each}" for each in _SECRET_ARGS if isinstance(args.get(each), str)]
        shown += [each for each in _variables(settings) if _SECRET_NAME.search(each)]
        if shown:
            yield (
                name,
                pool,
                f"Ray's dashboard shows {', '.join(shown)}: set it in the environment of the nodes instead",
            )


def _variables(settings: PoolConfig) -> Mapping[str, Any]:
    runtime_env = settings.ray_actor_options.get("runtime_env") or {}
    return {**runtime_env.get("env_vars", {}), **settings.env}


def try_store(config: GatewayConfig) -> tuple[str, str] | None:
    """Returns (level, what was found); None if no store is configured.

    It is never an error: where `doctor` runs need not be where the ledger does, and a cluster serves without its store.
    """
    store = config.rate_limits.store
    if store is None:
        return None
    if not config.counts_usage:
        return "warning", "rate_limits.store has no effect: limits are off, see rate_limits.enabled"
    from serve.limits.store import RedisStore  # only here: nobody else waits for a client of Redis

    return asyncio.run(_described(RedisStore(store)))


async def _described(store: "RedisStore") -> tuple[str, str]:
    try:
        name, forgets = await store.describe()
    except SharedStateError as error:
        return "warning", f"{error} Each cluster spends its last share of each limit until it does."
    finally:
        await store.close()
    if forgets:
        return "warning", f"{name} forgets limits when its memory is full: set its maxmemory-policy to noeviction"
    return "info", f"the store of limits answers from here: {name}"
