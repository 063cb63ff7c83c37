"""A model's answer, read from the chunks of a chat stream or from a whole completion.

Text passes at once. Calls wait until the answer is complete: agents act on a call as soon as they have it, and a
dialect can neither go back to a call once something else has begun nor take one back. Only a call that the guard sends
while it grows begins at once; its end waits like all others, or for the next such call.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import msgspec

from serve.config.rate_limits import TOKENS_PER_IMAGE
from serve.errors import EngineError, encode_json
from serve.guard.core import LIVE_NOTE, stop_of
from serve.stream.ending import INCOMPLETE, finish_of, gave_up, is_finish

REASONING = "reasoning"
TEXT = "text"
CHARACTERS_PER_TOKEN = 4  # where nobody has counted; near for English and code
_MOST_TOKENS = 10**12  # beyond, and with NaN, a count is none


class Call(NamedTuple):
    """One tool call; `arguments` is a JSON object as text, `toolset` what its tool belongs to, if to any."""

    id: str
    name: str
    arguments: str
    toolset: str = ""


class AnswerUsage(NamedTuple):
    """Tokens, as the engine counted them, or estimated from the text if it did not."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0


@dataclass(slots=True)
class _CallParts:
    place: int
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    shown: str = ""  # the id that the client gets, once it is chosen
    told: int = 0  # pieces of the arguments that the client has got while they grew


class Answer:
    """Everything of one answer but its text.

    Args:
        taken: Ids of calls in the conversation before. Clients match results to calls by their ids, and some drop calls
            whose id they have seen, but some models count from zero in every turn.
        fresh: Of this answer alone, for the ids of calls that have none of their own.

    Attributes:
        finish_reason: The engine's; empty until it is known.
        stop: The stop sequence that ended the answer, if one did.
        specgate: The guard's mark, if it left one.
        characters: Of its texts and arguments; whoever takes a text past `feed` counts it.
    """

    def __init__(self, taken: Collection[str] = (), fresh: str = "") -> None:
        self.finish_reason = ""
        self.stop: str | None = None
        self.specgate: Any = None
        self._given = set(taken)  # ids that no further call may have
        self._fresh = fresh
        self._calls: list[_CallParts] = []
        self._latest: dict[int, _CallParts] = {}  # by the index under which a server goes on with them
        self._live: _CallParts | None = None
        self._usage: Mapping[str, Any] | None = None
        self.characters = 0

    def feed(self, chunk: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Takes one chunk of a stream and returns its texts as (`REASONING` or `TEXT`, text)."""
        return self._feed(chunk, "delta")

    def feed_whole(self, completion: Mapping[str, Any]) -> dict[str, str]:
        """Takes a whole completion and returns its texts by kind, in their order.

        Raises:
            EngineError: It holds no message, which as an empty one would pass for an answer, or the engine gave up.
        """
        if not any(isinstance(choice.get("message"), dict) for choice in mappings(completion.get("choices"))):
            raise EngineError("The engine's answer holds no message.")
        texts: dict[str, str] = {}
        for kind, text in self._feed(completion, "message"):
            texts[kind] = texts.get(kind, "") + text
        if self.finish_reason and not is_finish(self.finish_reason):
            raise EngineError(f"The engine {gave_up(self.finish_reason)}.")
        return texts

    def check_ended(self) -> None:
        """Checks that the engine said how its stream ended.

        Raises:
            EngineError: It did not, or gave up: whatever there is may be half an answer.
        """
        if not is_finish(self.finish_reason):
            raise EngineError(INCOMPLETE)

    def _feed(self, chunk: Mapping[str, Any], member: str) -> list[tuple[str, str]]:
        usage = chunk.get("usage")
        if usage:
            self._usage = mapping(usage)
        texts: list[tuple[str, str]] = []
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict) or choice.get("index"):
                continue  # nobody asked for a second answer
            delta = choice.get(member)
            if isinstance(delta, dict):
                self._read(delta, texts)
            if finish := choice.get("finish_reason"):
                self.finish_reason = finish_of(str(finish))
                stop = stop_of(choice)
                self.stop = stop if isinstance(stop, str) else None
            if choice.get("specgate") is not None:
                self.specgate = choice["specgate"]
        if (mark := chunk.get("specgate")) is not None:
            if mark == LIVE_NOTE and self._calls:
                self._live = self._calls[-1]
            else:
                self.specgate = mark
        return texts

    def _read(self, delta: Mapping[str, Any], texts: list[tuple[str, str]]) -> None:
        reasoning = delta.get("reasoning") or delta.get("reasoning_content")
        if isinstance(reasoning, str) and reasoning:
            texts.append((REASONING, reasoning))
            self.characters += len(reasoning)
        content = delta.get("content") or delta.get("refusal")
        if isinstance(content, list):
            content = "".join([part["text"] for part in mappings(content) if isinstance(part.get("text"), str)])
        if isinstance(content, str) and content:
            texts.append((TEXT, content))
            self.characters += len(content)
        calls = delta.get("tool_calls")
        if calls:
            for position, call in enumerate(mappings(calls)):
                self._add_call(call, position)

    def _add_call(self, call: Mapping[str, Any], position: int) -> None:
        index, identity, function = call.get("index"), call.get("id"), mapping(call.get("function"))
        place = index if isinstance(index, int) else position
        parts = self._latest.get(place)
        if parts is None or (function.get("name") and isinstance(identity, str) and parts.id not in ("", identity)):
            parts = self._latest[place] = _CallParts(place)  # some servers give all calls one index, or none
            self._calls.append(parts)
        if not parts.id and isinstance(identity, str):
            parts.id = identity
        if not parts.name and isinstance(function.get("name"), str):
            parts.name = function["name"]
        arguments = function.get("arguments")
        if arguments:  # an object of them is what some servers send; left out, the call would run without any
            text = arguments if isinstance(arguments, str) else encode_json(arguments).decode()
            parts.arguments.append(text)
            self.characters += len(text)

    @property
    def cut(self) -> bool:
        """True if the answer ends where the limit of tokens was."""
        return self.finish_reason == "length"

    def fills(self, context: int | None) -> bool:
        """Returns True if prompt and answer, as the engine counted them, fill a context of so many tokens."""
        if not context:
            return False
        return _count((self._usage or {}).get("prompt_tokens")) + self.completion_tokens >= context

    @property
    def completion_tokens(self) -> int:
        """Tokens of the answer, as far as its engine counted them."""
        return _count((self._usage or {}).get("completion_tokens"))

    @property
    def growing(self) -> bool:
        """True if more has come of a call that the guard sends while it grows."""
        parts = self._live
        return parts is not None and parts.told < len(parts.arguments)

    def add_arguments(self, place: int, text: str) -> bool:
        """Does what `feed` does, for a chunk that holds nothing but more arguments.

        Returns:
            False if that is no call that grows; then nothing was done.
        """
        parts = self._live
        if parts is None or parts is not self._latest.get(place):
            return False
        parts.arguments.append(text)
        self.characters += len(text)
        return True

    def take_more(self) -> Call:
        """Returns the call that grows, with no more of its arguments than has come since the last time."""
        parts = self._live
        assert parts is not None  # the caller has asked
        more = "".join(parts.arguments[parts.told :])
        parts.told = len(parts.arguments)
        return Call(self._unique_id(parts, len(self._calls) - 1), parts.name, more)

    def calls_before(self) -> list[Call]:
        """Returns the calls before the one that grows, which are complete.

        Raises:
            EngineError: As `calls`.
        """
        return list(self._complete_calls(self._calls[:-1]))

    def calls(self) -> list[Call]:
        """Returns the calls, in their order; none that the limit of tokens has cut.

        Raises:
            EngineError: A call has no name, or its arguments are no JSON object.
        """
        return list(self._complete_calls(self._calls))

    def _complete_calls(self, calls: Iterable[_CallParts]) -> Iterator[Call]:
        for number, parts in enumerate(sorted(calls, key=_place_of)):
            arguments = "".join(parts.arguments)
            if not parts.told:
                arguments = arguments.strip()
            if not arguments and not self.cut:
                arguments = "{}"
            if parts.name and _is_object(arguments):
                yield Call(self._unique_id(parts, number), parts.name, arguments)
            elif not self.cut:
                raise EngineError("The model's answer holds a tool call that can't be read. Please try again.")

    def _unique_id(self, parts: _CallParts, number: int) -> str:
        """Returns the id that the client gets for a call: its own, unless it has none or another call has it."""
        if not parts.shown:
            identity = parts.id
            if not identity or identity in self._given:  # a client may use one id for all of its requests
                numbered = (f"call_{self._fresh}_{each}" for each in count(number))
                identity = next(each for each in numbered if each not in self._given)
            self._given.add(identity)
            parts.shown = identity
        return parts.shown

    def usage(self, prompt_tokens: int) -> AnswerUsage:
        """Returns the tokens of prompt and answer.

        Args:
            prompt_tokens: An estimate of the prompt's: no usage at all reads as an answer that cost nothing.
        """
        given: Mapping[str, Any] = self._usage or {}
        said = self.characters or not given
        return AnswerUsage(
            _count(given.get("prompt_tokens")) or prompt_tokens,
            _count(given.get("completion_tokens")) or (max(1, self.characters // CHARACTERS_PER_TOKEN) if said else 0),
            _count(mapping(given.get("prompt_tokens_details")).get("cached_tokens")),
            _count(mapping(given.get("completion_tokens_details")).get("reasoning_tokens")),
        )


def estimated_tokens(messages: Iterable[Mapping[str, Any]], size_bytes: int) -> int:
    """Returns about how many tokens a prompt has.

    Args:
        messages: The conversation, which is of our own making.
        size_bytes: Of the chat body that holds it.
    """
    media = 0
    for message in messages:
        parts = message["content"]
        for part in parts if isinstance(parts, list) else ():
            if part["type"] != "text":
                media += 1
                held = mapping(part[part["type"]]).values()
                size_bytes -= sum([len(value) for value in held if isinstance(value, str)])
    return max(1, size_bytes // CHARACTERS_PER_TOKEN) + media * TOKENS_PER_IMAGE


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(arguments), dict)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False


def mapping(value: Any) -> Mapping[str, Any]:
    """Returns an object of JSON; an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def mappings(value: Any) -> list[dict[str, Any]]:
    """Returns the objects in a list of JSON; none for any other value."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _place_of(parts: _CallParts) -> int:
    return parts.place


def _count(value: Any) -> int:
    counts = type(value) in (int, float) and 0 < value < _MOST_TOKENS  # true is no count
    return int(value) if counts else 0
