"""Whatever an engine says of its answers, what is learned stays within bounds, and the ranking has a worth for all."""

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lab.simulation.arms import routing
from lab.simulation.site import Shape, config_of
from policies import RequestFeatures, choose, decide
from serve.config.compiled_policy import compile_for
from serve.load.live_load import LiveLoad

CONFIG = routing(config_of({"speculative": Shape(3, 1, 8), "standard": Shape(0, 1, 8)}))
POLICY = compile_for(CONFIG)
numbers = st.one_of(
    st.integers(-3, 500), st.integers(), st.sampled_from([10**9, 10**18, 10**400, -(10**400)]), st.floats(),
    st.booleans(), st.none(), st.text(max_size=3), st.lists(st.integers(), max_size=2),
)  # fmt: skip
reports = st.dictionaries(
    st.sampled_from(["num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens", "num_spec_tokens"]), numbers
)
answers = st.fixed_dictionaries(
    {}, optional={"usage": st.fixed_dictionaries({"completion_tokens": numbers}),
                  "metrics": st.fixed_dictionaries({"speculative_decoding": reports})},
)  # fmt: skip
reply = st.tuples(st.booleans(), answers, st.floats(-1, 1e6), st.integers(0, 10**9))


class Told:
    """The end of an engine's response."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.last = (json.dumps(answer, separators=(",", ":")).encode(),)


@given(st.lists(reply, max_size=30))
def test_what_is_learned_stays_within_bounds(events: list[tuple[bool, dict[str, Any], float, int]]) -> None:
    now_s = 0.0
    load = LiveLoad(CONFIG, POLICY, clock=lambda: now_s)
    features = RequestFeatures("m")
    decision = decide(POLICY, features, None)
    for drafting, answer, took_s, size_bytes in events:
        candidate = next(each for each in decision.candidates if each.speculative == drafting)
        sent = load.begin(decision, features, candidate, size_bytes)
        now_s += took_s  # a clock may even go back
        sent.response = Told(answer)
        sent.end()
        load.check()
        for _, pool, _, known in load.learned():
            assert 1.0 <= known.length <= (4.0 if pool == "speculative" else 1.0) + 1e-9
        for each in load.figures(decision, features, size_bytes):
            assert math.isfinite(each["value"])
            assert math.isfinite(each["own_tokens_per_s"])
        assert len(choose(decision, order=load.order(decision, features, size_bytes)).candidates) == len(
            decision.candidates
        )
    assert all(each.requests == 0 for each in load.loads.values())
