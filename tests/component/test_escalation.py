"""A rerun after a call of the wrong form has the engine hold the tools' schemas, where nothing speaks against it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from support.guard_stack import NO_ADVISORIES
from support.tokens import QWEN_MARKERS, asking, qwen_call, resuming

from lab.scripted.tokens import TokenFault, TokenModel

SAID = "plan a trip"
ANSWER = qwen_call("get_weather", city="Oslo", days=2)
AT = len(ANSWER[: ANSWER.index("<parameter=days>")].encode())
MANY = "<parameter=days>\nmany\n</parameter>\n</function>\n</tool_call>"
FAULTS = {"schema": TokenFault("damage", AT, MANY), "lost": TokenFault("abort", AT)}
WARNING = {
    **yaml.safe_load(Path(NO_ADVISORIES, "another-model.yaml").read_text()),
    "id": "grammars-spoil",
    "affects": [{"family": "sim"}],
    "unsafe": ["strict"],
    "effects": {"speculative": "forbid", "opt_out": "forbid", "standard": "warn"},
}


@pytest.mark.parametrize(
    ("fault", "more", "strict"),
    [
        ("schema", {}, [True]),
        ("schema", {"warned": True}, [False]),
        ("schema", {"escalate": "off"}, [False]),
        ("schema", {"holds": False}, [True, False]),
        ("lost", {}, [False]),
    ],
    ids=["wrong form", "an advisory warns", "off", "refused by the engine", "given up by the engine"],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_rerun_has_strict_tools_where_they_help_and_nothing_warns_of_them(
    tmp_path: Path, fault: str, more: Mapping[str, Any], strict: list[bool], stream: bool
) -> None:
    (tmp_path / "grammars-spoil.yaml").write_text(yaml.safe_dump(WARNING))
    advisories = str(tmp_path) if more.get("warned") else NO_ADVISORIES
    first = TokenModel({SAID: ANSWER}, "qwen3_coder", QWEN_MARKERS, [FAULTS[fault]])
    second = TokenModel({SAID: ANSWER}, "qwen3_coder", QWEN_MARKERS, holds=more.get("holds", True))
    guard = {"resume": "off", "escalate": more.get("escalate", "strict")}
    async with (
        resuming(first, second, guard=guard, policy={"advisories": advisories}) as (stack, _),
        aiohttp.ClientSession() as session,
        session.post(f"{stack.url}/v1/chat/completions", json=asking(SAID, stream=stream)) as got,
    ):
        answer = await got.text()
    assert got.status == 200
    assert "integrity_violation" not in answer
    assert [all(tool["function"].get("strict") for tool in body["tools"]) for _, body in second.bodies] == strict
    assert not any("strict" in tool["function"] for tool in first.bodies[0][1]["tools"])
