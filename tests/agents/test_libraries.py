"""Client libraries through whole tool loops, against gateways whose speculative engine breaks every call."""

import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest
from support.guard_stack import config
from support.libraries import LIBRARIES, Outcomes, outcomes_of
from support.scripted_model import CITY, DOCUMENT, Fault, scripted_model
from support.stack import running

# What the speculative and the standard pool do to every call, one gateway each.
GATEWAYS: tuple[tuple[Fault, Fault], ...] = (("cut", "none"), ("cut", "cut"), ("lost", "lost"))
OutcomesByFault = Mapping[tuple[Fault, Fault], Outcomes]


@pytest.fixture(scope="module", params=LIBRARIES)
async def outcomes(request: pytest.FixtureRequest) -> OutcomesByFault:
    """What came of a library's loops at each gateway, by the loop's name."""
    async with AsyncExitStack() as stack:
        urls = []
        for speculative, standard in GATEWAYS:
            engines = {("m", "speculative"): scripted_model(speculative), ("m", "standard"): scripted_model(standard)}
            urls.append((await stack.enter_async_context(running(config("hermes"), engines))).url)
        return dict(zip(GATEWAYS, await outcomes_of(request.param, *urls), strict=True))


def test_every_loop_ends_as_if_no_call_had_been_broken(outcomes: OutcomesByFault) -> None:
    for name, outcome in outcomes["cut", "none"].items():
        if "document" in name:
            expected: tuple[Any, ...] = (json.dumps(DOCUMENT, separators=(",", ":")), "", [])
        else:
            expected = (f"The tool says: 21 degrees in {CITY}", "", [CITY])
        assert (name, outcome["answer"], outcome["error"], outcome["cities"]) == (name, *expected)


@pytest.mark.parametrize("fault", ["cut", "lost"])
def test_no_tool_runs_and_nothing_passes_for_an_answer_if_no_pool_is_right(
    outcomes: OutcomesByFault, fault: Fault
) -> None:
    for name, outcome in outcomes[fault, fault].items():
        assert (name, outcome["answer"], outcome["cities"]) == (name, "", [])
        assert outcome["error"], name
