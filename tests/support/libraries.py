"""Client libraries through whole tool loops, each in a process and an environment of its own, as its users have it.

`make test-agents` and `make test` make the environments, `make agents` that of the JavaScript library.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.agents import installed

_TESTS = Path(__file__).parents[1]
_SCRIPTS = _TESTS / "agents" / "clients"
_ENVIRONMENTS = _TESTS.parent / "build" / "agents"
_TIMEOUT_S = 300
# The environment of each script: instructor wants an OpenAI SDK of its own, and the last two are JavaScript.
LIBRARIES = {
    "anthropic_sdk": "sdks",
    "instructor_models": "instructor",
    "langchain_models": "sdks",
    "openai_agents": "sdks",
    "openai_sdk": "sdks",
    "pydantic_ai_agents": "sdks",
    "ai_sdk": "npm",
    "openai_node": "npm",
}
# What came of a library's loops, by their names: `answer`, `error`, the `cities` that the tool was
# called with and, from loops in Python, the `tokens` that the library counted.
Outcomes = Mapping[str, Mapping[str, Any]]


async def outcomes_of(library: str, *urls: str, model: str = "m", left_out: str = "") -> list[Outcomes]:
    """Runs the loops of a library against each gateway.

    Args:
        library: One of `LIBRARIES`.
        urls: Of the gateways.
        model: The model that is asked.
        left_out: A word in the names of loops that do not run.
    """
    process = await asyncio.create_subprocess_exec(
        *_command_of(library),
        *urls,
        env={**os.environ, "SPECGATE_MODEL": model, "SPECGATE_LEFT_OUT": left_out},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), _TIMEOUT_S)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, errors.decode()
    return list(map(json.loads, output.splitlines()))


def _command_of(library: str) -> tuple[str, str]:
    environment = _ENVIRONMENTS / LIBRARIES[library]
    if LIBRARIES[library] != "npm":
        python = environment / "bin" / "python"
        if not python.exists():
            pytest.skip("`make test-agents` installs the libraries")
        return str(python), str(_SCRIPTS / f"{library}.py")
    if not all((environment / "node_modules" / name).exists() for name in ("ai", "openai")):
        pytest.skip("`make agents` installs Vercel's AI SDK and OpenAI's for JavaScript")
    shutil.copy(_SCRIPTS / "harness.mjs", environment)
    # Node looks for a script's packages beside the script.
    return installed("node"), shutil.copy(_SCRIPTS / f"{library}.mjs", environment)
