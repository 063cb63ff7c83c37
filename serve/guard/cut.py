"""The place where a broken answer is cut, so that another engine can go on with it.

Damage begins before it is seen. So the first cut is a little before it, the second one at a structural boundary further
back, and then the request runs again from the start: `CUTS` says which, by what was found. `boundaries` finds these
places in the text that the model wrote, and `Cutter` the tokens before them, asking an engine what tokens spell.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, TypeVar

import msgspec

from policies import Candidate
from serve.config.pool import ModelConfig
from serve.guard.core import Guard, Outcome, Severity
from serve.guard.core.json_prefix import JsonPrefix
from serve.guard.core.markup import REPLACEMENT, has_markup
from serve.http1.turns import beside
from serve.parsing import CallArguments, CallEnd, CallStart, Content, Event, Fault, Reasoning, StreamParser
from serve.parsing.machine import State
from serve.proxy.attempts import Ask
from serve.proxy.raw_text import raw_text
from serve.proxy.routed_request import RoutedRequest
from serve.request.completion import MALFORMED
from serve.request.continuation import CannotResumeError
from serve.stream.parsed import MODELS_OWN_IDS
from serve.stream.splice import Had, KeptPrefix, kept_prefix, without_turn_end


class Cut(StrEnum):
    """A place in an answer.

    `END`: where it broke off. `SOUND`: where the arguments of the damaged call are no longer certain to be right.
    `CALL`: before that call. `TEXT`: before markup in a text; its client has nothing of what follows. `BEFORE`: a
    boundary before that of the call.
    """

    END = "end"
    SOUND = "sound"
    CALL = "call"
    TEXT = "text"
    BEFORE = "before"


# By what was found: where the first resume goes on, where the second one does, and so on.
CUTS: Mapping[Outcome, tuple[Cut, ...]] = {
    Outcome.FAILED: (Cut.END,),
    Outcome.TRUNCATED: (Cut.END, Cut.CALL),
    Outcome.MARKER_LEAK: (Cut.TEXT, Cut.BEFORE),
}
# The same for what was found in a call.
CUTS_IN_CALLS: Mapping[Outcome, tuple[Cut, ...]] = {
    Outcome.TRUNCATED: (Cut.SOUND, Cut.CALL, Cut.BEFORE),
    Outcome.INVALID_JSON: (Cut.SOUND, Cut.CALL, Cut.BEFORE),
    Outcome.SCHEMA_MISMATCH: (Cut.SOUND, Cut.CALL, Cut.BEFORE),
    Outcome.MARKER_LEAK: (Cut.SOUND, Cut.CALL, Cut.BEFORE),
    Outcome.UNKNOWN_TOOL: (Cut.CALL, Cut.BEFORE),
}
GIVEN_UP = 32  # characters of arguments in front of the first that is doubtful; fewer if its member begins behind them
_INCOMPLETE = "\ufffd"  # what a tokenizer makes of the first bytes of a character
_MOST_BYTES = 3  # of a character that is not complete
_LONG_CHARS = 4096
_MOST_CHARS = 256 * 1024  # of an answer that is read again, character by character
# What a member or an item begins behind, or in front of; strings are there to be passed over.
_MARKS = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z)|[{\[,]', re.DOTALL)
# Markup that yields no call.
_LEAKS = frozenset({"stray_marker", "stray_text", "malformed_call", "unresolved_call"})
T = TypeVar("T", bound=msgspec.Struct)
SoundPart = Callable[[str, str], int]
"""Returns how many characters begin arguments that are right, given the name of a tool and the arguments."""


def cuts_of(outcome: Outcome, resumed: int, *, in_call: bool) -> tuple[Cut, ...]:
    """Returns where a broken answer may be cut, best first; nowhere if it must run again from the start.

    Args:
        outcome: What was wrong with it.
        resumed: How often it has gone on already.
        in_call: A call of it was damaged.
    """
    cuts = (CUTS_IN_CALLS.get(outcome) if in_call else None) or CUTS.get(outcome, ())
    return cuts[min(resumed, len(cuts) - 1) :] if cuts else ()


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Text(msgspec.Struct):
    prompt: str


class Broken(NamedTuple):
    """A broken answer.

    Attributes:
        had: What its client has of it.
        call: The first that is damaged; None if nothing is wrong with any.
        resumed: How often it has gone on elsewhere already.
        sound: Judges arguments.
    """

    outcome: Outcome
    had: Had
    call: int | None
    resumed: int
    sound: SoundPart

    @classmethod
    def under(cls, guard: Guard) -> Broken:
        """Returns the answer that a guard has found broken.

        Raises:
            CannotResumeError: Its reasoning has another name than we would go on with.
        """
        view, verdict = guard.sent(), guard.verdicts[-1]
        if view.text_sent("reasoning_content"):
            raise CannotResumeError("engine")
        arguments = None if view.live is None else view.live.sent
        had = Had(view.text_sent("reasoning"), view.text_sent("content"), tuple(view.names_sent), arguments)
        calls = [
            defect.call
            for defect in verdict.defects
            if defect.call is not None and defect.severity is not Severity.NOTE
        ]
        return cls(verdict.outcome, had, min(calls, default=None), guard.resumed, guard.sound_part)


class Cutter:
    """Cuts one broken answer of a model, given its tokens' ids and the pool that made the prompt."""

    def __init__(self, model: ModelConfig, request: RoutedRequest, broken: Broken, pool: str, ids: list[int]) -> None:
        reader = raw_text(model, pool)
        self._grammar = reader.grammar
        self._open = reader.opener(request.parsed)
        self._ids = ids
        self._had, self._sound = broken.had, broken.sound
        self._call = len(broken.had.calls) if broken.call is None else broken.call

    async def cut(self, ask: Ask, candidate: Candidate, cuts: Sequence[Cut], begun: int) -> tuple[list[int], str]:
        """Returns the ids that are kept, and their text.

        Args:
            ask: Asks an engine, which knows what ids spell.
            candidate: Whose engine it is.
            cuts: Where, best first.
            begun: Number of tokens with which the broken attempt began: there it is not cut again.

        Raises:
            CannotResumeError: There is no such place.
            GatewayError: The engine does not answer.
        """
        kept, text = await self._end(ask)
        if cuts[0] is not Cut.END:
            if len(text) > _MOST_CHARS:
                raise CannotResumeError("long")
            found, places = await beside(len(text) > _LONG_CHARS, self._places, text, cuts)
            if not places:
                raise CannotResumeError("passed")
            kept, text = await self._before_any(ask, kept, text, found, places, begun)
        if not kept:
            raise CannotResumeError("start")
        return kept, text

    def _places(self, text: str, cuts: Sequence[Cut]) -> tuple[Boundaries, list[int]]:
        """Returns where a text can be cut, and the places of the cuts that there are."""
        found = boundaries(self._open(), text, self._had)
        places = (found.place(cut, self._call, self._sound) for cut in cuts)
        return found, [place for place in places if place is not None]

    async def _end(self, ask: Ask) -> tuple[list[int], str]:
        """Returns the tokens of whole characters, without the one that ended the turn."""
        kept = self._ids
        text = await text_of(ask, kept)
        for _ in range(_MOST_BYTES):
            if text.endswith(_INCOMPLETE) and kept:
                kept = kept[:-1]
                text = await text_of(ask, kept)
        turn = without_turn_end(text)
        if turn != text and await text_of(ask, kept[:-1]) == turn:  # else the text only spells it
            return kept[:-1], turn
        return kept, text

    async def _before_any(
        self, ask: Ask, ids: list[int], text: str, found: Boundaries, places: Sequence[int], begun: int
    ) -> tuple[list[int], str]:
        """Returns the tokens before the first of some places at which the attempt has not begun, and their text."""
        for place in places:
            kept, before = await self._before(ask, ids, text, place)
            if len(kept) != begun or place == places[-1]:
                break
        if found.client is None or len(before) < found.client or not text.startswith(before):
            raise CannotResumeError("token")  # one that holds both what is sound and what is not
        return kept, before

    async def _before(self, ask: Ask, ids: list[int], text: str, place: int) -> tuple[list[int], str]:
        """Returns the tokens before a place of the text, and their text."""
        low, high, before = 0, len(ids), ""
        while low < high:
            middle = (low + high + 1) // 2
            said = await text_of(ask, ids[:middle])
            if len(said.rstrip(_INCOMPLETE)) <= place:
                low, before = middle, said
            else:
                high = middle - 1
        for _ in range(_MOST_BYTES):
            if low and not text.startswith(before):  # it ends inside a character
                low -= 1
                before = await text_of(ask, ids[:low])
        return ids[:low], before

    def prefix(self, kept: Sequence[int], text: str, prompt_tokens: int) -> KeptPrefix:
        """Returns what is kept of the answer, as the client is to have it.

        Raises:
            CannotResumeError: The client has something else.
        """
        own_ids = self._grammar in MODELS_OWN_IDS
        return kept_prefix(self._open(), self._had, text, len(kept), prompt_tokens, own_ids=own_ids, reports=True)


async def text_of(ask: Ask, ids: Sequence[int]) -> str:
    """Returns what ids spell.

    Raises:
        GatewayError: The engine does not answer.
        CannotResumeError: It does not know.
    """
    return (await _asked(ask, "/detokenize", msgspec.json.encode({"tokens": ids}), _Text)).prompt


async def ids_of(ask: Ask, body: bytes) -> list[int]:
    """Returns the ids of a prompt or text, given the body of vLLM's `/tokenize`; errors as of `text_of`."""
    return (await _asked(ask, "/tokenize", body, _Tokens)).tokens


async def _asked(ask: Ask, path: str, body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(await ask(path, body), type=kind)
    except MALFORMED as error:
        raise CannotResumeError("engine") from error


class Run(NamedTuple):
    """A stretch of a text in which no call is open.

    Attributes:
        end: Where it ends, in characters.
        calls: That began before it.
    """

    end: int
    calls: int


class WrittenCall:
    """A call in a text.

    Attributes:
        begin: The place at which it is a call.
        arguments: As far as they are read.
        ended: True if the text goes on behind it.
    """

    def __init__(self, name: str, begin: int) -> None:
        self.name = name
        self.begin = begin
        self.ended = False
        self._pieces: list[str] = []
        self._lengths = [0]
        self._places = [-1]

    @property
    def arguments(self) -> str:
        return "".join(self._pieces)

    @property
    def length(self) -> int:
        """Characters of its arguments."""
        return self._lengths[-1]

    @property
    def unfinished(self) -> bool:
        """True if nothing is wrong with it but that the text ends in it."""
        arguments = self.arguments
        if self.ended or REPLACEMENT in arguments or has_markup(arguments):
            return False
        prefix = JsonPrefix(begins="{")
        prefix.feed(arguments)
        return not prefix.broken

    def add(self, arguments: str, place: int) -> None:
        """Takes more of its arguments.

        Args:
            arguments: What has been read.
            place: Of the text, behind it; in front of a marker that brought it.
        """
        self._pieces.append(arguments)
        self._lengths.append(self.length + len(arguments))
        self._places.append(place)

    def place(self, length: int) -> int | None:
        """Returns the place behind so much of the arguments, or less if they come together; None if before all."""
        place = self._places[bisect_right(self._lengths, length) - 1]
        return None if place < 0 else place


class Boundaries(NamedTuple):
    """The places of a text at which it can be cut.

    Attributes:
        runs: In their order.
        calls: That began in the text.
        client: The first place that has all that the client has; None if there is none.
        leak: The first place at which there is markup, or text, that the client can't have.
        end: Of the text.
    """

    runs: tuple[Run, ...]
    calls: tuple[WrittenCall, ...]
    client: int | None
    leak: int
    end: int

    def place(self, cut: Cut, call: int, sound: SoundPart) -> int | None:
        """Returns where to cut, in characters; None if there is no such place behind what the client has.

        Args:
            cut: Any but `END`.
            call: The first that is damaged.
            sound: Judges its arguments.
        """
        if self.client is None:
            return None
        if cut is Cut.TEXT:
            before = [run.end for run in self.runs if self.client <= run.end <= self.leak]
            return before[-1] if before else self.client if self.client <= self.leak else None
        if len(self.calls) <= call:  # we do not see the call that the engine saw
            return None
        if cut is Cut.SOUND:
            written = self.calls[call]
            if written.unfinished:
                return self.end
            right = sound(written.name, written.arguments)
            if written.ended and right == written.length:  # only its engine's parser has spoilt it
                return self.end
            kept = kept_of(written.arguments, right)
            place = written.place(kept)
            if place is None:
                return self.client if self.client > written.begin else None
            return max(place, self.client)
        ends = [run.end for run in self.runs if run.calls <= call and run.end >= self.client]
        wanted = 2 if cut is Cut.BEFORE else 1
        return ends[-wanted] if len(ends) >= wanted else None


def kept_of(arguments: str, sound: int) -> int:
    """Returns how many characters of damaged arguments are kept, of which so many are sound.

    0 if they are so few that the call may as well start over.
    """
    begin = 0
    for mark in _MARKS.finditer(arguments[: sound + 1]):
        if mark[0] == ",":
            begin = mark.start()
        elif mark[0] in "{[" and mark.end() <= sound:
            begin = mark.end()
    kept = max(begin, sound - GIVEN_UP)
    return kept if kept > 1 else 0


def boundaries(parser: StreamParser, text: str, had: Had) -> Boundaries:
    """Returns the places of an answer's raw text at which it can be cut, given a new parser of it."""
    walk = _Walk(had, len(text))
    machine = parser.machine
    begun = 0
    for place, character in enumerate(text):
        if not machine.held:
            begun = place
        if machine.resumable:
            walk.pass_by(place, machine.state)
        elif not machine.held:
            walk.state = None
        walk.take(parser.feed(character), begun, place + 1 - len(machine.held))
    return Boundaries(tuple(walk.runs), tuple(walk.calls), walk.client, walk.leak, len(text))


class _Walk:
    """A walk over a text, place by place.

    Attributes:
        runs: Those so far.
        calls: Those that began so far.
        client: The first place that has all that the client has.
        leak: As of `Boundaries`.
        state: The parser's, at the last place where no call was open; None if one has begun since.
    """

    def __init__(self, had: Had, end: int) -> None:
        self.leak = end
        self.runs: list[Run] = []
        self.calls: list[WrittenCall] = []
        self.client: int | None = None
        self.state: State | None = None
        self._reasoning, self._content = _Length(had.reasoning), _Length(had.content)
        self._live = had.arguments
        self._calls_left = len(had.calls) - (had.arguments is not None)

    def pass_by(self, place: int, state: State) -> None:
        """Notes a place where no call is open."""
        if self.client is None and self._has_all and self._live is None:
            self.client = place
        run = Run(place, len(self.calls))
        if state is self.state:
            self.runs[-1] = run
        else:
            self.runs.append(run)
        self.state = state

    def take(self, events: Iterable[Event], begun: int, place: int) -> None:
        """Notes what the next character has brought.

        Args:
            events: Of that.
            begun: Where the marker or the character begins that brought them.
            place: Behind it.
        """
        for event in events:
            match event:
                case Reasoning(more):
                    self._reasoning.add(more)
                case Content(more):
                    self._content.add(more)
                    if self._content.exceeded:
                        self.leak = min(self.leak, place - len(more))
                case Fault(violation) if violation.kind in _LEAKS:
                    self.leak = min(self.leak, violation.position)
                case CallStart(name=name):
                    self.calls.append(WrittenCall(name, place))
                    self.state = None
                case CallArguments(number, more):
                    self.calls[number].add(more, place if place == begun + 1 else begun)
                    self._follow(self.calls[number], place)
                case CallEnd(number):
                    self._calls_left -= 1
                    self.calls[number].ended = True

    @property
    def _has_all(self) -> bool:
        """True if the client has no more texts than these, and no more whole calls."""
        return self._reasoning.reached and self._content.reached and self._calls_left <= 0

    def _follow(self, call: WrittenCall, place: int) -> None:
        """Notes the place that has what the client has of a call that is not whole."""
        live = self._live
        if self.client is None and live is not None and self._has_all and call.length >= len(live):
            self._live = None
            if call.arguments.startswith(live):
                self.client = place


class _Length:
    """Compares the length of a text that is written with that of one that went out, but for the space around either."""

    def __init__(self, had: str) -> None:
        self._wanted = len(had.strip())
        self._written = self._visible = 0

    @property
    def reached(self) -> bool:
        return self._written >= self._wanted

    @property
    def exceeded(self) -> bool:
        """True if more is written than went out."""
        return self._visible > self._wanted

    def add(self, text: str) -> None:
        before = self._written
        self._written += len(text) if before else len(text.lstrip())
        if text and not text.isspace():
            self._visible = self._written - len(text) + len(text.rstrip())
