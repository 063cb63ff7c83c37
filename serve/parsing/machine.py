"""The machine under every grammar: walks a table of states token by token, however the text is cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar, TypeVar

from serve.parsing.events import Event
from serve.parsing.lexer import Lexer, Lexicon, Token
from serve.parsing.output import Output
from serve.parsing.tools import Tools


class State(Enum):
    REASONING = "inside <think>"
    CONTENT = "prose for the user"
    # kimi_k2
    SECTION = "section open, no call yet"
    HEADER = "id of a call"
    ARGUMENTS = "JSON of a call"
    BETWEEN = "after a call, section open"
    REMAINS = "rest of a call that lost its beginning"
    REMAINS_END = "after such a rest"
    # qwen3_coder and hermes
    OPENED = "after <tool_call>"
    FUNCTION = "after <function=name>, no parameter yet"
    VALUE = "value of a parameter"
    QUOTED = "behind a tag inside a JSON string of a value"
    CLOSING = "after a closing tag that may belong to the value"
    PARAMETERS = "between parameters"
    ENVELOPE = "JSON object of a call"
    AFTER = "after a call, block open"
    # deepseek_v3
    NAME = "name of a call, behind its kind and in front of its JSON"
    STOPPED = "after the token that ends a turn"
    # glm47 and hy_v3
    WRAPPER = "after <tool_calls>, no call yet"
    KEY = "name of a parameter"
    KEY_ENDED = "after the name of a parameter, no value yet"
    NEXT_KEY = "in a value, what may be the key of the next parameter"
    NEXT_KEY_ENDED = "after such a key"
    # minimax_m3
    ELEMENT = "inside a parameter that may hold elements"
    # kimi_k3
    TAG = "inside a tag"
    # harmony
    BARE = "text outside any message"
    FOREIGN = "message that is neither reasoning nor content nor a call to a tool"


_BEHIND_CALLS = (State.CONTENT, State.BETWEEN, State.AFTER)
_BETWEEN_CALLS = (State.REASONING, State.SECTION, State.WRAPPER, *_BEHIND_CALLS)
_LEAST_OF_A_MARKER = 2  # characters; a bracket alone is text
LONGEST_NAME = 1024  # characters of what models write by way of a header, a key or a name, and more

Action = Callable[[Any, str], State | None]
M = TypeVar("M", bound="Machine")


@dataclass(frozen=True, slots=True)
class Row:
    """The actions of a state on text, on each kind of marker, and at the end of the output.

    An action gets the machine and the raw text, and returns the next state, or None to stay. A marker without an
    action is text.

    Attributes:
        json: The state reads JSON. Inside its strings a marker is text, unless token ids show it to be real.
        prose: The state reads prose. A marker right after an opening backtick is text, unless token ids show it to be
            real, and so are those behind it up to the closing backtick.
        calls: The kinds of markers that are text in a fenced block of code, too, unless token ids show them to be real.
        exact: Once the output comes with token ids, a marker that holds a token of the vocabulary is text, unless they
            show it to be real; else the action decides.
    """

    text: Action
    on: Mapping[str, Action] = field(default_factory=dict)
    end: Action | None = None
    json: bool = False
    prose: bool = False
    calls: frozenset[str] = frozenset()
    exact: bool = False

    def but(self, **on: Action) -> Row:
        """Returns the row with other actions on some markers."""
        return replace(self, on={**self.on, **on})


class Machine:
    """One stream through one grammar; subclasses bring the lexicon, the table and its actions.

    Attributes:
        position: Characters before the token at hand.
        ended: True once the output is over; text that comes now was held back as the beginning of a marker.
        in_string: True inside a JSON string, in the states that read JSON.
        real: True if token ids show the marker at hand to be real.
        has_ids: True once token ids have shown some marker to be real: the output comes with them.
        reasoning_end: The place of the first thing after reasoning, once that has ended.
        reasoning_events: Number of events before that place in the step that brought it, if there may be more
            reasoning behind it.
        newlines_behind_reasoning: Number of newlines that the templates put between reasoning and content.
        newlines_before_calls: Number of newlines that the templates put between content and a call.
    """

    newlines_behind_reasoning: ClassVar[int] = 0
    newlines_before_calls: ClassVar[int] = 0
    lexicon: ClassVar[Lexicon]
    table: ClassVar[Mapping[State, Row]]
    token_ids: ClassVar[Mapping[int, str]]  # of the model family's own tokenizer
    reasoning_only: ClassVar[Mapping[State, Row]]

    def __init__(self, tools: Tools, thinking: bool, calls: bool, marker_ids: Mapping[int, str] | None) -> None:
        self.out = Output(tools, self.newlines_behind_reasoning, self.newlines_before_calls)
        self.tools = tools
        self.thinking = thinking
        self.position = 0
        self.ended = False
        self.in_string = False
        self.real = False
        self.has_ids = False
        self.reasoning_end: int | None = None
        self.reasoning_events: int | None = None
        self._rows = self.table if calls else self.reasoning_only
        self._ids = self.token_ids if marker_ids is None else marker_ids
        self._spellings = frozenset(self._ids.values())
        self._lexer = Lexer(self.lexicon)
        self._real: Counter[str] = Counter()  # tokens that ids announced and the text has not shown yet, by spelling
        self._ahead: Counter[str] = Counter()  # markers of this step from the one at hand on, by their token's spelling
        self.state = State.REASONING if thinking else State.CONTENT
        self._row = self._rows[self.state]

    def feed(self, text: str, token_ids: Sequence[int] = ()) -> list[Event]:
        if token_ids and not self._ids.keys().isdisjoint(token_ids):
            self._real.update(self._ids[token] for token in token_ids if token in self._ids)
        if not self._lexer.held and self.lexicon.is_plain(text):
            if text:
                self._text(text)
        else:
            self._feed_tokens(self._lexer.feed(text))
        return self._take_events()

    def finish(self) -> list[Event]:
        """Ends the output and settles what was held back."""
        self.settle()
        self.ended = True
        for kind, raw in self._lexer.finish():
            if kind:
                self._marker(kind, raw)
            elif self._is_cut_end(raw):
                self.out.violation("stray_marker", self.position, raw)
                self.position += len(raw)
            else:
                self._text(raw)
        while self._row.end is not None:
            before = self.state
            self._go(self._row.end(self, ""))
            if self.state is before:
                break
        if self.out.fenced and self.out.shown:  # a call may have been meant
            self.out.violation("unfinished_call", *self.out.shown)
        self.out.finish(self.state is State.REASONING)
        return self._take_events()

    def settle(self) -> None:
        """Decides about whole tokens that are held back, where the output ends or a token shows what they are."""

    def reasoning_ends(self, place: int) -> None:
        """Notes where reasoning ended; what reasons again behind that is no part of the first."""
        if self.reasoning_end is None:
            self.reasoning_end = place
            self.reasoning_events = len(self.out.events)

    def is_endless(self, begin: int, raw: str) -> bool:
        """Returns whether what began at a place and goes on with `raw` is too long for a header, a key or a name."""
        return self.position + len(raw) - begin > LONGEST_NAME

    @property
    def held(self) -> str:
        """The end of the output so far that may be the beginning of a marker."""
        return self._lexer.held

    @property
    def resumable(self) -> bool:
        """True where no call is open and nothing is held back: an output that was cut here can be gone on with."""
        return self.state in _BETWEEN_CALLS and not self._lexer.held

    def dispatch(self, raw: str, state: State) -> State:
        """Hands a token to another state; returns the state that follows."""
        self._go(state)
        kind = self.lexicon.kind(raw)
        row = self._row
        return row.on.get(kind, row.text)(self, raw) or self.state

    def take(self, raw: str) -> None:
        """Hands a token to the state at hand, as if it came now; its token ids have been seen to."""
        kind = self.lexicon.kind(raw)
        action = self._action(kind, raw) if kind else None
        self._go((action or self._row.text)(self, raw))

    def take_again(self, tokens: Sequence[str], place: int, state: State) -> None:
        """Reads tokens from a place on once more, in another state; ids show none of them to be real."""
        here, self.position = self.position, place
        real, self.real = self.real, False
        self._go(state)
        for raw in tokens:
            self.take(raw)
            self.position += len(raw)
        self.position, self.real = here, real

    def token_of(self, raw: str) -> str:
        """Returns the part of a marker that is one token of the family's tokenizer: all of it, in most formats."""
        return raw

    def announced(self, raw: str) -> bool:
        """Returns whether token ids show this marker to be a token of its own and not letters.

        If one step brings a spelling more often than its token, the last ones are the tokens.
        """
        token = self.token_of(raw)
        real = self._real.get(token, 0)
        return real > 0 and real >= self._ahead[token]

    def _is_cut_end(self, rest: str) -> bool:
        """Returns whether the end of the output is half a closing marker, right behind a call."""
        if self.state not in _BEHIND_CALLS or not self.out.at_call or len(rest) < _LEAST_OF_A_MARKER:
            return False
        return any(
            kind.startswith("end_") for spelling, kind in self.lexicon.kinds.items() if spelling.startswith(rest)
        )

    def _feed_tokens(self, tokens: Sequence[Token]) -> None:
        if self._real:
            self._ahead = Counter(self.token_of(token.raw) for token in tokens if token.kind)
            if self._lexer.held:  # its token may be here, and the rest of the marker is not
                self._ahead[self.token_of(self._lexer.held)] += 1
        for kind, raw in tokens:
            if kind:
                self._marker(kind, raw)
            else:
                self._text(raw)

    def _text(self, text: str) -> None:
        self._go(self._row.text(self, text))
        self.position += len(text)

    def _marker(self, kind: str, raw: str) -> None:
        token = self.token_of(raw)
        self.real = bool(self._real) and self.announced(raw)
        if self.real:
            self.has_ids = True
        action = self._action(kind, raw)
        if self._real and self._real[token] > 0 and (action is not None or self.real):
            self._real[token] -= 1
        self._go((action or self._row.text)(self, raw))
        if self._real:
            self._ahead[token] -= 1
        self.position += len(raw)

    def _action(self, kind: str, raw: str) -> Action | None:
        """Returns what the state at hand does with a marker; None if it is text there."""
        row = self._row
        action = row.on.get(kind)
        if action is None or self.real:
            return action
        if row.prose and self.out.quoting:
            self.out.quote()
            return None
        if kind in row.calls and self.out.fenced:
            self.out.shown = self.out.shown or (self.position, raw)
            return None
        is_letters = (row.json and self.in_string) or (
            row.exact and self.has_ids and self.token_of(raw) in self._spellings
        )
        return None if is_letters else action

    def _go(self, state: State | None) -> None:
        if state is not None and state is not self.state:
            self.state = state
            self._row = self._rows[state]

    def _take_events(self) -> list[Event]:
        events = self.out.events
        self.out.events = []
        return events
