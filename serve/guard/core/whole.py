"""Guards whole answers as streams of a single chunk, and long ones as streams of several."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any

from serve.config.guard import GuardConfig
from serve.guard.core.call_assembly import MAX_CALLS
from serve.guard.core.chunk import MAX_CHOICES, STOPS, is_index
from serve.guard.core.guard import Guard, GuardState
from serve.guard.core.verdict import Verdict
from serve.http1.turns import at_once
from serve.stream.frame import TEXTS

_PIECE_CHARS = 64 * 1024  # judged at once: some milliseconds at most
_CALL_CHARS = 1000  # what a call costs beside its arguments, as if it were text


class WholeGuard:
    """Guards one answer that does not stream.

    `check` each attempt's answer. When that returns None, look at `guard.state`: `RERUN` asks for another attempt (call
    `guard.restart()` first), `FAILED` for `give_up`.

    Attributes:
        guard: The guard of the stream, made of the same arguments.
    """

    def __init__(self, settings: GuardConfig, request: Mapping[str, Any], *, grammar: str | None = None) -> None:
        self.guard = Guard(settings, request, grammar=grammar, whole=True)
        self._observing = settings.mode == "observe"
        self._answer: dict[str, Any] = {}
        self._ended: dict[int, dict[str, Any]] = {}  # choices, by the attempt that brought each to its end

    def check(self, answer: dict[str, Any]) -> dict[str, Any] | None:
        return at_once(self.judge(answer))

    def judge(self, answer: dict[str, Any]) -> Generator[None, None, dict[str, Any] | None]:
        """Does what `check` does, with a pause after every piece of a long answer."""
        if not _is_answer(answer):
            self.guard.broke("a malformed answer")
            return answer if self._observing else None
        self._answer = answer
        chunks: list[dict[str, Any]] = []
        for chunk in chunks_of(answer):
            if self.guard.state is GuardState.OPEN or chunk.get("usage"):
                chunks += self.guard.feed(chunk)
                yield
        chunks += self.guard.finish()
        if self._observing:
            return answer
        self._fold(chunks)
        return self._made(chunks) if self.guard.state is GuardState.DONE else None

    def give_up(self) -> dict[str, Any]:
        """Returns the last answer, marked, if that is allowed, or else an error body."""
        chunks = self.guard.give_up()
        if "error" in chunks[0]:
            return chunks[0]
        self._fold(chunks)
        return self._made(chunks)

    def _fold(self, chunks: Iterable[Mapping[str, Any]]) -> None:
        """Keeps the present answer's choices that these chunks bring to their end, as the guard let them through."""
        deltas: dict[int, list[tuple[Mapping[str, Any], str | None]]] = {}
        for chunk in chunks:
            for choice in chunk["choices"]:
                deltas.setdefault(choice["index"], []).append((choice["delta"], choice["finish_reason"]))
        for choice in self._answer.get("choices") or ():
            found = deltas.get(choice["index"], [])
            if any(reason is not None for _, reason in found):
                self._ended[choice["index"]] = _choice(choice, found)

    def _made(self, chunks: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Returns the answer: what is not its choices' is the last attempt's."""
        answer = {**self._answer, "choices": [self._ended[index] for index in sorted(self._ended)]}
        for chunk in chunks:
            if usage := chunk.get("usage"):
                answer["usage"] = usage
        if report := self.guard.report:
            answer["specgate"] = report
        return answer


def check_answer(settings: GuardConfig, request: Mapping[str, Any], answer: dict[str, Any]) -> Verdict:
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
    choices = []
    for choice in answer.get("choices") or ():
        message = choice.get("message") or {}
        calls = [
            {**call, "index": index} for index, call in enumerate((message.get("tool_calls") or [])[: MAX_CALLS + 1])
        ]
        delta = {name: message[name] for name in (*TEXTS, "refusal") if message.get(name)}
        delta |= {"tool_calls": calls} if calls else {}
        ending = {name: choice[name] for name in STOPS if name in choice}
        choices.append(
            {"index": choice.get("index", 0), "delta": delta, "finish_reason": choice.get("finish_reason"), **ending}
        )
    return {**answer, "choices": choices}


def chunks_of(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields an answer as one chunk, or piece by piece if it is long."""
    whole = chunk_of(answer)
    if len(whole["choices"]) > MAX_CHOICES or sum(map(_size, whole["choices"])) <= _PIECE_CHARS:
        yield whole
        return
    rest = {name: value for name, value in whole.items() if name != "usage"}
    for choice in whole["choices"]:
        for delta in _deltas(choice["delta"]):
            yield {**rest, "choices": [{**choice, "delta": delta, "finish_reason": None}]}
        yield {**rest, "choices": [{**choice, "delta": {}}]}
    yield {**whole, "choices": []}


def _size(choice: Mapping[str, Any]) -> int:
    delta = choice["delta"]
    calls = delta.get("tool_calls", ())
    texts = sum(len(delta[name]) for name in TEXTS if name in delta)
    return texts + sum(_CALL_CHARS + len(_arguments(call)) for call in calls)


def _deltas(delta: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name in TEXTS:
        for piece in _cut(delta.get(name, "")):
            yield {name: piece}
    for call in delta.get("tool_calls", ()):
        first, *more = _cut(_arguments(call)) or [""]
        opening = {**call, "function": {**call["function"], "arguments": first}} if first else call
        yield {"tool_calls": [opening]}
        for piece in more:
            yield {"tool_calls": [{"index": call["index"], "function": {"arguments": piece}}]}


def _arguments(call: Mapping[str, Any]) -> str:
    """Returns the arguments' text, if the call has OpenAI's shape."""
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, dict) else None
    return arguments if isinstance(arguments, str) else ""


def _cut(text: str) -> list[str]:
    return [text[start : start + _PIECE_CHARS] for start in range(0, len(text), _PIECE_CHARS)]


def _choice(choice: Mapping[str, Any], deltas: Iterable[tuple[Mapping[str, Any], str | None]]) -> dict[str, Any]:
    """Returns the engine's choice with the texts, calls and reason that the guard let through."""
    texts: dict[str, list[str]] = {name: [] for name in TEXTS}
    calls: list[dict[str, Any]] = []
    arguments: list[list[str]] = []
    reason = choice.get("finish_reason")
    for delta, finished in deltas:
        reason = finished or reason
        for name in TEXTS:
            texts[name].append(delta.get(name) or "")
        for entry in delta.get("tool_calls", ()):
            function = entry["function"]
            if "id" in entry:
                calls.append({"id": entry["id"], "type": "function", "function": dict(function)})
                arguments.append([function["arguments"]])
            else:
                arguments[entry["index"]].append(function["arguments"])
    for call, pieces in zip(calls, arguments, strict=True):
        call["function"]["arguments"] = "".join(pieces)
    message = {**(choice.get("message") or {})}
    message |= {name: "".join(texts[name]) or None for name in TEXTS if name in message}
    if calls or "tool_calls" in message:
        message["tool_calls"] = calls
    return {**choice, "message": message, "finish_reason": reason}
