"""Real Codex through a whole tool loop, against a gateway whose speculative engine breaks every call.

On demand (`make test-agents`): it needs the program, which `npm install @openai/codex` brings.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.agents import installed, run_agent
from support.engines import Engine, answering, chunk, end, frame, start
from support.guard_stack import config
from support.responses_api import call_delta
from support.scripted_model import scripted_model
from support.stack import Stack, running

OVERFLOW = "This model's maximum context length is 4096 tokens. However, your prompt contains 9000 input tokens."
SECRET = "the tide turns at six"
CONFIG = """\
model = "m"
model_provider = "specgate"
model_context_window = 32768
web_search = "disabled"

[model_providers.specgate]
name = "specgate"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "SPECGATE_API_KEY"
http_headers = {{ "x-enable-speculative" = "true" }}
stream_max_retries = 0
"""


def agent_engine(*, cut: bool) -> Engine:
    """Calls the client's own shell tool once, then repeats what it printed.

    Args:
        cut: True to end the call in the middle of its arguments, as a faulty speculative engine does.
    """

    async def handle(engine: Engine, send: Any, body: bytes) -> None:
        request = json.loads(body)
        await start(send, kind="text/event-stream; charset=utf-8")
        chunks = _answer(request) if request["messages"][-1]["role"] == "tool" else _call(request, cut)
        for each in [chunk({"role": "assistant", "reasoning": "Let me look."}), *chunks]:
            await send({"type": "http.response.body", "body": frame(each), "more_body": True})
        await end(send, frame("[DONE]"))

    return Engine(handle)


def _answer(request: dict[str, Any]) -> list[dict[str, Any]]:
    return [chunk({"content": f"The file says: {request['messages'][-1]['content']}"}), chunk({}, "stop")]


def _call(request: dict[str, Any], cut: bool) -> list[dict[str, Any]]:
    functions = {tool["function"]["name"]: tool["function"]["parameters"] for tool in request["tools"]}
    name = next(name for name in ("exec_command", "shell_command", "shell") if name in functions)
    key = "cmd" if "cmd" in functions[name]["properties"] else "command"
    command: Any = "cat secret.txt"
    if functions[name]["properties"][key].get("type") == "array":
        command = ["cat", "secret.txt"]
    arguments = json.dumps({key: command})
    return [chunk(call_delta(0, arguments[:-4] if cut else arguments, "call_1", name)), chunk({}, "tool_calls")]


@asynccontextmanager
async def gateway(speculative: Engine, standard: Engine) -> AsyncIterator[Stack]:
    async with running(config("hermes"), {("m", "speculative"): speculative, ("m", "standard"): standard}) as stack:
        yield stack


async def catalogue(folder: Path) -> str:
    """The line of the configuration that makes Codex treat our model as one that patches files with free text."""
    output = await run_agent(installed("codex"), "debug", "models", "--bundled", folder=folder, env={})
    known = json.loads(output[output.index("{") :])["models"]
    patcher = next(model for model in known if model["slug"] == "gpt-5.5")
    assert patcher["apply_patch_tool_type"] == "freeform"
    path = folder / "models.json"
    path.write_text(json.dumps({"models": [{**patcher, "slug": "m"}]}))
    return f"model_catalog_json = {json.dumps(str(path))}\n"


async def codex(stack: Stack, folder: Path, task: str = "Read secret.txt", settings: str = "") -> list[dict[str, Any]]:
    """The events that `codex exec` prints, at work in a folder with a secret."""
    program = installed("codex")
    home, work = folder / "codex", folder / "work"
    home.mkdir()
    work.mkdir()
    (home / "config.toml").write_text(settings + CONFIG.format(url=stack.url))
    (work / "secret.txt").write_text(SECRET)
    output = await run_agent(
        program, "exec", "--skip-git-repo-check", "--json", "--dangerously-bypass-approvals-and-sandbox", task,
        folder=work,
        env={"CODEX_HOME": str(home), "SPECGATE_API_KEY": "none"},
    )  # fmt: skip
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def failure(events: list[dict[str, Any]]) -> str:
    """The message that a failed turn ends with."""
    (failed,) = [event for event in events if event["type"] == "turn.failed"]
    message: str = failed["error"]["message"]
    return message


async def test_codex_runs_a_healed_call_once_and_reads_the_answer(tmp_path: Path) -> None:
    async with gateway(agent_engine(cut=True), agent_engine(cut=False)) as stack:
        events = await codex(stack, tmp_path)
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    commands = [item for item in items if item["type"] == "command_execution"]
    assert [SECRET in command["aggregated_output"] for command in commands] == [True]
    assert [item["text"] for item in items if item["type"] == "agent_message" and SECRET in item["text"]]


async def test_codex_applies_a_healed_patch_once(tmp_path: Path) -> None:
    patch = f"*** Begin Patch\n*** Update File: secret.txt\n@@\n-{SECRET}\n+the tide has turned\n*** End Patch"
    calls = {"apply_patch": {"input": patch}}
    broken, sound = scripted_model("cut", calls), scripted_model("none", calls)
    async with gateway(broken, sound) as stack:
        events = await codex(stack, tmp_path, "Say that the tide has turned", await catalogue(tmp_path))
    assert (tmp_path / "work" / "secret.txt").read_text() == "the tide has turned\n"
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    assert [len(item["changes"]) for item in items if item["type"] == "file_change"] == [1]
    assert len(sound.requests) == 1
    request = json.loads(broken.requests[-1][1])
    [tool] = [tool["function"] for tool in request["tools"] if tool["function"]["name"] == "apply_patch"]
    assert "lark grammar" in tool["description"]  # so it is the tool of free text, not the function
    reply = request["messages"][-1]
    assert (reply["role"], "Success" in reply["content"]) == ("tool", True)


async def test_codex_shows_why_no_pool_was_right_and_does_not_ask_again(tmp_path: Path) -> None:
    broken = agent_engine(cut=True)
    async with gateway(broken, agent_engine(cut=True)) as stack:
        events = await codex(stack, tmp_path)
    assert "could not be repaired" in failure(events)
    assert len(broken.requests) == 1
    assert not [event for event in events if event.get("item", {}).get("type") == "command_execution"]


async def test_codex_knows_a_prompt_that_is_too_long_and_does_not_ask_again(tmp_path: Path) -> None:
    engine = answering({"error": {"message": OVERFLOW, "type": "BadRequestError", "code": 400}}, 400)
    async with gateway(engine, engine) as stack:
        events = await codex(stack, tmp_path)
    assert len(engine.requests) == 1
    assert "context window" in failure(events)
