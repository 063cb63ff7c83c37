"""Client libraries through whole tool loops, against gateways whose speculative engine breaks every call.

Each library runs in a process and an environment of its own, as its users have it; `make test-agents` makes these.
"""

import asyncio
import json
import shutil
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from support.agents import installed
from support.guard_stack import config
from support.scripted_model import CITY, DOCUMENT, Fault, scripted_model
from support.stack import running

SCRIPTS = Path(__file__).parent / "clients"
ENVIRONMENTS = Path(__file__).parents[2] / "build" / "agents"
TIMEOUT_S = 300
# The environment of each script: instructor wants an OpenAI SDK of its own, and the last one is JavaScript.
LIBRARIES = {
    "anthropic_sdk": "sdks",
    "instructor_models": "instructor",
    "langchain_models": "sdks",
    "openai_agents": "sdks",
    "openai_sdk": "sdks",
    "pydantic_ai_agents": "sdks",
    "ai_sdk": "npm",
}
# What the speculative and the standard pool do to every call, one gateway each.
GATEWAYS: tuple[tuple[Fault, Fault], ...] = (("cut", "none"), ("cut", "cut"), ("lost", "lost"))
Outcomes = Mapping[tuple[Fault, Fault], Mapping[str, Any]]


def command_of(library: str) -> tuple[str, str]:
    """The command that runs a library's loops against the gateways that follow."""
    environment = ENVIRONMENTS / LIBRARIES[library]
    if LIBRARIES[library] != "npm":
        python = environment / "bin" / "python"
        assert python.exists(), "`make test-agents` installs the libraries"
        return str(python), str(SCRIPTS / f"{library}.py")
    if not (environment / "node_modules" / "ai").exists():
        pytest.skip("`make agents` installs Vercel's AI SDK")
    # Node looks for a script's packages beside the script.
    return installed("node"), shutil.copy(SCRIPTS / f"{library}.mjs", environment)


@pytest.fixture(scope="module", params=LIBRARIES)
async def outcomes(request: pytest.FixtureRequest) -> Outcomes:
    """What came of a library's loops at each gateway, by the loop's name."""
    command = command_of(request.param)
    async with AsyncExitStack() as stack:
        urls = []
        for speculative, standard in GATEWAYS:
            engines = {("m", "speculative"): scripted_model(speculative), ("m", "standard"): scripted_model(standard)}
            urls.append((await stack.enter_async_context(running(config("hermes"), engines))).url)
        process = await asyncio.create_subprocess_exec(
            *command, *urls, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0, errors.decode()
    return dict(zip(GATEWAYS, map(json.loads, output.splitlines()), strict=True))


def test_every_loop_ends_as_if_no_call_had_been_broken(outcomes: Outcomes) -> None:
    for name, outcome in outcomes["cut", "none"].items():
        if "document" in name:
            expected: Any = {"answer": json.dumps(DOCUMENT, separators=(",", ":")), "error": "", "cities": []}
        else:
            expected = {"answer": f"The tool says: 21 degrees in {CITY}", "error": "", "cities": [CITY]}
        assert (name, outcome) == (name, expected)


@pytest.mark.parametrize("fault", ["cut", "lost"])
def test_no_tool_runs_and_nothing_passes_for_an_answer_if_no_pool_is_right(outcomes: Outcomes, fault: Fault) -> None:
    for name, outcome in outcomes[fault, fault].items():
        assert (name, outcome["answer"], outcome["cities"]) == (name, "", [])
        assert outcome["error"], name
