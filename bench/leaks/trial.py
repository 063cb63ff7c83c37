"""Plays a case through the guard, streamed in pieces of some length or whole, and says how it ended."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from bench.leaks.case import Answer, Call, Case, Text
from serve.config.guard import GuardConfig
from serve.guard.core import Guard, GuardState, Outcome, WholeGuard

# `served`: with the first answer, as it was or with its calls recovered. `rerun`: with the second one.
# `missed`: a leak went out, or a call was lost. `killed`: a sound answer, or a leak with a clean second answer, ended
# in an error. `changed`: a sound answer went out as another one.
End = Literal["served", "rerun", "missed", "killed", "changed"]
Cut = Callable[[str], Sequence[str]]

_ENVELOPE = {"id": "c", "created": 1, "model": "m"}
_TOKEN = re.compile(r"<\|[a-z_0-9]+\|>|</?(?:tool_call|think)>| ?\w{1,6}|\s+|[^\w\s]{1,2}")
# None of the prose here holds anything of the kind.
_LEAK = re.compile(r'</?(?:tool_call|tool_code|function|parameter|think)|<\||"arguments"|"parameter="|functions\.')


def _every(size: int) -> Cut:
    return lambda text: [text[place : place + size] for place in range(0, len(text), size)]


CUTS: Mapping[str, Cut] = {
    **{str(size): _every(size) for size in (1, 2, 3, 5, 7, 11, 26, 27, 28)},
    "tokens": _TOKEN.findall,
    "at once": lambda text: [text],
}
WHOLE = "whole"


def play(case: Case, cut: str) -> End:
    """Returns how a case ended.

    Args:
        case: To play.
        cut: A key of `CUTS`, or `WHOLE`.
    """
    guard, got = _whole(case) if cut == WHOLE else _streamed(case, CUTS[cut])
    reran = len(guard.verdicts) > 1
    if got is None or guard.outcome is Outcome.GUARD_ERROR:
        return "killed"
    if not (_same if case.sound else _clean)(case, got):
        return "changed" if case.sound else "missed"
    return "rerun" if reran else "served"


def _streamed(case: Case, cut: Cut) -> tuple[Guard, Answer | None]:
    guard = Guard(GuardConfig(), case.request, grammar=case.grammar)
    sent: list[dict[str, Any]] = []
    for attempt in (case.first, case.second):
        if guard.state is GuardState.RERUN:
            guard.restart("standard")
        for chunk in _chunks(attempt, cut):
            sent += guard.feed(chunk)
            if guard.state is not GuardState.OPEN:
                break
        else:
            sent += guard.finish()
        if guard.state is not GuardState.RERUN:
            break
    return guard, _read(sent) if guard.state is GuardState.DONE else None


def _whole(case: Case) -> tuple[Guard, Answer | None]:
    whole = WholeGuard(GuardConfig(), case.request, grammar=case.grammar)
    for attempt in (case.first, case.second):
        if whole.guard.state is GuardState.RERUN:
            whole.guard.restart("standard")
        checked = whole.check(_body(attempt))
        if checked is not None:
            message = checked["choices"][0]["message"]
            texts = [Text(field, message.get(field) or "") for field in ("reasoning", "content")]
            functions = [entry["function"] for entry in message.get("tool_calls") or ()]
            calls = [Call(function["name"], function["arguments"]) for function in functions]
            return whole.guard, Answer((*texts, *calls), checked["choices"][0]["finish_reason"])
        if whole.guard.state is not GuardState.RERUN:
            break
    return whole.guard, None


def _chunks(attempt: Answer, cut: Cut) -> Iterator[dict[str, Any]]:
    yield _chunk({"role": "assistant", "content": ""})
    index = -1
    for part in attempt.parts:
        if isinstance(part, Text):
            yield from (_chunk({part.field: piece}) for piece in cut(part.text))
            continue
        index += 1
        function = {"name": part.name, "arguments": ""}
        yield _chunk({"tool_calls": [{"index": index, "id": f"c{index}", "type": "function", "function": function}]})
        for piece in cut(part.arguments):
            yield _chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield _chunk({}, attempt.finish_reason)


def _chunk(delta: Mapping[str, Any], reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    return {**_ENVELOPE, "object": "chat.completion.chunk", "choices": [choice]}


def _body(attempt: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": attempt.text("content") or None}
    if thoughts := attempt.text("reasoning"):
        message["reasoning"] = thoughts
    if attempt.calls:
        message["tool_calls"] = [
            {"id": f"c{index}", "type": "function", "function": {"name": each.name, "arguments": each.arguments}}
            for index, each in enumerate(attempt.calls)
        ]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": attempt.finish_reason}
    return {**_ENVELOPE, "object": "chat.completion", "choices": [choice]}


def _read(sent: Sequence[Mapping[str, Any]]) -> Answer:
    """Folds what a client has received."""
    texts = {"reasoning": "", "content": ""}
    calls: dict[int, Call] = {}
    finish = ""
    for chunk in sent:
        for choice in chunk["choices"]:
            for field in texts:
                texts[field] += choice["delta"].get(field) or ""
            for entry in choice["delta"].get("tool_calls") or ():
                function, known = entry["function"], calls.get(entry["index"], Call("", ""))
                name, arguments = function.get("name") or "", function.get("arguments") or ""
                calls[entry["index"]] = Call(known.name + name, known.arguments + arguments)
            finish = choice["finish_reason"] or finish
    return Answer((*(Text(*each) for each in texts.items()), *calls.values()), finish)


def _values(of: Answer) -> list[tuple[str, Any]]:
    return [(each.name, json.loads(each.arguments)) for each in of.calls]


def _same(case: Case, got: Answer) -> bool:
    wanted = case.first
    texts = all(wanted.text(field) == got.text(field) for field in ("reasoning", "content"))
    return texts and _values(wanted) == _values(got) and wanted.finish_reason == got.finish_reason


def _clean(case: Case, got: Answer) -> bool:
    """Returns whether the client of a leak has the calls that were meant, and none of the markup."""
    texts = got.text("reasoning") + got.text("content").removeprefix(case.front.rstrip())
    try:
        return _values(case.second) == _values(got) and not _LEAK.search(texts)
    except ValueError:
        return False
