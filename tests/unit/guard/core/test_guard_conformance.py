"""The guard on other people's data: corrupted outputs are flagged, true ones are not, real streams stay as they are."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serve.config.guard import GuardConfig
from serve.guard.core import Guard, GuardState, Outcome, check_answer

FOLDER = Path(os.environ.get("SPECGATE_CONFORMANCE", Path(__file__).parents[5] / "shared" / "conformance"))
needs_data = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no conformance data in {FOLDER}")
pytestmark = needs_data


def rows(name: str) -> Iterator[dict[str, Any]]:
    with (FOLDER / name).open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def answer(content: str | None, calls: list[tuple[str, str]]) -> dict[str, Any]:
    made = [
        {"id": f"c{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": content, "tool_calls": made}
    return {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if made else "stop"}]}


def test_every_corrupted_output_is_flagged_in_what_an_engine_made_of_it() -> None:
    judged = 0
    for row in rows("corrupted_outputs.jsonl"):
        for observed in row["observed"].values():
            body = {"messages": [{"role": "user", "content": "go"}], "tools": row["tools"]}
            seen = answer(observed["content"], [tuple(call) for call in observed["tool_calls"]])
            assert not check_answer(GuardConfig(), body, seen).good, row["case"]
            judged += 1
        raw = {"messages": [{"role": "user", "content": "go"}], "tools": row["tools"]}
        assert not check_answer(GuardConfig(), raw, answer(row["output_text"], [])).good, row["case"]
    assert judged


@pytest.mark.parametrize("name", ["bfcl_kimi_k2.jsonl", "bfcl_qwen3_coder.jsonl", "bfcl_qwen3_json.jsonl"])
def test_true_calls_are_not_flagged(name: str) -> None:
    for row in rows(name):
        body = {"messages": [{"role": "user", "content": "go"}], "tools": row["tools"]}
        calls = [(call["name"], json.dumps(call["arguments"])) for call in row["expected_tool_calls"]]
        verdict = check_answer(GuardConfig(), body, answer(None, calls))
        assert verdict.outcome in (Outcome.CLEAN, Outcome.SCHEMA_MISMATCH), row["case"]


def test_real_streams_of_openai_pass_with_nothing_but_calls_held_back() -> None:
    for index in rows("api/openai_sse_index.jsonl"):
        text = (FOLDER / "api" / "openai_sse" / index["file"]).read_text(encoding="utf-8")
        data = [line[6:] for line in text.splitlines() if line.startswith("data: ") and line != "data: [DONE]"]
        chunks = [json.loads(each) for each in data]
        names = {
            entry["function"]["name"]
            for chunk in chunks for choice in chunk["choices"]
            for entry in choice["delta"].get("tool_calls", ()) if "id" in entry
        }  # fmt: skip
        tools = [{"type": "function", "function": {"name": name}} for name in sorted(names)]
        guard = Guard(GuardConfig(), {"tools": tools, "stream_options": {"include_usage": True}})
        sent = [out for chunk in chunks for out in guard.feed(chunk)] + guard.finish()
        assert guard.state is GuardState.DONE
        assert guard.outcome in (Outcome.CLEAN, Outcome.TRUNCATED)
        if not names:
            assert [{**chunk, "usage": None} for chunk in sent] == [{**chunk, "usage": None} for chunk in chunks]
        assert folded(sent) == folded(chunks)


def folded(chunks: list[dict[str, Any]]) -> dict[Any, str]:
    made: dict[Any, str] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        delta = choice["delta"]
        parts = [("content", delta.get("content")), ("refusal", delta.get("refusal"))]
        parts += [
            ((entry["index"], key), entry.get(key) or entry["function"].get(key))
            for entry in delta.get("tool_calls", ())
            for key in ("id", "name", "arguments")
        ]
        parts.append(("finish", choice["finish_reason"]))
        for key, value in parts:
            made[choice["index"], key] = made.get((choice["index"], key), "") + (value or "")
    return made
