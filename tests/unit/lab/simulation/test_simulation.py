"""Traffic played against every arm: all is served once, nothing where it is forbidden, whatever the traffic."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab.simulation.arms import ARMS, two_gateways
from lab.simulation.figures import compared
from lab.simulation.oracle import ORACLES
from lab.simulation.request import KINDS, PROSE, TOOLS, Drafter, SimRequest
from lab.simulation.simulation import Recorded, play
from lab.simulation.site import Site, default_config
from lab.simulation.traffic import Traffic
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig

EVERY_ARM = {**ARMS, **ORACLES, "two_gateways": two_gateways}
FREE = default_config(seats=4)
BOUND = default_config(2, 4, forbidden=["tools", "json_schema"])
POLICIES = {id(config): compile_for(config) for config in (FREE, BOUND)}


def requests(count: int = 40, every_s: float = 0.05) -> list[SimRequest]:
    kinds = list(KINDS)
    return [SimRequest(n * every_s, f"s{n % 7}", kinds[n % 3], 500 + n, 100 + n, ("sys", 300)) for n in range(count)]


@pytest.mark.parametrize("arm", EVERY_ARM)
@pytest.mark.parametrize("config", [FREE, BOUND], ids=["free", "bound"])
def test_every_request_is_served_once_and_nowhere_that_is_forbidden(arm: str, config: GatewayConfig) -> None:
    given = requests()
    outcome = play(Recorded(given), Site(config, POLICIES[id(config)]), Drafter(), EVERY_ARM[arm], 1)
    assert sorted(map(id, outcome.requests)) == sorted(map(id, given))
    assert (outcome.forbidden, outcome.refused) == (0, 0)
    for request in outcome.requests:
        assert request.at_s < request.first_s <= request.end_s
        if config is BOUND and request.kind != "prose":
            assert request.candidate is not None
            assert request.candidate.pool == "standard"


LINES = st.lists(
    st.tuples(st.floats(0, 3), st.sampled_from(list(KINDS)), st.integers(0, 4000), st.integers(1, 900)), max_size=40
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(LINES, st.sampled_from(sorted(EVERY_ARM)), st.integers(0, 5))
def test_no_traffic_gets_lost_or_ends_before_it_began(
    lines: list[tuple[float, str, int, int]], arm: str, seed: int
) -> None:
    given = [
        SimRequest(at_s, f"s{n % 5}", kind, prompt, output, ("sys", 200))
        for n, (at_s, kind, prompt, output) in enumerate(sorted(lines))
    ]
    outcome = play(Recorded(given), Site(BOUND, POLICIES[id(BOUND)]), Drafter(), EVERY_ARM[arm], seed)
    assert len(outcome.requests) == len(given)
    assert outcome.forbidden == 0
    assert all(request.at_s < request.first_s <= request.end_s + 1e-9 for request in outcome.requests)
    assert 0.0 <= outcome.hit_rate <= 1.0


def test_the_report_has_the_figures_of_every_arm() -> None:
    report = compared(Traffic(requests()), FREE)
    assert set(report["arms"]) == {"speculative_first", "standard_only", "two_choices", "class_rule", "specgate"}
    for row in (*report["arms"].values(), report["oracle"]):
        assert row["requests"] == 40
        assert row["ttft_ms"]["p50"] <= row["ttft_ms"]["p99"]
        assert 0 < row["prefix_hit_rate"] < 1
        assert row["clean_calls_per_s"] > 0
    assert report["oracle"]["ratio_to_oracle"] == 1.0


def test_no_arm_is_far_above_the_oracle_where_prompts_are_long() -> None:
    kinds = [TOOLS, PROSE]
    given = [SimRequest(n * 0.5, f"s{n}", kinds[n % 2], 4000 + 251 * (n % 40), 100 + n % 90) for n in range(200)]
    report = compared(Traffic(given), default_config(seats=64))
    assert max(row["ratio_to_oracle"] for row in report["arms"].values()) <= 1.02
