"""Random answers of a chat model, and the same answer as one completion and as any chunks of a stream."""

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
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
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return ChatAnswer(texts, calls, finish, usage)


@st.composite
def streams(draw: st.DrawFn) -> tuple[ChatAnswer, list[dict[str, Any]]]:
    """An answer and chunks that carry it: texts cut anywhere, calls in pieces and interleaved with anything."""
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
        pieces = _interleaved(draw, pieces, [{"tool_calls": [{"index": index, **piece}]} for piece in own])
    deltas = [{"role": "assistant", "content": ""}, *_merged(draw, pieces)]
    chunks = [_chunk(delta) for delta in deltas]
    if draw(st.booleans()):
        chunks[-1]["choices"][0]["finish_reason"] = answer.finish
    else:
        chunks.append(_chunk({}, answer.finish))
    if draw(st.booleans()):
        chunks[-1]["usage"] = answer.usage
    else:
        chunks.append({"id": "chatcmpl-1", "choices": [], "usage": answer.usage})
    return answer, chunks


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


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
