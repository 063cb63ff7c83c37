"""A scripted model that writes tokens: its engine tells their ids, spells them, and goes on where another was cut.

A token is a byte of the text, but for markers, which are one each. So a cut may lie inside a character.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from lab.scripted.arrival import Arrival
from lab.scripted.scripts import error
from serve.http1.sse import DONE, encode_frame
from serve.parsing import StreamParser
from serve.stream.parsed import MODELS_OWN_IDS, RawChoice, merged

PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
_FIRST_MARKER = 256
PROMPT_END = "<|im_start|>"
_PROMPT_END = 1000
_TURN_END = 1001
_SPELLINGS = {_PROMPT_END: PROMPT_END, _TURN_END: "<|im_end|>"}
_MOST_HITS = 2
_ID, _CREATED = "chatcmpl-tokens", 1_700_000_000


class TokenFault(NamedTuple):
    """A fault of one generation.

    Attributes:
        kind: `die`: the connection breaks. `hang`: nothing follows. `abort`: the engine gives the answer up. `lost`:
            the stream ends without a reason. `stop`: the turn ends too early. `damage`: another text follows, and the
            turn ends.
        at: After so many tokens.
        text: What follows instead.
    """

    kind: Literal["die", "hang", "abort", "lost", "stop", "damage"]
    at: int
    text: str = ""


Strike = Literal["die", "abort", "lost", "hang"]


class TokenModel:
    """A model that answers each message with a text; a `Script`.

    Args:
        grammar: Of the texts.
        markers: Their markers.
        thinking: Its answers start inside reasoning.
        per_chunk: Tokens of a chunk.
        tells_ids: False for an engine that does not know what `return_token_ids` is.
        holds: False for an engine that refuses strict tools.

    Attributes:
        answers: Raw texts by the last message.
        faults: Of its next generations, in their order.
        spoilt: Of the next generation of an answer, by the last message.
        misreads: Makes of each delta of a chat stream what the engine's own parser makes of it.
        wrote: Tokens that went out in streams, by the last message.
        went_on: Generations that went on with an answer, by the last message.
        pause_s: After each chunk.
        strikes: What hits the generations that are under way, each for those that began before it.
        hits: How often answers were hit, by their message; none is more than twice.
        drains: It takes no more requests.
        written: Chunks so far.
        gone: Generations that hung until the gateway left.
        bodies: Of the requests, with their paths.
        worked: Tokens that it has read and written, of all its generations.
    """

    def __init__(
        self,
        answers: dict[str, str],
        grammar: str,
        markers: Sequence[str],
        faults: Iterable[TokenFault | None] = (),
        *,
        thinking: bool = False,
        per_chunk: int = 1,
        tells_ids: bool = True,
        holds: bool = True,
    ) -> None:
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.worked = 0
        self.answers = answers
        self.faults = list(faults)
        self.spoilt: dict[str, TokenFault] = {}
        self.misreads: Callable[[dict[str, Any]], dict[str, Any]] = lambda delta: delta
        self.wrote: Counter[str] = Counter()
        self.went_on: Counter[str] = Counter()
        self.pause_s = 0.0
        self.strikes: list[Strike] = []
        self.hits: Counter[str] = Counter()
        self.drains = False
        self.written = self.gone = 0
        self._grammar = grammar
        self._spellings = {**_SPELLINGS, **dict(enumerate(markers, _FIRST_MARKER))}
        self._ids = {text: id_ for id_, text in self._spellings.items()}
        self._marker = re.compile("|".join(map(re.escape, self._ids)))
        self._thinking = thinking
        self._per_chunk = per_chunk
        self._tells_ids = tells_ids
        self._holds = holds

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text."""
        ids: list[int] = []
        start = 0
        for found in self._marker.finditer(text):
            ids += [*text[start : found.start()].encode(), self._ids[found.group()]]
            start = found.end()
        return [*ids, *text[start:].encode()]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of tokens; of a character that is not complete, a mark."""
        return self._bytes(ids).decode(errors="replace")

    async def __call__(self, arrival: Arrival) -> None:
        """Answers one request."""
        path, body = arrival.path, json.loads(arrival.body)
        self.bodies.append((path, body))
        if path == "/detokenize":
            await arrival.json({"prompt": self.decode(body["tokens"])})
            return
        if path == "/tokenize":
            await arrival.json({"tokens": self._prompt(body)})
            return
        if not self._holds and any(tool["function"].get("strict") for tool in body.get("tools") or ()):
            await arrival.json(error("no grammar of ours says that", 400), 400)
            return
        if self.drains:
            await arrival.json(error("this engine is about to stop", 503), 503)
            return
        prompt, prefix = self._prompt(body), []
        if _PROMPT_END in prompt[:-1]:
            end = prompt.index(_PROMPT_END) + 1
            prompt, prefix = prompt[:end], prompt[end:]
        said = self.decode(prompt[:-1])
        answer = [*self.encode(self.answers[said]), _TURN_END]
        if answer[: len(prefix)] != prefix:
            await arrival.json(error("no answer begins so", 400), 400)
            return
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or len(answer)
        self.went_on[said] += prefix != []
        fault = self.faults.pop(0) if self.faults else self.spoilt.pop(said, None)
        ids, reason = self._generated(answer[len(prefix) :], limit, fault)
        self.worked += len(prompt) + len(prefix) + len(ids)
        chat = None if prefix or not path.endswith("/chat/completions") else self._reader(body)
        send = self._stream if body.get("stream") else self._whole
        await send(arrival, body, [*prompt, *prefix], ids, reason, chat, fault)

    def _prompt(self, body: Mapping[str, Any]) -> list[int]:
        """Returns the tokens of a prompt, and of what follows it already."""
        if "messages" in body:
            return [*self.encode(_text(body["messages"][-1]["content"])), _PROMPT_END]
        prompt = body["prompt"]
        return self.encode(prompt) if isinstance(prompt, str) else prompt

    def _generated(self, rest: list[int], limit: int, fault: TokenFault | None) -> tuple[list[int], str | None]:
        """Returns the tokens of a generation and the reason of its end; None for one without."""
        if fault is None or fault.at >= len(rest):
            return (rest, "stop") if len(rest) <= limit else (rest[:limit], "length")
        ids = rest[: fault.at]
        if fault.kind == "damage":
            return [*ids, *self.encode(fault.text), _TURN_END], "stop"
        if fault.kind == "stop":
            return [*ids, _TURN_END], "stop"
        return ids, "abort" if fault.kind == "abort" else None

    def _reader(self, body: Mapping[str, Any]) -> RawChoice | _Unread:
        if body.get("skip_special_tokens") is False:
            return _Unread()
        tools = [tool["function"] for tool in body.get("tools") or ()]
        parser = StreamParser(self._grammar, tools, self._thinking, calls=bool(tools))
        return RawChoice(parser, own_ids=self._grammar in MODELS_OWN_IDS, reports=True)

    async def _whole(
        self, arrival: Arrival, body: Mapping[str, Any], prompt: list[int], ids: list[int], reason: str | None,
        chat: RawChoice | _Unread | None, fault: TokenFault | None,
    ) -> None:  # fmt: skip
        if reason is None:
            await arrival.hang_up()
        text = self.decode([id_ for id_ in ids if id_ != _TURN_END])
        told = {"token_ids": ids} if self._told(body) else {}
        if chat is None:
            choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": reason, **told}
        else:
            delta = merged([chat.feed(text)[0], chat.finish()])
            choice = {"index": 0, "message": {"role": "assistant", "content": None, **delta}, **told}
            choice["finish_reason"] = chat.reason(reason)
        answer = {"id": _ID, "created": _CREATED, "model": body["model"], "choices": [choice]}
        if self._told(body):
            answer["prompt_token_ids"] = prompt
        await arrival.json({**answer, "usage": _usage(prompt, ids)})

    async def _stream(
        self, arrival: Arrival, body: Mapping[str, Any], prompt: list[int], ids: list[int], reason: str | None,
        chat: RawChoice | _Unread | None, fault: TokenFault | None,
    ) -> None:  # fmt: skip
        envelope = {"id": _ID, "created": _CREATED, "model": body["model"]}
        told, struck = self._told(body), len(self.strikes)
        said = self.decode(prompt[: prompt.index(_PROMPT_END)])
        await arrival.begin()
        if chat is not None:
            delta = {"role": "assistant", "content": ""}
            first = {**envelope, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]}
            await arrival.write(encode_frame({**first, **({"prompt_token_ids": prompt} if told else {})}))
        for piece, text in self._pieces(ids):
            last = piece[-1:] == [_TURN_END] or (reason is not None and piece == [])
            ended = reason if last else None
            choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": ended}
            if chat is None:
                choice["text"] = text
            else:
                delta = merged([chat.feed(text)[0], chat.finish() if ended else {}])
                choice |= {"delta": self.misreads(delta), "finish_reason": chat.reason(ended)}
            choice |= {"stop_reason": None, **({"token_ids": piece} if told else {})}
            await arrival.write(encode_frame({**envelope, "choices": [choice]}))
            self.written += 1
            self.wrote[said] += len(piece)
            await asyncio.sleep(self.pause_s)
            if last:
                break
            if len(self.strikes) > struck and self.hits[said] < _MOST_HITS:
                self.hits[said] += 1
                await self._strike(arrival, envelope, self.strikes[struck])
                return
        if reason is None and fault is not None and fault.kind in ("die", "hang"):
            await self._strike(arrival, envelope, "die" if fault.kind == "die" else "hang")
        if (body.get("stream_options") or {}).get("include_usage") and reason is not None:
            await arrival.write(encode_frame({**envelope, "choices": [], "usage": _usage(prompt, ids)}))
        await arrival.write(DONE)

    async def _strike(self, arrival: Arrival, envelope: Mapping[str, Any], strike: Strike) -> None:
        if strike == "die":
            await arrival.hang_up()
        if strike == "hang":
            try:
                await arrival.gone.wait()
            finally:
                self.gone += 1
        choice = {"index": 0, "delta": {}, "finish_reason": "abort"}
        await arrival.write((encode_frame({**envelope, "choices": [choice]}) if strike == "abort" else b"") + DONE)

    def _told(self, body: Mapping[str, Any]) -> bool:
        return self._tells_ids and body.get("return_token_ids") is True

    def _bytes(self, ids: Sequence[int]) -> bytes:
        return b"".join(self._spellings[id_].encode() if id_ in self._spellings else bytes([id_]) for id_ in ids)

    def _pieces(self, ids: list[int]) -> Iterator[tuple[list[int], str]]:
        """Yields tokens with their text, which comes when its characters are complete, and an end without tokens."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for start in range(0, len(ids), self._per_chunk):
            piece = ids[start : start + self._per_chunk]
            yield piece, decoder.decode(self._bytes([id_ for id_ in piece if id_ != _TURN_END]))
        yield [], ""


class _Unread:
    """The text as it is, for whoever reads it himself; as `RawChoice`."""

    def feed(self, text: str) -> tuple[dict[str, Any], bool]:
        return {"content": text} if text else {}, True

    def finish(self) -> dict[str, Any]:
        return {}

    def reason(self, reason: Any) -> Any:
        return reason


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join([part["text"] for part in content])


def _usage(prompt: list[int], ids: list[int]) -> dict[str, int]:
    return {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(ids),
        "total_tokens": len(prompt) + len(ids),
    }
