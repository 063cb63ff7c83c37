"""Whatever the policy, the load and what was learned: the ranking re-orders what is allowed, and never adds."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from policies import Decision, RequestFeatures, choose, decide
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig
from serve.load.learned import LoadReport
from serve.load.live_load import LiveLoad

POOLS = ("eagle", "ngram", "standard", "spare")
CLASSES = ["tools", "json", "plain", "thinking", "any"]
# What an engine states of itself: nothing is known against the first, advisories forbid some classes on all others.
FACTS: tuple[dict[str, Any], ...] = (
    {},
    {"engine_version": "0.23.0"},
    {"drafter": "kimi-k2.6-eagle3"},
    {"hybrid": True, "method": "mtp", "prefix_caching": True, "engine_version": "0.28.0"},
    {"hybrid": True, "method": "mtp", "prefix_caching": True},
    {"method": "ngram", "settings": {"prompt_lookup_min": 2}},
)
classes = st.lists(st.sampled_from(CLASSES), min_size=1, max_size=2, unique=True)
pools = st.fixed_dictionaries(
    {
        "facts": st.sampled_from(FACTS),
        "drafts": st.integers(1, 7),
        "seats": st.sampled_from([1, 8, 25, 256]),
        "proven": st.one_of(st.just([]), classes),
        "canary": st.booleans(),
    }
)
overrides = st.lists(
    st.fixed_dictionaries(
        {
            "action": st.sampled_from(["forbid", "pin"]),
            "pool": st.sampled_from(POOLS),
            "classes": classes,
            "reason": st.just("r"),
        }
    ),
    max_size=2,
)
requests = st.fixed_dictionaries(
    {"conversation_key": st.sampled_from(["", "c"])},
    optional={
        "thinking": st.booleans(),
        "stream": st.booleans(),
        "tools": st.just(1),
        "tool_choice": st.just("auto"),
        "response_format": st.sampled_from(["json_object", "json_schema"]),
    },
)
cells = st.tuples(*(st.tuples(st.floats(0, 100), st.floats(-300, 300)) for _ in range(10)))
known = st.fixed_dictionaries(
    {
        "running": st.tuples(st.floats(0, 2000), st.floats(0, 8000)),
        "steps": cells,
        "accepted": st.tuples(st.integers(0, 500), st.floats(0, 1e5), st.floats(0, 1e5)),
        "here": st.integers(0, 60),
    }
)


def config_of(drawn: list[dict[str, Any]], **policy: Any) -> GatewayConfig:
    def pool(name: str, one: dict[str, Any]) -> dict[str, Any]:
        facts = {"engine": "vllm", "engine_version": "0.32.0", "tool_parser": "kimi_k2", "prefix_caching": False}
        found = {"kind": "remote", "url": "http://unused", "max_ongoing_requests": one["seats"], "facts": facts}
        if name in ("standard", "spare"):
            return {**found, "facts": {**facts, "method": "none"}}
        facts |= {"method": "eagle3", "drafter": "d", "num_speculative_tokens": one["drafts"], **one["facts"]}
        canary = {"canary_share": 0.3} if one["canary"] and name == "ngram" else {}
        return {**found, **canary, "proven": one["proven"]}

    named = {name: pool(name, one) for name, one in zip(POOLS, drawn, strict=True)}
    model = {"family": "kimi-k2", "version": "2.6", "grammar": "kimi_k2", "pools": named}
    return GatewayConfig.parse({"models": {"m": model}, "policy": {"load": "route", **policy}})


def learned_in(load: LiveLoad, drawn: dict[str, dict[str, Any]], decisions: list[Decision]) -> None:
    """Puts the load into a state: requests here and elsewhere, step times, acceptance, and a conversation's home."""
    for decision in decisions:
        for candidate in decision.candidates:
            for _ in range(drawn[candidate.pool]["here"]):
                load.begin(decision, RequestFeatures("m", conversation_key="c"), candidate, 40_000)
    learned = {key[:3]: drawn[key[1]]["accepted"] for key in load.learned()}
    running = {("m", pool): found["running"] for pool, found in drawn.items()}
    load.merge(LoadReport(running, {("m", pool): found["steps"] for pool, found in drawn.items()}, learned))
    load.check()


@given(
    drawn=st.lists(pools, min_size=4, max_size=4),
    overrides=overrides,
    mode=st.sampled_from(["enforce", "advise"]),
    optimistic=st.booleans(),
    state=st.fixed_dictionaries(dict.fromkeys(POOLS, known)),
    asked=st.lists(st.tuples(requests, st.integers(0, 10**7)), min_size=1, max_size=6),
)
def test_no_state_brings_a_request_where_the_policy_forbids_it(
    drawn: list[dict[str, Any]],
    overrides: list[dict[str, Any]],
    mode: str,
    optimistic: bool,
    state: dict[str, dict[str, Any]],
    asked: list[tuple[dict[str, Any], int]],
) -> None:
    config = config_of(drawn, overrides=overrides, mode=mode, optimistic=optimistic)
    policy = compile_for(config)
    load = LiveLoad(config, policy)
    wanted = [
        (RequestFeatures("m", preference=preference, **features), size_bytes)
        for features, size_bytes in asked
        for preference in (None, True, False)
    ]
    decisions = [decide(policy, features, features.preference) for features, _ in wanted]
    learned_in(load, state, [each for each in decisions if not each.refused])
    for (features, size_bytes), decision in zip(wanted, decisions, strict=True):
        if decision.refused:
            continue
        for _ in range(2):  # once to build its ranking, once with it
            found = choose(decision, load.order(decision, features, size_bytes))
            assert sorted(found.candidates, key=repr) == sorted(decision.candidates, key=repr)
            follows_its_first(found)
            assert found.optimistic <= decision.optimistic, "one under suspicion came before one that is not"
            assert found is decision or not features.preference, "a wish for speculation was overruled"


def follows_its_first(decision: Decision) -> None:
    first = decision.candidates[0]
    assert (decision.pool, decision.speculative) == (first.pool, first.speculative)
    assert (decision.opt_out, decision.optimistic) == (first.opt_out, first.optimistic)
