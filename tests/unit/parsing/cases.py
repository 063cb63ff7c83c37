"""Conformance cases as the parser tests read them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from serve.parsing import Event, ParsedMessage, StreamParser, fold, parse
from tests.unit.parsing.formats import UNIT

ROOT = Path(__file__).parents[3]
FOLDER = Path(os.environ.get("SPECGATE_CONFORMANCE") or ROOT.parent / "shared" / "conformance")
TRACES = Path(__file__).parent / "traces"
GRAMMARS = {"kimi_k2": "kimi_k2", "qwen3_coder": "qwen3_coder", "hermes": "hermes", "qwen3_json": "hermes",
            "qwen3_reasoning": "qwen3_coder", "kimi_k2_reasoning": "kimi_k2"}  # fmt: skip


def rows(*names: str) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for name in names
        if (FOLDER / f"{name}.jsonl").exists()
        for line in (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def traces(*names: str) -> list[dict[str, Any]]:
    return [json.loads(line) for name in names for line in (TRACES / f"{name}.jsonl").read_text().splitlines()]


def params(found: Iterable[dict[str, Any]]) -> list[Any]:
    cases = [pytest.param(row, id=f"{row['parser']}:{row['case']}:{number}") for number, row in enumerate(found)]
    reason = "the conformance cases are not beside this clone"
    return cases or [pytest.param(None, marks=pytest.mark.skip(reason=reason))]


def units(text: str) -> list[str]:
    """One marker or one character each."""
    return UNIT.findall(text)


def grouped(pieces: Sequence[str], size: int) -> list[str]:
    return ["".join(pieces[place : place + size]) for place in range(0, len(pieces), size)]


def options(row: dict[str, Any]) -> dict[str, Any]:
    only_reasoning = row["parser"].endswith("reasoning") and "+" not in row["parser"]
    return {
        "grammar": GRAMMARS[row["parser"].split("+")[0]],
        "tools": row.get("tools") or [],
        "thinking": bool(row.get("prompt_ends_in_think")),
        "calls": not only_reasoning or "tool_calls" in row["asserts"],
    }


def stream(pieces: Iterable[str], **options: Any) -> ParsedMessage:
    return fold(events(pieces, **options))


def events(pieces: Iterable[str], **options: Any) -> list[Event]:
    parser = StreamParser(**options)
    found = [event for piece in pieces for event in parser.feed(piece)]
    return found + parser.finish()


def chunkings(row: dict[str, Any]) -> Iterator[tuple[str, ParsedMessage]]:
    """The row in complete mode, unit by unit, as its own deltas, and in groups of units."""
    text, how = row["output_text"], options(row)
    yield "complete", parse(text, **how)
    pieces = units(text)
    for size in (1, 2, 3, 5, 8, 11, 23):
        yield f"{size} units", stream(grouped(pieces, size), **how)
    yield "characters", stream(text, **how)
    if row.get("deltas"):
        yield "deltas", stream([d if isinstance(d, str) else d[-1] for d in row["deltas"]], **how)


def complaints(row: dict[str, Any], message: ParsedMessage) -> list[str]:
    """What the message lacks of what the row asserts."""
    found = []
    for name, got in (("content", message.content), ("reasoning", message.reasoning)):
        if name in row["asserts"] and not _matches(got or "", row[f"expected_{name}"], row[f"{name}_match"]):
            found.append(f"{name}: {got!r}")
    wanted = row.get("expected_tool_calls") or []
    calls = message.tool_calls
    if "tool_calls" in row["asserts"]:
        got_calls = calls[-1:] if row.get("calls_match") == "last" else calls
        raw = row["args_match"] == "raw"
        if len(got_calls) != len(wanted) or not all(
            call.name == want["name"] and _same(call.arguments, want["arguments"], raw)
            for call, want in zip(got_calls, wanted, strict=True)
        ):
            found.append(f"calls: {calls}")
    if "tool_call_ids" in row["asserts"] and [c.id for c in calls] != row["expected_tool_call_ids"]:
        found.append(f"ids: {[c.id for c in calls]}")
    return found


def _same(got: str, wanted: Any, raw: bool) -> bool:
    if raw or got == wanted:
        return got == str(wanted)
    try:
        return json.loads(got) == (json.loads(wanted) if isinstance(wanted, str) else wanted)
    except ValueError:
        return False


def _matches(got: str, wanted: Any, how: str) -> bool:
    if how == "contains_all":
        return all(part in got for part in wanted)
    if how == "not_contains":
        return not any(part in got for part in wanted)
    return got == (wanted or "")
