"""Guards whole answers as streams of a single chunk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from serve.config.guard import GuardConfig
from serve.guard.core.chunk import TEXTS, is_index
from serve.guard.core.guard import Guard
from serve.guard.core.state import GuardState
from serve.guard.core.verdict import Verdict


class WholeGuard:
    """Guards one answer that does not stream.

    `check` each attempt's answer. When that returns None, look at `guard.state`: `RERUN` asks for another attempt (call
    `guard.restart()` first), `FAILED` for `give_up`.

    Args:
        settings: As for `Guard`.
        request: As for `Guard`.
        grammar: As for `Guard`.

    Attributes:
        guard: The guard of the stream.
    """

    def __init__(self, settings: GuardConfig, request: Mapping[str, Any], *, grammar: str | None = None) -> None:
        self.guard = Guard(settings, request, grammar=grammar, whole=True)
        self._observing = settings.mode == "observe"
        self._answer: dict[str, Any] = {}

    def check(self, answer: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the answer that may go out, or None."""
        if not _is_answer(answer):
            self.guard.broke("a malformed answer")
            return answer if self._observing else None
        self._answer = answer
        chunks = self.guard.feed(chunk_of(answer))
        chunks += self.guard.finish()
        if self._observing:
            return answer
        return self._folded(chunks) if self.guard.state is GuardState.DONE else None

    def give_up(self) -> dict[str, Any]:
        """Returns the last answer, marked, if that is allowed, or else an error body."""
        chunks = self.guard.give_up()
        return chunks[0] if "error" in chunks[0] else self._folded(chunks)

    def _folded(self, chunks: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        deltas: dict[int, list[tuple[Mapping[str, Any], str | None]]] = {}
        answer = dict(self._answer)
        for chunk in chunks:
            if usage := chunk.get("usage"):
                answer["usage"] = usage
            for choice in chunk["choices"]:
                deltas.setdefault(choice["index"], []).append((choice["delta"], choice["finish_reason"]))
        answer["choices"] = [_choice(choice, deltas.get(choice["index"], [])) for choice in self._answer["choices"]]
        if report := self.guard.report:
            answer["specgate"] = report
        return answer


def check_answer(settings: GuardConfig, request: Mapping[str, Any], answer: dict[str, Any]) -> Verdict:
    """Returns the verdict on one whole answer.

    Args:
        settings: As for `Guard`.
        request: As for `Guard`.
        answer: The response's body.
    """
    guard = WholeGuard(settings, request)
    guard.check(answer)
    return guard.guard.verdicts[0]


def _is_answer(answer: Mapping[str, Any]) -> bool:
    """Returns whether an answer has OpenAI's shape: a foreign engine may send anything."""
    choices = answer.get("choices", [])
    if not isinstance(choices, list) or not all(map(_is_choice, choices)):
        return False
    return len({choice["index"] for choice in choices}) == len(choices)


def _is_choice(choice: Any) -> bool:
    if not isinstance(choice, dict) or not is_index(choice.get("index")):
        return False
    message = choice.get("message") or {}
    if not isinstance(message, dict) or not isinstance(choice.get("finish_reason"), str | None):
        return False
    calls = message.get("tool_calls") or []
    texts = all(isinstance(message.get(name), str | None) for name in TEXTS)
    return texts and isinstance(calls, list) and all(isinstance(call, dict) for call in calls)


def chunk_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a whole answer as a single chunk."""
    choices = []
    for choice in answer.get("choices") or ():
        message = choice.get("message") or {}
        calls = [{"index": index, **call} for index, call in enumerate(message.get("tool_calls") or ())]
        delta = {name: message[name] for name in TEXTS if message.get(name)}
        delta |= {"tool_calls": calls} if calls else {}
        ending = {name: choice.get(name) for name in ("finish_reason", "stop_reason")}
        choices.append({"index": choice.get("index", 0), "delta": delta, **ending})
    return {**answer, "choices": choices}


def _choice(choice: Mapping[str, Any], deltas: Iterable[tuple[Mapping[str, Any], str | None]]) -> dict[str, Any]:
    """Returns the engine's choice with the texts, calls and reason that the guard let through."""
    texts: dict[str, str] = {}
    calls: list[dict[str, Any]] = []
    reason = choice.get("finish_reason")
    for delta, finished in deltas:
        reason = finished or reason
        for name in TEXTS:
            texts[name] = texts.get(name, "") + (delta.get(name) or "")
        for entry in delta.get("tool_calls", ()):
            if "id" in entry:
                calls.append({"id": entry["id"], "type": "function", "function": dict(entry["function"])})
            else:
                calls[entry["index"]]["function"]["arguments"] += entry["function"]["arguments"]
    message = {**(choice.get("message") or {})}
    message |= {name: texts.get(name) or None for name in TEXTS if name in message}
    if calls or "tool_calls" in message:
        message["tool_calls"] = calls
    return {**choice, "message": message, "finish_reason": reason}
