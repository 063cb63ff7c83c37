"""Plain streams that go on elsewhere when their engine is lost: nobody judges them, and nothing is held or asked for.

The bytes that went out are kept, and read only if something has to follow them (docs/adr/0116). Nobody has asked the
first engine for the ids of its tokens. So what the client has (`PlainAnswer`) becomes the text that its model wrote
(`raw_of`), and that becomes tokens again (`tokens_of`), with which the next engine begins. Of what comes then, the
client gets what is new (`ResumedStream`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from policies import Candidate
from serve.config.pool import AUTO, NO_GRAMMAR, ModelConfig
from serve.errors import EngineError, GatewayError
from serve.guard.core import Outcome
from serve.guard.cut import ids_of, text_of
from serve.guard.rerun import rerun_order
from serve.guard.resume import ResumeEnd, Resumes, Resumption, Written, may_resume
from serve.http1.sse import DONE, is_done
from serve.http1.turns import beside
from serve.parsing import StreamParser
from serve.proxy.attempts import Ask, Attempt, Attempts, Held
from serve.proxy.exchange import Exchange
from serve.proxy.outgoing import goes_on
from serve.proxy.raw_text import raw_text
from serve.proxy.relay import line_of, note_break, relay, send_stream
from serve.proxy.routed_request import RoutedRequest
from serve.proxy.stalls import Stalls
from serve.request.completion import CHAT_PATH, TEXT_PATH, parse
from serve.request.continuation import CannotResumeError, continuation, obstacle, tokenizing
from serve.request.patch import BodyPatch
from serve.stream.ending import INCOMPLETE, End, Ending, error_around, error_in, gave_up, is_finish
from serve.stream.frame import ARGUMENTS, TEXTS, Frame, FrameReader
from serve.stream.line import Check, Kept
from serve.stream.parsed import RawChoice
from serve.stream.splice import TURN_ENDS, AsItIs, ChatSplice, Had, KeptPrefix, TextSplice, kept_prefix
from serve.telemetry.instruments import Telemetry

_MANY_PARTS = 64
_LONGEST_WORD = 24  # of text without spaces so many characters are taken for one
_LAST_WORD = re.compile(r"\s?\S*\Z")
_REASONING, _CONTENT = "reasoning", "content"
_ENVELOPE = ("id", "created", "system_fingerprint")
# A word that is out in part has become another one: nothing of that went out, and the answer goes on behind that part.
_ANOTHER_WORD = EngineError("The engine goes on with another word.")


@dataclass
class _LostStream:
    """A stream that has lost its engine.

    Attributes:
        answer: What the client has of it.
        tried: Whose engines were lost.
        unknown: So much went out that nobody knows what the client has.
    """

    exchange: Exchange
    request: RoutedRequest
    answer: PlainAnswer
    tried: list[Candidate]
    unknown: bool


class PlainPath:
    """Serves the plain requests of models with `resume: all`.

    Attributes:
        models: Names of those whose plain requests it serves: some engine of theirs can go on with an answer.
    """

    def __init__(
        self,
        attempts: Attempts,
        telemetry: Telemetry,
        resumes: Resumes,
        models: Mapping[str, ModelConfig],
        stalls: Stalls,
    ) -> None:
        self._stalls = stalls
        self._attempts = attempts
        self._telemetry = telemetry
        self._resumes = resumes
        self._models = models
        self.models = frozenset(
            name for name, model in models.items() if any(goes_on(model, pool) for pool in model.pools.values())
        )

    async def respond(self, exchange: Exchange, request: RoutedRequest) -> None:
        """Sends the response, made of one attempt or several.

        Raises:
            GatewayError: As raised by `Attempts.first_response` and `relay`.
        """
        broken = await self._make_attempt(exchange, request, request.decision.candidates)
        if broken is not None:  # nothing of it is out
            tried, failure = broken
            again = rerun_order(request.decision.candidates, [tried], request.decision.trial)
            with self._telemetry.step("rerun"):
                broken = await self._make_attempt(exchange, request, again)
            if broken is not None:
                raise failure

    async def _make_attempt(
        self, exchange: Exchange, request: RoutedRequest, candidates: Sequence[Candidate]
    ) -> tuple[Candidate, EngineError] | None:
        """Sends a response; returns whose it was and why it broke if nothing of it is out.

        Raises:
            GatewayError: As of `respond`.
        """
        async with Held() as held:
            attempt = await self._attempts.first_response(request, candidates, held, exchange.attribution.tried)
            kept = go_on = None
            if attempt.response.is_stream:
                self._stalls.watch(request, attempt)
                kept = Kept()
                go_on = partial(self._resume, exchange, request, attempt, kept, held)
            try:
                await relay(exchange, attempt, self._telemetry, kept=kept, go_on=go_on)
            except EngineError as error:
                if exchange.status:
                    raise
                return attempt.candidate, error
        return None

    async def _resume(
        self, exchange: Exchange, request: RoutedRequest, attempt: Attempt, kept: Kept, held: Held, failure: EngineError
    ) -> bool:
        """Goes on with the stream of an attempt whose engine is lost until it is complete, from what was kept of it;
        returns False if the client must get an error.
        """
        await held.release()  # nobody waits for the slot of an engine that is lost
        answer = PlainAnswer(chat=request.path == CHAT_PATH, several=attempt.several)
        await beside(len(kept.parts) > _MANY_PARTS, answer.read, kept.parts)
        reads, model = attempt.candidate.pool, self._models[request.decision.model]
        if answer.chat and model.pools[reads].parse == "gateway":
            answer.parse(raw_text(model, reads).opener(request.parsed)())
        stream = _LostStream(exchange, request, answer, [attempt.candidate], kept.lost)
        broken: EngineError | None = failure
        length, before = answer.length, 0
        heals = True
        while broken is not None and not answer.finished:
            with self._telemetry.step("rerun"):
                resumption = await self._resumption(stream, grew=length > before, heals=heals)
                if resumption is None:
                    return False
                try:
                    broken = await self._send(stream, resumption)
                except GatewayError:
                    self._count(request, resumption, "refused")
                    return False
            heals = broken is not _ANOTHER_WORD
            if heals:
                length, before = answer.length, length
                if broken is not None:
                    note_break(exchange, stream.tried[-1], broken, self._telemetry)
            else:
                stream.tried.pop()
        await exchange.end_stream([Frame(DONE)])
        return True

    async def _resumption(self, stream: _LostStream, *, grew: bool, heals: bool) -> Resumption | None:
        """Returns how a lost stream goes on, from the start as long as nothing of it is out; None if it can't. It
        `grew` if the last engine has added to it, and `heals` if the last word, which may end within a token, may be
        written again.
        """
        request, answer, tried = stream.request, stream.answer, stream.tried
        candidates = rerun_order(request.decision.candidates, tried, request.decision.trial)
        may = may_resume(Outcome.FAILED, len(tried) - 1, grew=grew)
        if not answer.begun and not stream.unknown and may:
            return Resumption(request, candidates, Written(candidates[0].pool, (), (), None), Outcome.FAILED)

        async def make() -> Resumption:
            if answer.several:
                raise CannotResumeError("several")
            if stream.unknown:
                raise CannotResumeError("long")
            if not may:
                raise CannotResumeError("resumed")
            with suppress(CannotResumeError):  # all that is out may do where the part before its last word does not
                # An engine that looks for a stop text holds back what may be one, wherever a token ends.
                if heals and (request.features.stop or answer.ends_in_space) and (word := answer.last_word):
                    return await self._continued(request, answer, candidates, word)
            return await self._continued(request, answer, candidates)

        return await self._resumes.made(request, make(), "error")

    async def _continued(
        self, request: RoutedRequest, answer: PlainAnswer, candidates: Sequence[Candidate], word: str = ""
    ) -> Resumption:
        """Returns how a stream goes on of which something is out, all but a word at its end that is to come again.

        Raises:
            CannotResumeError: It can't.
        """
        asked = bytes(request.parsed.return_token_ids) == b"true"  # those that a text is made of may be others
        if reason := obstacle(request.features, exact=False) or ("fields" if asked else None):
            raise CannotResumeError(reason)
        able = [candidate for candidate in candidates if self._attempts.resumes(request, candidate)]
        if not able:
            raise CannotResumeError("engine")
        had, pool = answer.had.without(word), able[0].pool
        open_ = self._opener(request, pool) if answer.chat else None
        text = had.content if open_ is None else raw_of(had, open_(), splits=self._splits(request, pool))

        async def tokens(ask: Ask, candidate: Candidate) -> tuple[list[int], list[int]]:
            return await tokens_of(ask, tokenizing(self._attempts.prompt_of(request, candidate)), text)

        before, kept = await self._resumes.first(request, able, tokens)
        sent = request.patch.apply(request.body)
        body = continuation(sent, before, kept, text, exact=False, raw=open_ is not None)
        prefix = prefix_of(open_ and open_(), had, text, len(kept), len(before))
        more = ChatSplice(prefix) if answer.chat else TextSplice(prefix)
        resumed = replace(request, path=TEXT_PATH, body=body, patch=BodyPatch(), parsed=parse(body), continued=more)
        return Resumption(resumed, able, Written(pool, tuple(before), tuple(kept), None), Outcome.FAILED, word)

    def _opener(self, request: RoutedRequest, pool: str) -> Callable[[], StreamParser] | None:
        """Returns what makes a parser of an answer to a chat request; None if nobody knows how its model writes.

        Raises:
            CannotResumeError: All that it writes is in channels, and nothing says in which one a text was.
        """
        model = self._models[request.decision.model]
        if model.grammar in (AUTO, NO_GRAMMAR):
            return None
        reader = raw_text(model, pool)
        if reader.thinking.start == "channel":
            raise CannotResumeError("reasoning")
        return reader.opener(request.parsed)

    def _splits(self, request: RoutedRequest, pool: str) -> bool:
        """Returns whether a pool's answers are known to tell reasoning and text apart."""
        settings = self._models[request.decision.model].pools[pool]
        return settings.kind == "vllm" or settings.parse == "gateway"

    async def _send(self, stream: _LostStream, resumption: Resumption) -> EngineError | None:
        """Sends what another engine goes on with; returns why that broke, if it did.

        Raises:
            GatewayError: No engine goes on.
        """
        exchange, request, answer, tried = stream.exchange, stream.request, stream.answer, stream.tried
        kept = len(resumption.written.kept)
        broken: EngineError | None = None
        async with Held() as held:
            attempt = await self._attempts.first_response(resumption.request, resumption.candidates, held)
            if not attempt.response.is_stream:
                raise EngineError(f"The engine answered with status {attempt.response.status}.")
            self._stalls.watch(request, attempt)
            tried.append(attempt.candidate)
            exchange.attribution.rerun(attempt.candidate, tried[-2], kept)
            exchange.span.set_attribute("specgate.resumed", kept)
            check = AllAgain(answer) if answer.several else ResumedStream(answer, resumption.word)
            try:
                await send_stream(exchange, attempt.response, line_of(attempt, exchange, check))
            except EngineError as error:
                broken = error
        if check.failure is _ANOTHER_WORD:
            return _ANOTHER_WORD
        self._count(request, resumption, "sound" if answer.finished else "broken")
        return None if answer.finished else check.failure or broken or EngineError(INCOMPLETE)

    def _count(self, request: RoutedRequest, resumption: Resumption, outcome: ResumeEnd) -> None:
        if resumption.written.kept:  # else it was a rerun
            self._resumes.ended(request.decision.model, resumption, outcome)


class PlainAnswer:
    """The part of a plain stream that the client has: of one choice all, of several no more than that they are there.

    Attributes:
        envelope: Of its chunks.
        several: The request may be for several answers, or several have begun: none of them goes on elsewhere.
        choices: Number of those that have begun.
        reasoning: The name of its reasoning.
        chat: It is a chat answer, and no text completion.
    """

    def __init__(self, *, chat: bool = True, several: bool = False) -> None:
        self.chat = chat
        self.envelope: dict[str, Any] = {}
        self.finished = False
        self.several = several
        self.choices = 0
        self.reasoning = _REASONING
        self._readable = True
        self._texts: dict[str, list[str]] = {}
        self._ending = Ending()

    @property
    def begun(self) -> bool:
        """True once something of the answer itself is out; of several, once one has begun."""
        return bool(self._texts) or not self._readable or (self.several and self.choices > 0)

    @property
    def length(self) -> int:
        """Characters that went out."""
        return sum(len(text) for texts in self._texts.values() for text in texts)

    @property
    def had(self) -> Had:
        """The answer as it went out.

        Raises:
            CannotResumeError: It is not known.
        """
        if not self._readable:
            raise CannotResumeError("engine")
        return Had(self._text(_REASONING), self._text(_CONTENT))

    @property
    def ends_in_space(self) -> bool:
        """True if a space is the last that is out: mostly it is the begin of a token."""
        had = self.had
        return (had.content or had.reasoning)[-1:].isspace()

    @property
    def last_word(self) -> str:
        """The last word that is out, with the space before it; empty if there is no other."""
        had = self.had
        text = had.content or had.reasoning
        end = text[-_LONGEST_WORD:]
        word = end.removeprefix(_LAST_WORD.sub("", end, count=1))
        return "" if word == had.reasoning + had.content else word

    def read(self, parts: Iterable[bytes]) -> None:
        """Takes the bytes of a stream, up to the frame in which its engine gave it up."""
        reader = FrameReader()
        for part in parts:
            for frame in reader.feed(part):
                if not self._read(frame):
                    return

    def parse(self, parser: StreamParser) -> None:
        """Takes the content for the raw text of a model, of which the client has what a parser made of it."""
        text, self._texts = self._text(_CONTENT), {}
        delta, _ = RawChoice(parser, own_ids=False, reports=False).feed(text)
        self._note(delta)

    def note(self, chunk: Mapping[str, Any], choice: Mapping[str, Any]) -> None:
        """Takes a chunk that goes out, and its choice."""
        self.envelope = self.envelope or {name: chunk[name] for name in _ENVELOPE if name in chunk}
        self._note(choice.get("delta") or {})
        self._add(_CONTENT, choice.get("text"))
        self._ending.feed_chunk(chunk)
        self.choices = self._ending.choices
        self.several = self.several or self.choices > 1
        self.finished = self._ending.complete and not self.several

    def _note(self, delta: Mapping[str, Any]) -> None:
        if delta.get(ARGUMENTS):  # for which nobody has asked
            self._readable = False
        for name in TEXTS:
            self._add(name, delta.get(name))

    def _read(self, frame: Frame) -> bool:
        """Takes a frame; returns whether more can follow."""
        if (template := frame.template) is not None:
            self._add(template.place.field, frame.text)
            return True
        if error_around(frame.raw) is not None:
            return False
        data = frame.data()
        if data is None:
            self._readable = self._readable and frame.whole
            return True
        if is_done(data):
            return False
        try:
            chunk = frame.parsed(data)
        except EngineError:
            return False
        choice = first_choice(chunk)
        if given_up(chunk, choice) is not None:
            return False
        self.note(chunk, choice)
        return True

    def _text(self, name: str) -> str:
        return "".join(self._texts.get(name, ()))

    def _add(self, name: str, text: Any) -> None:
        if not isinstance(text, str) or not text:
            return
        if name not in TEXTS:
            self._readable = False
        elif name != _CONTENT:
            self.reasoning, name = name, _REASONING
        self._texts.setdefault(name, []).append(text)


async def tokens_of(ask: Ask, prompt: bytes | list[int], text: str) -> tuple[list[int], list[int]]:
    """Returns the tokens of a prompt and of a text.

    A text that ends where a token ended has the same tokens again, as far as its model wrote the usual ones. Of the
    prompt there are its ids, or the body that asks for them.

    Raises:
        CannotResumeError: The engine does not know, or would read another text.
        GatewayError: It does not answer.
    """
    if any(end in text for end in TURN_ENDS):
        raise CannotResumeError("token")  # which a text would become that only spells it
    before = await ids_of(ask, prompt) if isinstance(prompt, bytes) else prompt
    ids = await ids_of(ask, msgspec.json.encode({"prompt": text, "add_special_tokens": False}))
    read = await text_of(ask, ids)
    if not before or not ids:
        raise CannotResumeError("no_ids")
    if _normal(read) != _normal(text):
        raise CannotResumeError("token")
    return before, ids


def raw_of(had: Had, parser: StreamParser, *, splits: bool) -> str:
    """Returns what a model wrote of which a client has the parts, but for space that parsers leave out. It `splits` if
    whoever read the answer is known to have told reasoning and text apart.
    """
    machine = parser.machine
    inside, (opens, closes) = machine.thinking, machine.thinking_tags
    if not had.content.startswith("\n"):
        closes += "\n" * machine.newlines_behind_reasoning
    if not had.reasoning:
        return closes + had.content if inside and splits else had.content
    begin = had.reasoning if inside else opens + had.reasoning
    return begin + closes + had.content if had.content else begin


def prefix_of(parser: StreamParser | None, had: Had, text: str, tokens: int, prompt_tokens: int) -> KeptPrefix:
    """Returns what a client has, a raw text of so many tokens, as the begin of the answer that goes on. The parser is a
    new one; None if nobody knows how the model writes.

    Raises:
        CannotResumeError: We read something else in it.
    """
    # A text that is read as a thought may be one that nobody has told from text.
    otherwise = "passed" if parser is not None and had.reasoning else "reasoning"
    if parser is not None:
        return kept_prefix(parser, had, text, tokens, prompt_tokens, otherwise=otherwise)
    if had.reasoning:
        raise CannotResumeError(otherwise)
    return KeptPrefix(AsItIs(), {_CONTENT: text}, tokens, prompt_tokens)


def _normal(text: str) -> str:
    """Returns a text without what tokenizers may change in it: blanks at its begin, and how accents are spelt."""
    return unicodedata.normalize("NFC", text).lstrip()


class AllAgain(End):
    """Lets a stream of several choices that begins again, since none had begun, pass as it is but for its `[DONE]`."""

    def __init__(self, answer: PlainAnswer) -> None:
        super().__init__(several=True, waits=True)
        self._answer = answer

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Returns what `End` does."""
        passed = super().feed(frame)
        self._answer.choices, self._answer.finished = self.choices, self.done
        return () if self.done else passed


class ResumedStream(Check):
    """Makes what another engine goes on with the rest of the stream, of one choice, that the client has. The engine has
    to write the word at its end again.

    Attributes:
        failure: The engine's, where it gave the answer up, or `_ANOTHER_WORD`.
    """

    exact = False

    def __init__(self, answer: PlainAnswer, word: str = "") -> None:
        self.over = False
        self.failure: EngineError | None = None
        self._answer = answer
        had = answer.had
        self._word = word
        self._word_in = _CONTENT if had.content else _REASONING
        # What the client has already and what comes again: all that is kept of a chat answer comes first.
        self._again = {_REASONING: had.reasoning, _CONTENT: had.content} if answer.chat else {_CONTENT: word}

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Returns the frame with what is new in it."""
        if self.over:
            return ()
        data = frame.data() if frame.chunk is None else b""
        if data is None or is_done(data):
            return ()
        try:
            chunk = {**frame.parsed(data), **self._answer.envelope}
        except EngineError as error:
            self.failure, self.over = error, True
            return ()
        choice = first_choice(chunk)
        self.failure = given_up(chunk, choice)
        if self.failure is not None:
            self.over = True
            return ()
        if not choice:
            return (Frame.of(chunk),) if chunk.get("usage") else ()
        new = self._chat(choice) if self._answer.chat else self._completion(choice)
        if self._word and new is not None and self._again[self._word_in]:
            self.failure = _ANOTHER_WORD
        if self.failure is not None:
            self.over = True
            return ()
        if new is None:
            return ()
        self._answer.note(chunk, new)
        return (Frame.of({**chunk, "choices": [new]}),)

    def _chat(self, choice: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Returns what is new in a choice of a chat chunk; None if nothing is."""
        delta = {}
        for name, text in (choice.get("delta") or {}).items():
            if name == "role" and not self._answer.choices:  # else it is out
                delta[name] = text
            elif name == _CONTENT and (new := self._new(_CONTENT, text)):
                delta[_CONTENT] = new
            elif name in TEXTS and name != _CONTENT and (new := self._new(_REASONING, text)):
                delta[self._answer.reasoning] = new
        return {**choice, "delta": delta} if delta or choice.get("finish_reason") is not None else None

    def _completion(self, choice: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Does the same for a text completion."""
        new = self._new(_CONTENT, choice.get("text"))
        return {**choice, "text": new} if new or choice.get("finish_reason") is not None else None

    def _new(self, name: str, text: Any) -> str:
        """Returns what the client does not have of more of a text."""
        if not isinstance(text, str):
            return ""
        had = self._again[name]
        again, self._again[name] = text[: len(had)], had[len(text) :]
        if self._word and name == self._word_in:
            kept = max(0, len(had) - len(self._word))  # characters before the word, which are our own
            if again[kept:] != had[kept : len(again)]:
                self.failure = _ANOTHER_WORD
        return text[len(had) :]


def first_choice(chunk: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the first choice of a chunk; an empty one if there is none: a foreign engine may send anything."""
    choices = chunk.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    return choice if isinstance(choice, dict) and isinstance(choice.get("delta"), dict | None) else {}


def given_up(chunk: Mapping[str, Any], choice: Mapping[str, Any]) -> EngineError | None:
    """Returns why an engine gives an answer up in a chunk and its first choice; None for a part of it."""
    reason = choice.get("finish_reason")
    if reason and not is_finish(reason):
        return error_in(chunk) or EngineError(f"The engine {gave_up(reason)}.")
    return error_in(chunk)
