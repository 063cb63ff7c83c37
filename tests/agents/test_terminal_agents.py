"""Agents of the terminal through whole tool loops, against a gateway whose speculative engine breaks every call.

On demand: `make agents` installs them, and those that are not there are skipped.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.agents import installed, run_agent
from support.guard_stack import config
from support.scripted_model import Fault, scripted_model
from support.stack import running

SECRET = "the tide turns at six"
TASK = "Read secret.txt"


def calls(folder: Path) -> dict[str, dict[str, Any]]:
    """How to read the file with each agent's own tools."""
    return {
        "bash": {"command": "cat secret.txt"},  # opencode
        "read_file": {"file_path": str(folder / "secret.txt")},  # Qwen Code
        "run_commands": {"commands": ["cat secret.txt"]},  # Cline
        "Shell": {"command": "cat secret.txt"},  # Kimi CLI
    }


class Command(NamedTuple):
    """How an agent is started.

    Attributes:
        program: Its name.
        arguments: Of its command line.
        env: Its variables.
    """

    program: str
    arguments: list[str]
    env: dict[str, str] = {}  # noqa: RUF012


# How an agent is pointed at a gateway, given its URL and the folder where the agent works.
Connect = Callable[[str, Path], Command]


def opencode(package: str) -> Connect:
    def connect(url: str, _: Path) -> Command:
        provider = {
            "npm": package,
            "name": "specgate",
            "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
            "models": {"m": {"name": "m", "limit": {"context": 32768, "output": 4096}}},
        }
        settings = {"provider": {"specgate": provider}, "small_model": "specgate/m", "autoupdate": False}
        return Command("opencode", ["run", "-m", "specgate/m", TASK], {"OPENCODE_CONFIG_CONTENT": json.dumps(settings)})

    return connect


def qwen(api: str, variables: str, version: str) -> Connect:
    def connect(url: str, _: Path) -> Command:
        env = {f"{variables}_BASE_URL": url + version, f"{variables}_API_KEY": "none", f"{variables}_MODEL": "m"}
        return Command("qwen", ["--yolo", "--auth-type", api, "-m", "m", TASK], env)

    return connect


def cline(provider: str, version: str) -> Connect:
    def connect(url: str, folder: Path) -> Command:
        data = folder.parent / "cline"
        (data / "settings").mkdir(parents=True)
        settings = {"provider": provider, "apiKey": "none", "model": "m", "baseUrl": url + version}
        known = {"settings": settings, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}
        content = {"version": 1, "lastUsedProvider": provider, "modes": {}, "providers": {provider: known}}
        (data / "settings" / "providers.json").write_text(json.dumps(content))
        return Command("cline", ["--json", "--data-dir", str(data), "-P", provider, "-m", "m", TASK])

    return connect


def kimi(kind: str, version: str) -> Connect:
    def connect(url: str, _: Path) -> Command:
        provider = {"type": kind, "base_url": url + version, "api_key": "none"}
        model = {"provider": "specgate", "model": "m", "max_context_size": 262144}
        settings = {"default_model": "m", "models": {"m": model}, "providers": {"specgate": provider}}
        return Command("kimi", ["--config", json.dumps(settings), "--print", "--yolo", "--prompt", TASK])

    return connect


AGENTS = {
    "opencode, chat": opencode("@ai-sdk/openai-compatible"),
    "opencode, responses": opencode("@ai-sdk/openai"),
    "opencode, messages": opencode("@ai-sdk/anthropic"),
    "qwen, chat": qwen("openai", "OPENAI", "/v1"),
    "qwen, responses": qwen("openai-responses", "OPENAI", "/v1"),
    "qwen, messages": qwen("anthropic", "ANTHROPIC", ""),
    "cline, chat": cline("openai-compatible", "/v1"),
    "cline, messages": cline("anthropic", "/v1"),
    "kimi, chat": kimi("openai_legacy", "/v1"),
    "kimi, responses": kimi("openai_responses", "/v1"),
}


async def printed(connect: Connect, folder: Path, speculative: Fault, standard: Fault) -> tuple[str, list[str]]:
    """What an agent prints at its task, and the results of its tools that it sent."""
    work = folder / "work"
    work.mkdir()
    (work / "secret.txt").write_text(SECRET)
    pools = {"speculative": speculative, "standard": standard}
    engines = {("m", pool): scripted_model(fault, calls(work)) for pool, fault in pools.items()}
    async with running(config("hermes"), engines) as stack:
        command = connect(stack.url, work)
        output = await run_agent(installed(command.program), *command.arguments, folder=work, env=command.env)
    asked = [json.loads(body)["messages"] for engine in engines.values() for _, body in engine.requests]
    return output, [str(message["content"]) for messages in asked for message in messages if message["role"] == "tool"]


@pytest.mark.parametrize("agent", AGENTS)
async def test_an_agent_runs_a_healed_call_once_and_says_what_it_read(agent: str, tmp_path: Path) -> None:
    output, results = await printed(AGENTS[agent], tmp_path, "cut", "none")
    assert "The tool says: " in output, output
    assert [SECRET in result for result in results] == [True]


@pytest.mark.parametrize("agent", AGENTS)
async def test_an_agent_runs_no_call_that_no_pool_got_right(agent: str, tmp_path: Path) -> None:
    output, results = await printed(AGENTS[agent], tmp_path, "cut", "cut")
    assert SECRET not in output
    assert results == []
