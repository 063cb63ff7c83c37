"""Client libraries through whole tool loops, on real engines: the scripts of `make test-agents`."""

import asyncio

import pytest
from support.libraries import LIBRARIES, outcomes_of

pytestmark = pytest.mark.engine

MODELS = ("tiny-kimi", "tiny-qwen")


@pytest.mark.parametrize("library", [name for name, environment in LIBRARIES.items() if environment == "sdks"])
async def test_every_loop_runs_the_tool_and_ends_with_an_answer(gateway_url: str, library: str) -> None:
    # The tiny models were not trained to fill any document: such loops are judged on scripted engines only.
    runs = (outcomes_of(library, gateway_url, model=model, left_out="document") for model in MODELS)
    for model, (outcomes,) in zip(MODELS, await asyncio.gather(*runs), strict=True):
        assert outcomes
        for name, outcome in outcomes.items():
            where = (model, name, outcome)
            assert not outcome["error"], where
            assert outcome["cities"], where
            assert all(isinstance(city, str) and city for city in outcome["cities"]), where
            assert outcome["answer"].strip(), where
            assert outcome["tokens"] > 0, where
