"""One answer of two engines: what is kept of the first one's, and the text completion with which another one goes on.

`kept_prefix` joins what the client has with what our parser reads in the text that is kept. `ChatSplice` makes that and
the completion one chat answer; of a text completion `TextSplice` adds up the usage, since its text goes on by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from serve.errors import EngineError, encode_json
from serve.http1.sse import decode_chunk, encode_frame
from serve.parsing import StreamParser
from serve.request.continuation import CannotResumeError
from serve.stream.frame import Frame
from serve.stream.line import Stage
from serve.stream.parsed import TEXT, RawChoice, merged

# The tokens that end a turn, as engines spell them that show them.
TURN_ENDS = (
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "</s>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "[e~[",
    "<|return|>", "<|call|>", "<|user|>", "<|observation|>", "<|end_of_msg|>",
)  # fmt: skip
_LONGEST_TURN_END = max(map(len, TURN_ENDS))
_BEGIN_TURN_ENDS = frozenset(end[0] for end in TURN_ENDS)
_ENVELOPE = ("id", "created", "model", "system_fingerprint")


class Had(NamedTuple):
    """The part of an answer that a client has.

    Attributes:
        reasoning: What it has of this text.
        content: What it has of this one.
        calls: The names of the tools that it had to call.
        arguments: What it has of the last call's, if that is not whole.
    """

    reasoning: str = ""
    content: str = ""
    calls: tuple[str, ...] = ()
    arguments: str | None = None

    def without(self, word: str) -> Had:
        """Returns it without a word at the end of its text."""
        if self.content:
            return self._replace(content=self.content.removesuffix(word))
        return self._replace(reasoning=self.reasoning.removesuffix(word))


class KeptPrefix(NamedTuple):
    """The part of an answer that stands.

    Attributes:
        reader: Has read its text, and reads on.
        delta: What it amounts to, in a chat stream.
        tokens: Their number.
        prompt_tokens: Those before it.
    """

    reader: RawChoice | AsItIs
    delta: Mapping[str, Any]
    tokens: int
    prompt_tokens: int


def kept_prefix(
    parser: StreamParser,
    had: Had,
    text: str,
    tokens: int,
    prompt_tokens: int,
    *,
    own_ids: bool = False,
    reports: bool = False,
    otherwise: str = "passed",
) -> KeptPrefix:
    """Returns what is kept of an answer, as its client is to have it.

    Args:
        parser: Of the answer; new.
        had: What the client has.
        text: That is kept, raw.
        tokens: Of this text.
        prompt_tokens: Those before it.
        own_ids: As of `RawChoice`.
        reports: As of `RawChoice`.
        otherwise: The reason why there is none, if the client has something else.

    Raises:
        CannotResumeError: It has.
    """
    reader = RawChoice(parser, own_ids=own_ids, reports=reports)
    delta, _ = reader.feed(text)
    names = [entry["function"]["name"] for entry in delta.get("tool_calls", ())]
    if tuple(names[: len(had.calls)]) != had.calls:
        raise CannotResumeError(otherwise)
    for name, sent in (("reasoning", had.reasoning), ("content", had.content)):
        both = spliced(sent, delta.get(name, ""), parser.machine.held)
        if both is None:
            raise CannotResumeError(otherwise)
        if both:
            delta[name] = both
    return KeptPrefix(reader, delta, tokens, prompt_tokens)


def spliced(had: str, text: str, held: str = "") -> str | None:
    """Returns a text as one that goes on where the client is; None if the client has something else.

    Engines and we do not always agree on the space between reasoning, text and calls.

    Args:
        had: What the client has of it.
        text: As we read it.
        held: What we hold back behind it.
    """
    behind = had.lstrip()
    if not behind:
        return had + text.lstrip() if had else text
    own = text.lstrip()
    if not (own + held).startswith(behind.rstrip()):
        return None
    return had[: len(had) - len(behind)] + own


class ChatSplice(Stage):
    """Turns a text completion into the whole chat answer that it ends."""

    exact = False

    def __init__(self, prefix: KeptPrefix) -> None:
        self.prefix = prefix
        self._begun = False
        self._held = ""  # it ends the turn, or would with what may follow

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Returns the chat frames for one of a completion; the first one follows the prefix."""
        chunk = frame.readable()
        if chunk is None:
            return (frame,)
        choice = _only_choice(chunk)
        envelope = _envelope(chunk, "chat.completion.chunk")
        chunks: list[dict[str, Any]] = []
        if choice is not None:
            if not self._begun:
                self._begun = True
                delta = {"role": "assistant", **self.prefix.delta}
                chunks.append({**envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
            told = {"index": 0, "delta": self._delta(choice), **self._end(choice)}
            chunks.append({**envelope, "choices": [told]})
        elif not chunk.get("choices") and chunk.get("usage"):
            chunks.append({**envelope, "choices": []})
        else:
            return (frame,)
        if usage := self._usage(chunk):
            chunks[-1]["usage"] = usage
        return [Frame(encode_frame(each), chunk=each) for each in chunks]  # whose bytes others read

    def whole(self, body: bytes) -> bytes:
        """Returns the whole chat answer for a completion that does not stream."""
        try:
            answer = decode_chunk(body)
        except EngineError:
            return body
        choice = _only_choice(answer)
        if choice is None:
            return body
        delta = merged([_copied(self.prefix.delta), self._delta(choice)])
        message: dict[str, Any] = {"role": "assistant", "content": None, **delta}
        for entry in message.get("tool_calls", ()):
            del entry["index"]
        told = {"index": 0, "message": message, **self._end(choice)}
        return encode_json(
            {**_envelope(answer, "chat.completion"), "choices": [told], "usage": self._usage(answer) or None}
        )

    def _delta(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what the text of a completion's choice amounts to."""
        text, reason = self._held + (choice.get("text") or ""), choice.get("finish_reason")
        reader = self.prefix.reader
        if reason is None:
            begin = _turn_end(text)
            self._held = text[begin:]
            return reader.feed(text[:begin])[0]
        self._held = ""
        if reason == "stop":
            text = without_turn_end(text)
        return merged([reader.feed(text)[0], reader.finish()])

    def _end(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        """Returns how a choice ended, if it has."""
        reason = self.prefix.reader.reason(choice.get("finish_reason"))
        stop = {"stop_reason": choice["stop_reason"]} if "stop_reason" in choice else {}
        return {"finish_reason": reason, **stop}

    def _usage(self, chunk: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the usage of the whole answer, if a chunk tells any."""
        usage = chunk.get("usage")
        return whole_usage(usage, self.prefix) if isinstance(usage, dict) else None


class TextSplice(Stage):
    """Gives a text completion that goes on with another one the usage of both."""

    exact = False

    def __init__(self, prefix: KeptPrefix) -> None:
        self.prefix = prefix

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Returns the frame with the whole usage."""
        chunk = frame.readable()
        if chunk is None or not isinstance(usage := chunk.get("usage"), dict):
            return (frame,)
        chunk = {**chunk, "usage": whole_usage(usage, self.prefix)}
        return (Frame(encode_frame(chunk), chunk=chunk),)


class AsItIs:
    """Reads the text of a model of which nobody knows how it writes: all of it is content."""

    def feed(self, text: str) -> tuple[dict[str, Any], bool]:
        """Returns the delta that a text amounts to, and whether that is nothing but the text."""
        return ({TEXT: text} if text else {}), True

    def finish(self) -> dict[str, Any]:
        """Returns the delta of what was held back, which is nothing."""
        return {}

    def reason(self, reason: Any) -> Any:
        """Returns why the answer ended."""
        return reason


def whole_usage(usage: Mapping[str, Any], prefix: KeptPrefix) -> dict[str, Any]:
    """Returns the usage of a whole answer, given that of its end: what is kept of it is no part of the prompt."""
    written = usage.get("completion_tokens")
    total = prefix.tokens + (written if isinstance(written, int) else 0)
    prompt_tokens = prefix.prompt_tokens
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": total, "total_tokens": prompt_tokens + total}
    return {**usage, **counts, "prompt_tokens_details": None}


def _turn_end(text: str) -> int:
    """Returns where a token begins that ends a turn and the text, or a part of one: the rest of it may follow."""
    for begin in range(max(0, len(text) - _LONGEST_TURN_END), len(text)):
        if text[begin] in _BEGIN_TURN_ENDS and any(end.startswith(text[begin:]) for end in TURN_ENDS):
            return begin
    return len(text)


def without_turn_end(text: str) -> str:
    """Returns the text of an answer without the token that ended its turn, if the engine shows it."""
    end = next((end for end in TURN_ENDS if text.endswith(end)), "")
    return text.removesuffix(end)


def _only_choice(answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the one choice of a text completion; None for anything else: a foreign engine may send anything."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choice := choices[0], dict):
        return None
    sound = isinstance(choice.get("text"), str | None) and isinstance(choice.get("finish_reason"), str | None)
    return choice if sound else None


def _envelope(answer: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return {"object": kind, **{name: answer[name] for name in _ENVELOPE if name in answer}}


def _copied(delta: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a delta whose calls can be added to."""
    calls = [{**entry, "function": {**entry["function"]}} for entry in delta.get("tool_calls", ())]
    return {**delta, **({"tool_calls": calls} if calls else {})}
