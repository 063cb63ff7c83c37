"""Random answers of a chat model, and the same answer as one completion and as any chunks of a stream."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

# Without the character that stands for one that was cut.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"), max_size=20)
NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,12}", fullmatch=True)
IDS = st.one_of(
    st.from_regex(r"call_[a-z0-9]{4}", fullmatch=True),
    st.from_regex(r"functions\.[a-z]{1,5}:[0-9]", fullmatch=True),
    st.just("toolu_sg_"),
)
ARGUMENTS = st.dictionaries(TEXT, st.one_of(st.integers(-(10**9), 10**9), TEXT, st.booleans(), st.none()), max_size=3)


@dataclass
class ChatAnswer:
    """One answer: its texts in their order, as (field of the message, text), and its calls."""

    texts: list[tuple[str, str]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish: str = "stop"
    usage: dict[str, Any] = field(default_factory=dict)

    def text(self, name: str) -> str:
        return "".join(text for kind, text in self.texts if kind == name)

    def completion(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.text("content") or None}
        if reasoning := self.text("reasoning"):
            message["reasoning"] = reasoning
        if self.calls:
            message["tool_calls"] = self.calls
        choice = {"index": 0, "message": message, "finish_reason": self.finish}
        return {"id": "chatcmpl-1", "model": "m", "choices": [choice], "usage": self.usage}


@st.composite
def answers(draw: st.DrawFn) -> ChatAnswer:
    texts = draw(st.lists(st.tuples(st.sampled_from(["reasoning", "content"]), TEXT.filter(bool)), max_size=5))
    count = draw(st.integers(0, 3))
    ids = draw(st.lists(IDS, min_size=count, max_size=count, unique=True))
    calls = [
        {"id": call_id, "type": "function", "function": {"name": draw(NAMES), "arguments": json.dumps(draw(ARGUMENTS))}}
        for call_id in ids
    ]
    finish = draw(st.sampled_from(["stop", "tool_calls", "content_filter"] if calls else ["stop", "content_filter"]))
    cached = draw(st.integers(0, 50))
    usage = {
        "prompt_tokens": draw(st.integers(51, 200)),
        "completion_tokens": draw(st.integers(1, 200)),
        "total_tokens": 400,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return ChatAnswer(texts, calls, finish, usage)


@st.composite
def streams(draw: st.DrawFn, calls_mix: bool = True) -> tuple[ChatAnswer, list[dict[str, Any]]]:
    """An answer and chunks that carry it: texts cut anywhere, calls in pieces, in the habits of any server.

    Args:
        draw: Hypothesis'.
        calls_mix: Whether a call may go on after the next has begun; the guard refuses that.
    """
    answer = draw(answers())
    pieces: list[dict[str, Any]] = []
    for kind, text in answer.texts:
        pieces += [{kind: part} for part in _cut(draw, text)]
    for index, call in enumerate(answer.calls):
        function = call["function"]
        first: list[dict[str, Any]] = [{"id": call["id"], "type": "function"}, {"function": {"name": function["name"]}}]
        if draw(st.booleans()):
            first = [{**first[0], **first[1]}]
        own = [*first, *({"function": {"arguments": part}} for part in _cut(draw, function["arguments"]))]
        entries = [{"tool_calls": [{"index": index, **piece}]} for piece in own]
        last = max((at for at, piece in enumerate(pieces) if "tool_calls" in piece), default=-1)
        done = 0 if calls_mix else last + 1
        pieces = pieces[:done] + _interleaved(draw, pieces[done:], entries)
    deltas = [{"role": "assistant", "content": ""}, *_merged(draw, pieces)]
    chunks = [_chunk(delta) for delta in deltas]
    if draw(st.booleans()):
        chunks[-1]["choices"][0]["finish_reason"] = answer.finish
    else:
        chunks.append(_chunk({}, answer.finish))
    if draw(st.booleans()):
        chunks[-1]["usage"] = answer.usage
    else:
        chunks.append({**_ENVELOPE, "choices": [], "usage": answer.usage})
    _take_habits(draw, answer, chunks)
    return answer, chunks


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {**_ENVELOPE, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def _take_habits(draw: st.DrawFn, answer: ChatAnswer, chunks: list[dict[str, Any]]) -> None:
    """Writes chunks as one server or another does: the same answer, with more or less around it."""
    habits = draw(st.sets(st.sampled_from(sorted(_HABITS))))
    for chunk in chunks:
        for habit in sorted(habits):
            _HABITS[habit](chunk, answer)
    for place in draw(st.lists(st.integers(0, len(chunks)), max_size=2)):
        chunks.insert(place, draw(st.sampled_from([{**_ENVELOPE, "choices": []}, _chunk({"content": ""})])))


def _empty_fields(chunk: dict[str, Any], answer: ChatAnswer) -> None:
    for choice in chunk["choices"]:
        nothing = {"content": None, "tool_calls": [], "refusal": None, "function_call": None, "annotations": []}
        choice["delta"] = {**nothing, **choice["delta"]}


def _empty_finish(chunk: dict[str, Any], answer: ChatAnswer) -> None:
    for choice in chunk["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or ""


def _no_finish(chunk: dict[str, Any], answer: ChatAnswer) -> None:
    for choice in chunk["choices"]:
        if not choice["finish_reason"]:
            del choice["finish_reason"]


def _role_each_time(chunk: dict[str, Any], answer: ChatAnswer) -> None:
    for choice in chunk["choices"]:
        choice["delta"] = {"role": "assistant", **choice["delta"]}


def _call_named_each_time(chunk: dict[str, Any], answer: ChatAnswer) -> None:
    for choice in chunk["choices"]:
        for entry in choice["delta"].get("tool_calls", ()):
            call = answer.calls[entry["index"]]
            entry |= {"id": call["id"], "type": "function"}
            entry["function"] = {"arguments": None, **entry.get("function", {}), "name": call["function"]["name"]}


def _call_nulls(chunk: dict[str, Any], answer: ChatAnswer) -> None:
    for choice in chunk["choices"]:
        for entry in choice["delta"].get("tool_calls", ()):
            function = {"name": None, "arguments": None} | (entry.get("function") or {})
            entry |= {"id": entry.get("id"), "type": entry.get("type"), "function": function}


def _running_usage(chunk: dict[str, Any], answer: ChatAnswer) -> None:
    counted = {"prompt_tokens": answer.usage["prompt_tokens"], "completion_tokens": 1, "total_tokens": 1}
    chunk["usage"] = chunk.get("usage") or counted


def _null_usage(chunk: dict[str, Any], answer: ChatAnswer) -> None:
    chunk.setdefault("usage", None)


def _unknown_fields(chunk: dict[str, Any], answer: ChatAnswer) -> None:
    chunk |= {"system_fingerprint": None, "obfuscation": "xyz", "x_groq": {"id": "r"}}
    for choice in chunk["choices"]:
        choice |= {"content_filter_results": {}, "logprobs": None, "token_ids": None}
        choice["delta"] = {**choice["delta"], "provider_specific_fields": {"citations": []}}


_ENVELOPE = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
_HABITS: dict[str, Callable[[dict[str, Any], ChatAnswer], None]] = {
    "a role each time": _role_each_time,
    "calls named each time": _call_named_each_time,
    "calls with nulls": _call_nulls,
    "empty fields": _empty_fields,
    "empty finish": _empty_finish,
    "no finish": _no_finish,
    "null usage": _null_usage,
    "running usage": _running_usage,
    "unknown fields": _unknown_fields,
}


def _cut(draw: st.DrawFn, text: str) -> list[str]:
    at = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[start:end] for start, end in zip([0, *at], [*at, len(text)], strict=True)]


def _interleaved(draw: st.DrawFn, some: list[Any], others: list[Any]) -> list[Any]:
    """Two lists as one, each in its own order."""
    some, others, merged = [*some], [*others], []
    while some and others:
        merged.append((some if draw(st.booleans()) else others).pop(0))
    return merged + some + others


def _merged(draw: st.DrawFn, pieces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbours of different kinds in one delta, as engines send them that speculate."""
    merged: list[dict[str, Any]] = []
    for piece in pieces:
        if merged and not merged[-1].keys() & piece.keys() and draw(st.booleans()):
            before = merged[-1]
            # Within one delta reasoning comes before content, so only that order says the same.
            if not ("reasoning" in piece and "content" in before):
                before.update(piece)
                continue
        merged.append(dict(piece))
    return merged
