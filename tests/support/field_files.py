"""Cases kept in a folder beside the project: one file each, with a request for one API and raw answers of engines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.conform.apis.turn import End, Turn
from support.engines import Engine, end, start

_MARKUP = ("<tool_call>", "<|tool_call", "<function=")
_OF_CALLS = ("tool_call", "<function=", "tool_calls_section")


@dataclass(frozen=True)
class FieldFile:
    """One case.

    Attributes:
        name: Of its file.
        grammar: Of the model to ask.
        path: Of the request.
        headers: Of the request.
        body: Of the request.
        upstream: The engines' answers in their order, the last one repeated: `{frames}` or `{json, status}`.
        served: Whether the client must have an answer: a call, if the first answer of the engines mentions one.
        expected: What the client should have, in words.
    """

    name: str
    grammar: str
    path: str
    headers: Mapping[str, str]
    body: Any
    upstream: Sequence[Mapping[str, Any]]
    served: bool
    expected: str


def field_files(folder: Path) -> list[FieldFile]:
    """Returns the cases of a folder whose outcome is known: faults, which must be served, and what went well before."""
    found = []
    for path in sorted(folder.glob("*.json")):
        case = json.loads(path.read_text("utf-8"))
        given, verdict, got = case.get("input"), str(case.get("verdict")), case.get("got") or {}
        if not isinstance(given, dict) or "upstream" not in given or verdict == "unclear" or _is_abridged(given):
            continue
        served = verdict.startswith("FAULT") or (got.get("status") == 200 and not got.get("error"))
        # Its own model, and the other one: a call that is clear is read whatever the model is said to write.
        both = ("kimi_k2", "qwen3_coder")
        for grammar in both if verdict.startswith("FAULT") else (given.get("model_grammar", both[0]),):
            found.append(
                FieldFile(
                    path.stem,
                    grammar,
                    given.get("path", "/v1/chat/completions"),
                    given.get("headers", {}),
                    given.get("body"),
                    given["upstream"],
                    served,
                    str(case.get("expected")),
                )
            )
    return found


def _is_abridged(given: Mapping[str, Any]) -> bool:
    """Returns whether the tools of a request were left out."""
    tools = (given.get("body") or {}).get("tools") or ()
    return not all(isinstance(tool, dict) for tool in tools)


def file_engine() -> tuple[Engine, list[Mapping[str, Any]]]:
    """Returns an engine, and the list of its answers: set it before each request, and clear the engine's requests."""
    script: list[Mapping[str, Any]] = []

    async def handle(engine: Engine, send: Any, _: bytes) -> None:
        answer = script[min(len(engine.requests), len(script)) - 1]
        if "frames" not in answer:
            await start(send, answer.get("status", 200))
            await end(send, json.dumps(answer["json"], ensure_ascii=False).encode())
            return
        await start(send, kind="text/event-stream")
        for each in answer["frames"]:
            await send({"type": "http.response.body", "body": _bytes(each), "more_body": True})
        await end(send)

    return Engine(handle), script


def _bytes(given: Any) -> bytes:
    if isinstance(given, dict) and "hex" in given:
        return bytes.fromhex(given["hex"])
    if isinstance(given, dict) and "raw" in given:
        return str(given["raw"]).encode()
    return b"data: " + (given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)).encode() + b"\n\n"


def is_served(case: FieldFile, turn: Turn) -> bool:
    """Returns whether the client has what it should: an answer without markup, and a call where one was made."""
    called = bool(turn.calls) or not any(hint in json.dumps(case.upstream[0]) for hint in _OF_CALLS)
    return turn.end not in (End.ERROR, End.NONE) and called and not any(mark in turn.text for mark in _MARKUP)
