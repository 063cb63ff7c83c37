"""Any pools, advisories, settings and requests, for laws about decisions."""

import dataclasses
from collections.abc import Sequence
from datetime import date

from hypothesis import strategies as st

from policies import Advisory, Override, PolicySettings, PoolFacts, RequestFeatures
from policies.advisory import unreadable
from policies.classes import GROUPS, IMPLIED, KINDS, MODIFIERS

DAY = date(2026, 11, 21)
NAMES = ("one", "two", "three")
IDS = tuple("abcdef")

pools = st.lists(
    st.builds(
        PoolFacts,
        model=st.just("m"),
        pool=st.sampled_from(NAMES),
        method=st.sampled_from([None, "ngram", "eagle3"]),
        engine_version=st.sampled_from([None, "0.19.1", "0.32.0"]),
        hybrid=st.sampled_from([None, True, False]),
        opt_out=st.booleans(),
        canary_share=st.sampled_from([None, None, 0.3]),
        proven=st.frozensets(st.sampled_from(["tools", "json", "tools_auto+thinking"]), max_size=2),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda facts: facts.pool,
).map(lambda facts: (dataclasses.replace(facts[0], canary_share=None), *facts[1:]))

expressions = st.lists(
    st.sampled_from((*KINDS, *MODIFIERS, *IMPLIED, *GROUPS)), min_size=1, max_size=3, unique=True
).map("+".join)


HARSHEST_FIRST = ("forbid", "warn", "allow")
# Never harsher on a standard pool than on a speculative one, as no hazard of speculation is.
effects = st.tuples(st.sampled_from(["forbid", "warn"]), *[st.sampled_from(HARSHEST_FIRST)] * 2).map(
    lambda drawn: dict(
        zip(("speculative", "opt_out", "standard"), sorted(drawn, key=HARSHEST_FIRST.index), strict=True)
    )
)


def advisory_of(name: str) -> st.SearchStrategy[Advisory]:
    readable = st.builds(
        Advisory,
        id=st.just(name),
        title=st.just("t"),
        summary=st.just("s"),
        status=st.sampled_from(["confirmed", "suspected", "withdrawn"]),
        severity=st.just("high"),
        affects=st.sampled_from(
            [({"method": ["ngram"]},), ({"engine_version": "<0.32"},), ({"hybrid": True}, {"method": "eagle3"}), ({},)]
        ),
        unsafe=st.lists(expressions, min_size=1, max_size=2).map(tuple),
        effects=effects,
    )
    return readable | st.just(unreadable(name, "broken"))


known_advisories = st.lists(st.sampled_from(IDS), unique=True, max_size=4).flatmap(
    lambda names: st.tuples(*map(advisory_of, names))
)
settings = st.builds(
    PolicySettings,
    mode=st.sampled_from(["enforce", "advise"]),
    optimistic=st.booleans(),
    guard=st.booleans(),
    overrides=st.lists(
        st.builds(
            Override, action=st.sampled_from(["pin", "forbid"]), reason=st.just("r"), pool=st.sampled_from(NAMES)
        ),
        max_size=1,
    ).map(tuple),
)
requests = st.builds(
    RequestFeatures,
    model=st.sampled_from(["m", "m", "m", "other"]),
    stream=st.booleans(),
    tools=st.integers(0, 2),
    tool_choice=st.sampled_from(["auto", "required", "named", "none"]),
    strict_tools=st.booleans(),
    response_format=st.sampled_from([None, "json_object", "json_schema", "structural_tag"]),
    thinking=st.booleans(),
    stop=st.booleans(),
    guided=st.booleans(),
    conversation_key=st.text(max_size=4),
)
wishes = st.sampled_from([None, True, False])


def usable(facts: Sequence[PoolFacts], chosen: PolicySettings) -> PolicySettings:
    """Overrides may name only pools that are there."""
    names = {each.pool for each in facts}
    kept = tuple(each for each in chosen.overrides if each.pool in names)
    return dataclasses.replace(chosen, overrides=kept)
