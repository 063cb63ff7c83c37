"""Calls whose arguments have tags of their own, and above all where the value of one ends.

Those formats are Qwen3-Coder's (with Step, MiMo and Nemotron), GLM's (with Hy3), MiniMax-M2's and DSML. A value may
quote the very tags that end it, since agents edit parsers and write about formats. What a tag in a value is, is decided
by the first of these that says something:

1. Token ids, where the tag is a token: a real one is markup, letters are text (`exact`).
2. JSON. Where the schema allows an object or a list, and the value begins as one, a tag inside a string is a letter. It
   is held back, with all behind it, up to the next tag outside of strings: if the value is JSON up to there, the tags
   in it were letters. If it is none, all that was held back is read once more by the rules below, so that a string
   which is never closed swallows nothing.
3. What follows. A closing tag ends the value if the next token is one of its `followers`, and the value has not opened
   a tag that it would close. An opening tag of another parameter of the tool ends it, too: a closing tag is missing.

What this cannot know: whether a string, or a value without a schema, quotes a whole end of a call. In text,
`</parameter></function>` ends the value, wherever the model meant to. `ambiguous_value` reports what can be seen of a
wrong guess: a closing tag that stayed in the value without its opening tag, an opening tag that was never closed, half
a tag at the end, JSON that was none with tags in its strings. A quotation that is complete by itself at the place where
it was cut shows nothing of that, and only the schema of the arguments or text behind the call tell.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Set
from typing import ClassVar

from serve.parsing.events import ViolationKind
from serve.parsing.hermes import Hermes
from serve.parsing.json_scanner import JsonScanner
from serve.parsing.machine import Action, Row, State
from serve.parsing.strict_json import loads, with_escapes
from serve.parsing.tool_call_block import Block
from serve.parsing.values import UntypedValue, Value

END = ""  # the end of the output, as the kind of what follows a tag
_TAG_AT_END = re.compile(r"</?[a-z][^<>\n]*>?\Z|[>/]\Z", re.IGNORECASE)
_LONGEST_TAG = 64
_MISREADINGS = 8  # in one output; each may cost another reading of all that follows


class XmlValue(Block):
    """Actions in a value. A grammar's lexicon calls the tags of an argument `parameter` and `end_parameter`, those of
    the call `function` and `end_function`, and those around calls `block` and `end_block`.

    Attributes:
        emit: Takes JSON text of the arguments.
        followers: By the kind of a closing tag, the kinds of tokens in front of which it may close a value.
        outer: The kind of the tag that closes the call itself: in front of it a value closes whatever it has opened.
        openings: By the kind of a closing tag, that of the opening tag which makes it a quotation.
    """

    followers: ClassVar[Mapping[str, Set[str]]] = {
        "end_parameter": {"parameter", "end_function", "end_block", END},
        "drifted": {"parameter", "end_function"},
        "end_function": {"end_block", "block", "function", END},
        "end_block": {"block", END},
    }
    outer: ClassVar[str] = "end_function"
    openings: ClassVar[Mapping[str, str]] = {
        "end_parameter": "parameter",
        "end_function": "function",
        "end_block": "block",
    }

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.emit: Callable[[str], None] = self.out.arguments
        self._wrapped = True  # a block is open around the call
        self._value = Value(None, {})
        self._value_at = 0  # its first piece among `raw`
        self._value_begin = 0
        self._quoted: Counter[str] = Counter()  # opening tags in the value that wait for their closing tags, by kind
        self._odd = False  # the value may have ended too early or too late
        self._candidate = ""  # kind of the closing tag that is held back
        self._held: list[str] = []  # that tag and the blanks behind it, or a tag in a string of JSON and all behind it
        self._held_at = 0
        self._may_be_json = False  # nothing says so far that the value is no JSON
        self._strings: JsonScanner | None = None  # in the value; None while nothing but blanks has been looked at
        self._followed = 0  # number of pieces in `raw` that it has read
        self._misreadings = 0  # values that had begun as JSON and were none

    def begin_text(self, value: Value, begin: int) -> None:
        """Begins to read the text of a value at a place of the output."""
        self._value = value
        self._value_at = len(self.raw)
        self._value_begin = begin
        self._quoted = Counter()
        self._odd = False
        self._may_be_json = bool(value.json_signs) and self._misreadings < _MISREADINGS
        self._strings = None
        self._followed = self._value_at
        self.in_string = False

    def value(self, raw: str) -> State | None:
        """Takes text of the value, or a tag inside a string of JSON."""
        if self.in_string and self._strings and self.lexicon.kind(raw):
            self._held, self._held_at = [raw], self.position
            self.in_string = self._strings.feed_strings(raw)
            return State.QUOTED
        self.raw.append(raw)
        text = self._value.feed(raw)
        if text:
            self.emit(text)
        return None

    # Strings of JSON

    def _action(self, kind: str, raw: str) -> Action | None:
        if self._may_be_json and self.state is State.VALUE:
            self._follow_strings()
        return super()._action(kind, raw)

    def _follow_strings(self) -> None:
        """Sees whether the value so far ends in a string of JSON; only tags need to know."""
        text = "".join(self.raw[self._followed :])
        self._followed = len(self.raw)
        if self._strings is None:
            text = text.lstrip()
            if not text:
                return
            self._may_be_json = text[0] in self._value.json_signs
            if not self._may_be_json:
                return
            self._strings = JsonScanner()
        self.in_string = self._strings.feed_strings(text)

    def read_quoted(self, raw: str) -> State:
        """Takes what stands behind a tag in a string of JSON. A line break in a string shows that it is none."""
        assert self._strings is not None  # which has shown the string
        self._held.append(raw)
        is_broken = self.in_string and "\n" in raw.partition('"')[0]
        self.in_string = self._strings.feed_strings(raw)
        if is_broken:
            self._decide()
        return self.state

    def settle_quoted(self, raw: str) -> State:
        """Takes a tag outside of strings, or a real one, which shows what those in strings were."""
        self._decide()
        self.take(raw)
        return self.state

    def end_quoted(self, raw: str) -> State:
        self.settle()
        return self.state

    def settle(self) -> None:
        while self.state is State.QUOTED:
            self._decide()

    def _decide(self) -> None:
        """Takes the tags in strings as letters if the value is JSON up to here; else reads them as tags after all."""
        held, self._held = self._held, []
        if not self.in_string and _is_json("".join([*self.raw[self._value_at :], *held])):
            self._go(State.VALUE)
            self._add("".join(held))
            self._followed = len(self.raw)
            return
        self._misreadings += 1
        self._odd |= not (self.has_ids and self._row.exact)  # ids leave no doubt
        self.in_string = self._may_be_json = False
        self.take_again(held, self._held_at, State.VALUE)

    def cut_value(self, raw: str) -> State:
        """Ends the output inside the value."""
        text = self._value.cut()
        if text:
            self.emit(text)
        return self.cut_call(raw)

    def cut_call(self, raw: str) -> State:
        """Ends the output inside the call."""
        raise NotImplementedError

    # Tags in it

    def tag_in_value(self, raw: str) -> State | None:
        """Takes an opening tag as letters of the value."""
        self._quoted[self.lexicon.kind(raw)] += 1
        self.keep(raw)
        return None

    def keep(self, raw: str) -> None:
        """Takes a tag outside of strings of JSON as letters of the value, which is no JSON then."""
        self.in_string = self._may_be_json = False
        self._add(raw)

    def _add(self, raw: str) -> None:
        self.raw.append(raw)
        text = self._value.feed(raw)
        if text:
            self.emit(text)

    def maybe_close(self, raw: str) -> State | None:
        """Holds a closing tag back until the next token shows whether it closes the value."""
        return self.hold(self.lexicon.kind(raw), raw)

    def hold(self, kind: str, raw: str) -> State:
        """Holds a tag back that counts as a closing tag of a kind. If a row is exact, a real one needs no more."""
        self._candidate = kind
        self._held = [raw]
        self._held_at = self.position
        return self.close_value() if self.real and self._row.exact else State.CLOSING

    def after_maybe(self, raw: str) -> State | None:
        """Decides by the token after a closing tag whether it closed the value."""
        rest = raw.lstrip()
        gap = len(raw) - len(rest)
        if gap:
            self._held.append(raw[:gap])
        if not rest:
            return None
        kind = self.lexicon.kind(rest)
        if self._closes(self.follower(kind, rest)):
            space = "".join(self._held[1:])
            state = self.close_value()
            if space and not kind:
                self._write(space)
        else:
            self._keep()
            state = State.VALUE
        self.position += gap
        state = self.dispatch(rest, state)
        self.position -= gap
        return state

    def cut_maybe(self, raw: str) -> State:
        """Decides by the end of the output."""
        if self._closes(END):
            return self.close_value()
        self._keep()
        return State.VALUE

    def follower(self, kind: str, raw: str) -> str:
        """Returns what the token after a closing tag counts as, given its kind."""
        return kind or "text"

    def _closes(self, follower: str) -> bool:
        """Returns whether the tag held back closes the value in front of a token of a kind."""
        tag, quoted = self._candidate, self._quoted
        if tag == "end_function" and not self._wrapped and not quoted["function"]:
            return True
        if follower not in self.followers[tag]:
            return False
        if tag == "end_function":
            return not quoted["function"]
        if tag == "end_block":
            return not quoted["block"] and not quoted["function"]
        if follower == self.outer and not quoted[self.openings[self.outer]]:
            return True
        return not quoted["parameter"]

    def _keep(self) -> None:
        """Takes the tag held back as letters of the value."""
        opening = self.openings.get(self._candidate, "")
        if opening and self._quoted[opening]:
            self._quoted[opening] -= 1
        elif opening:
            self._odd = True
        self.keep("".join(self._held))

    def close_value(self) -> State:
        """Takes the tag held back as real: ends the value, and the call if that is what the tag ends."""
        raise NotImplementedError

    # Values whose end is in doubt

    def has_opened(self, *kinds: str) -> bool:
        """Returns whether the value has opened a tag of these kinds, of any if none is named, and not closed it."""
        return any(self._quoted[kind] for kind in kinds or self._quoted)

    def note_odd_end(self, key: str, closed: bool) -> None:
        """Marks a value whose end may be damaged.

        It ends in `</key>` without having opened it: the model mixed up two ways to close it. Or it opens a tag of its
        own kind and never closes it. Or it is not `closed` by a tag of its own, but ends in what looks like one.
        """
        if self._quoted["parameter"]:
            self._odd = True
        pieces = self.raw[self._value_at :]
        while pieces and not pieces[-1].strip():
            pieces.pop()
        if pieces and (not closed or pieces[-1].rstrip().endswith(">")):  # few values, so that few are put together
            text = "".join(pieces).rstrip()
            if text.endswith(f"</{key}>") and f"<{key}" not in text:
                self._odd = True
            if not closed and _TAG_AT_END.search(text, max(0, len(text) - _LONGEST_TAG)):
                self._odd = True

    def report_doubt(self) -> None:
        """Reports a value whose end is in doubt."""
        if self._odd:
            self.report("ambiguous_value", self._value_begin, "".join(self.raw[self._value_at :]))


class TaggedArguments(XmlValue):
    """A call whose arguments have tags of their own."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._name = ""
        self._given: set[str] = set()
        self._scanner = JsonScanner()
        self._blanks: list[str] = []  # at the end of an object of all arguments

    def start_by_tags(self) -> None:
        """Begins a call whose name is known."""
        self.enter_call()
        self._given = set()
        self.out.by_tags = True
        self.out.start_call(f"call_{self.out.calls}", self._name)

    def no_parameter(self, raw: str) -> State | None:
        """Takes text, or a marker, where the first parameter is due."""
        raw = self.keep_space(raw)
        return self.back_to_prose(raw, self.fault()) if raw else None

    def object_or_prose(self, raw: str) -> State | None:
        """Takes text where the first parameter is due: one JSON object of all arguments, or nothing like a call."""
        raw = self.keep_space(raw)
        if not raw.startswith("{"):
            return self.no_parameter(raw)
        self.start_by_tags()
        self._scanner = JsonScanner()
        self._blanks = []
        self.read_object(raw)
        return State.ARGUMENTS

    def read_object(self, raw: str) -> None:
        """Reads on in an object of all arguments. Blanks at its end are none of them."""
        self.out.by_tags = False
        self.raw.append(raw)
        self.in_string = self._scanner.feed_strings(raw)
        body = raw.rstrip()
        self._blanks.append(body)
        if body:
            self.out.arguments("".join(self._blanks))
            self._blanks = []
        self._blanks.append(raw[len(body) :])

    def cut_function(self, raw: str) -> State:
        self.enter_call()
        return self.release("unfinished_call")

    def cut_call(self, raw: str) -> State:
        """Ends the output inside the call; its arguments stay open, so that nobody takes them for complete."""
        if not self._given:
            self.out.arguments("{")
        self.finish_call("unfinished_call")
        return State.CONTENT


class XmlParameters(TaggedArguments, Hermes):
    """Actions on a call in the block, in formats that fall back on Hermes' objects now and then.

    Attributes:
        verbatim: A value is all that stands between its tags; else one newline on each side is markup.
        implied: The markers, by kind, that also end the value that they stand in, and where they lead.
    """

    verbatim: ClassVar[bool] = False
    implied: ClassVar[Mapping[str, State]] = {"end_function": State.AFTER, "end_block": State.CONTENT}

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._flaw: ViolationKind | None = None
        self._value: UntypedValue = UntypedValue(None, {})
        self._key = ""

    # Around the parameters

    def start_by_tags(self) -> None:
        self._flaw = None
        super().start_by_tags()

    def end_object(self, raw: str) -> State:
        """Takes the end of a call whose arguments are one object."""
        self.raw.append(raw)
        self._end_object(self._flaw)
        return self.implied[self.lexicon.kind(raw)]

    def end_object_at_next(self, raw: str) -> State:
        """Takes the next call, or the end of all, where the end of such a call is missing."""
        self._end_object("unfinished_call")
        return self.dispatch(raw, State.CONTENT)

    def cut_arguments(self, raw: str) -> State:
        """Ends the output in such an object, or right behind it."""
        self._end_object("unfinished_call")
        return State.CONTENT

    def _end_object(self, fault: ViolationKind | None) -> None:
        self.in_string = False
        self.finish_call(fault)

    def space_between(self, raw: str) -> None:
        self.raw.append(raw)

    def end_by_tags(self, state: State) -> State:
        """Ends the call and reports its flaw, if it has one; returns `state`."""
        self.out.arguments("}" if self._given else "{}")
        self.finish_call(self._flaw)
        return state

    # A value

    def begin_value(self, key: str, raw: str) -> State:
        """Begins the value of a parameter at the marker `raw`."""
        self.raw.append(raw)
        return self.begin_value_behind(key, raw, self.position, self.position + len(raw))

    def begin_value_behind(self, key: str, tag: str, place: int, begin: int) -> State:
        """Begins the value of a parameter. `tag` is the last marker in front of it, which stands at `place`."""
        if key in self._given:
            self.report("duplicate_argument", place, tag)
        if self.tools.properties(self._name) is None and not self.tools.may_have(self._name, key):
            self.report("unknown_argument", place, tag)
        opening = ", " if self._given else "{"
        self._given.add(key)
        self._value = UntypedValue(self.tools.parameter(self._name, key), self.tools.schema(self._name), self.verbatim)
        self._key = key
        self.begin_text(self._value, begin)
        self.out.arguments(f"{opening}{json.dumps(key, ensure_ascii=False)}: ")
        return State.VALUE

    def may_follow(self, key: str) -> bool:
        """Returns whether a parameter of this name may come next."""
        properties = self.tools.properties(self._name)
        return key not in self._given and (
            self.tools.may_have(self._name, key) if properties is None else key in properties
        )

    def close_value(self) -> State:
        """Takes the tag held back as real."""
        end = self.implied.get(self._candidate)
        closed = end is None
        self.note_odd_end(self._key, closed)
        self.raw += self._held
        if self._candidate == "drifted":
            self.report("drifted_marker", self._held_at, self._held[0])
        self._finish_value(closed)
        return State.PARAMETERS if end is None else self.end_by_tags(end)

    def end_unclosed_value(self) -> None:
        """Ends a value where the next parameter shows that its closing tag is missing."""
        self.note_odd_end(self._key, False)
        self._finish_value(False)

    def _finish_value(self, closed: bool) -> None:
        self.out.arguments(self._value.finish(closed=closed))
        self.report_doubt()


def value_rows(on: Mapping[str, Action], *, exact: bool = False) -> dict[State, Row]:
    """Returns the rows of a value in a grammar that does `on` with the tags in it.

    Behind a closing tag every token is looked at, markers too, so that its row names none.
    """
    settle = dict.fromkeys(on, XmlValue.settle_quoted)
    return {
        State.VALUE: Row(text=XmlValue.value, on=on, end=XmlValue.cut_value, json=True, exact=exact),
        State.QUOTED: Row(text=XmlValue.read_quoted, on=settle, end=XmlValue.end_quoted, json=True, exact=exact),
        State.CLOSING: Row(text=XmlValue.after_maybe, end=XmlValue.cut_maybe),
    }


def _is_json(text: str) -> bool:
    try:
        loads(with_escapes(text))
    except ValueError:
        return False
    return True
