"""Tells a marker in a text that begins a call from markup where none belongs, and from a word that is mentioned.

The text behind a marker decides, and what stands before it in its line; the request has no say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Mapping
from enum import Enum
from typing import NamedTuple

from serve.guard.core.markup import (
    ARGUMENTS_BEGIN,
    BEGINS_OF_PROMPTS,
    CALL_BEGIN,
    CALL_END,
    COMMON,
    COMMON_OPENERS,
    ENDS_OF_THOUGHTS,
    MARKUP,
    RARE_OPENERS,
    RARE_PARTS,
    RUN,
    SECTION_BEGINS,
    SECTION_ENDS,
    canonical,
    is_reserved,
    unfinished,
)

AHEAD = 320  # characters that decide, at most: a marker, a name


_ENDS_OF_TEXT = frozenset(".!?:;,)。！？：；，")
_MOST_OF_A_RUN = AHEAD - 48  # a marker that is cut there is no end of the run


class MarkerShape(Enum):
    """The part that a marker plays in a text."""

    MENTION = "a word of the text"
    OPEN = "not decided by what has come"
    CALL = "the beginning of a call"
    STRAY = "markup where none belongs"


class MarkerPlace(NamedTuple):
    """A marker in a text.

    Attributes:
        text: All that has come.
        start: Where the marker begins there.
        end: Where it ends.
        line: What stands before it in its line.
        ended: Whether nothing more will come.
        tools: Names of the tools that may be called.
    """

    text: str
    start: int
    end: int
    line: str
    ended: bool
    tools: Collection[str]

    @property
    def marker(self) -> str:
        return self.text[self.start : self.end]

    @property
    def rest(self) -> str:
        return self.text[self.end : self.end + AHEAD]

    @property
    def settled(self) -> bool:
        """True if more text changes nothing."""
        return self.ended or len(self.text) - self.end >= AHEAD

    @property
    def begins_line(self) -> bool:
        return not self.line or self.line.isspace()

    @property
    def is_fit(self) -> bool:
        """True where models write markup: at the beginning of a line, or right behind a word, a sentence or a marker.

        Who writes about a marker puts a space, a bracket or a sign before it.
        """
        if self.begins_line or self.line[-1].isalnum() or self.line[-1] in _ENDS_OF_TEXT:
            return True
        return self.line.endswith("|>")

    def shape_of_prefix(self, text: str, *whole: str) -> MarkerShape | None:
        """Returns `OPEN` if more text could make `text` begin with one of `whole`, and matters."""
        could = not self.settled and any(each.startswith(text) for each in whole)
        return MarkerShape.OPEN if could else None


def shape_of(place: MarkerPlace) -> MarkerShape:
    """Returns what a marker is, outside of any quotation. Once it is not `OPEN`, more text does not change it."""
    run = RUN.match(place.text, place.end, place.end + AHEAD).end()  # type: ignore[union-attr]
    marker = canonical(place.marker)
    decide = _SHAPES.get(marker)
    behind = place.text[run : run + AHEAD]
    if run - place.end >= _MOST_OF_A_RUN or len(behind) == unfinished(behind):
        # Nothing but markup and space behind it.
        alone = MarkerShape.MENTION if marker in COMMON else MarkerShape.STRAY
        return alone if place.settled else MarkerShape.OPEN
    if is_reserved(place.marker):
        return MarkerShape.STRAY if place.rest[:1].isalnum() or place.line[-1:].isalnum() else MarkerShape.MENTION
    shape = decide(place) if decide else MarkerShape.MENTION
    if shape is MarkerShape.STRAY and marker in _NEEDS_A_PLACE and not place.is_fit:
        return MarkerShape.MENTION
    return shape


# Kimi

_HEADER = re.compile(r"\s*([^\s<]*)")
_HEADLESS = re.compile(r"(?:functions\.\S+|[\w.\-]+:\d+)\s*\Z")
_ID = re.compile(r"functions\..|.*:\d+\Z")
_WORDS = re.compile(r"[\w\s]{1,80}")  # between a section's begin and a call: a model that talks where it should not


def _section(place: MarkerPlace) -> MarkerShape:
    rest = place.rest.lstrip()
    if rest.startswith(CALL_BEGIN):
        start = place.text.index(CALL_BEGIN, place.end)
        shape = _kimi_call(place._replace(start=start, end=start + len(CALL_BEGIN)))
        return MarkerShape.STRAY if shape is MarkerShape.MENTION and place.rest[:1] == "<" else shape
    if rest.startswith(SECTION_ENDS):
        return MarkerShape.STRAY
    if (bare := _bare_kimi_call(place)) is not None:
        return bare
    if (words := _WORDS.match(place.rest)) is not None:
        start = place.end + words.end()
        if place.text.startswith(CALL_BEGIN, start):
            shape = _kimi_call(place._replace(start=start, end=start + len(CALL_BEGIN)))
            if shape is not MarkerShape.MENTION:
                return shape
        elif still_open := place.shape_of_prefix(place.rest[words.end() :], CALL_BEGIN):
            return still_open
    glued = MarkerShape.STRAY if place.rest[:1].isalnum() else MarkerShape.MENTION
    return place.shape_of_prefix(rest, CALL_BEGIN, *SECTION_ENDS) or (MarkerShape.STRAY if not rest else glued)


def _bare_kimi_call(place: MarkerPlace) -> MarkerShape | None:
    """Returns what a section is that begins with the id of a call, whose own marker is missing; None for another."""
    header = _HEADER.match(place.rest)
    if header is None or not header[1]:
        return None
    behind = place.rest[header.end() :].lstrip()
    if not behind and not place.settled:
        return MarkerShape.OPEN
    if not _ID.match(header[1]):
        return None
    if behind.startswith(ARGUMENTS_BEGIN):
        return MarkerShape.CALL
    return place.shape_of_prefix(behind, ARGUMENTS_BEGIN)


def _kimi_call(place: MarkerPlace) -> MarkerShape:
    rest = place.rest
    header = _HEADER.match(rest)
    if header is None:
        return MarkerShape.MENTION
    name, behind = header[1], rest[header.end() :].lstrip()
    if not behind and not place.settled:
        return MarkerShape.OPEN
    if not name:
        return place.shape_of_prefix(behind, ARGUMENTS_BEGIN) or (
            MarkerShape.CALL if behind.startswith(ARGUMENTS_BEGIN) else MarkerShape.MENTION
        )
    if behind.startswith(ARGUMENTS_BEGIN):
        return MarkerShape.CALL
    if still_open := place.shape_of_prefix(behind, ARGUMENTS_BEGIN, CALL_END):
        return still_open
    if _ID.match(name) or behind.startswith(CALL_END):
        return MarkerShape.CALL
    return MarkerShape.STRAY if rest[:1].isalnum() else MarkerShape.MENTION


def _kimi_arguments(place: MarkerPlace) -> MarkerShape:
    if not _HEADLESS.search(place.line[-256:]):
        return MarkerShape.MENTION
    rest = place.rest.lstrip()
    if not rest and not place.settled:
        return MarkerShape.OPEN
    return MarkerShape.STRAY if rest.startswith("{") else MarkerShape.MENTION


# Qwen and Hermes

_TAG = re.compile(r"<?<function(?:=|\s+name\s*=)([^<>\n]*)>")
_OPEN_TAG = re.compile(r"<?<function(?:=|\s+name\s*=)?[^<>\n]*\Z")
_WORD = re.compile(r"[\w.:/\-]+")
_OBJECT = re.compile(r'\{\s*"(?:name|function|arguments|parameters|tool)"\s*:')
_OBJECT_OF_NAME = re.compile(r'\{\s*"name"\s*:\s*"([^"\n]*)"')
_OPEN_OBJECT = re.compile(r'\{\s*(?:"[a-z]*(?:"\s*(?::\s*(?:"[^"\n]*)?)?)?)?\Z')
# An object that was to have the keys of a call, however damaged: `{"name="read_file"`.
_DAMAGED_OBJECT = re.compile(r'\{+\s*"?(?:name|function|tool)\b["\s:={]*([^"\n,}]*)')
_OPEN_DAMAGED = re.compile(r'\{+\s*"?[a-z]{0,8}\Z')
_WRAPPER = re.compile(r"(?:```\w*|<tools>)\s*")
_ARGUMENT_TAGS = ("<parameter", "</function>", "{", "</tool_call>")
# GLM writes the bare name, and Granite a list of objects. The opener of the first key may be another, or missing, and
# an object, or `key="value"`, may stand in the place of all keys.
_BARE_CALL = re.compile(
    r"([\w.:/\-]{1,128})\s*"
    r"(</?arg_key>|</?arg_value>|<tool_sep|</tool_call>|\{|(?<=\s)[\w\-]{1,64}=[\"']|<tool_call>(?=[\w.\-]{1,64}</arg_key>))"
)
_OPEN_BARE_CALL = re.compile(
    r"[\w.:/\-]{1,128}\s*(?:<[\w/]{0,10}|(?<=\s)[\w\-]{1,64}=?|<tool_call>[\w.\-]{0,64}(?:</?\w{0,7})?)?\Z"
)


def _block(place: MarkerPlace) -> MarkerShape:
    rest = place.rest.lstrip()
    if still_open := place.shape_of_prefix(rest, "```", "<tools>"):
        return still_open
    if wrapper := _WRAPPER.match(rest):  # some models fence the object
        rest = rest[wrapper.end() :]
        if not rest and not place.settled:
            return MarkerShape.OPEN
    if (shape := _object(place, rest[1:].lstrip() if rest[:1] == "[" else rest)) is not None:
        return shape
    if (shape := _bare_call(place, rest)) is not None:
        return shape
    if (tag := _TAG.match(rest)) is not None:
        return MarkerShape.CALL if _names(tag[1], place.tools) else MarkerShape.STRAY
    if rest.startswith(("<function=", "<<function=", "<function ")):
        return _open(place, rest)
    return _odd_block(place, rest)


def _odd_block(place: MarkerPlace, rest: str) -> MarkerShape:
    """Returns what a tag is that begins no call."""
    if still_open := place.shape_of_prefix(rest, "<function=", "<<function=", "<<tool_code>", "<parameter="):
        return still_open
    if rest.startswith(("<<", "<parameter=")):
        return MarkerShape.STRAY
    alone = place.begins_line and "\n" in place.rest[: len(place.rest) - len(rest)]
    return MarkerShape.STRAY if alone or not rest else MarkerShape.MENTION


def _bare_call(place: MarkerPlace, rest: str) -> MarkerShape | None:
    """Returns what a tag is with a bare name right behind it; None if there is none."""
    if place.rest.startswith(" "):
        return None
    if (bare := _BARE_CALL.match(rest)) is None:
        return MarkerShape.OPEN if not place.settled and _OPEN_BARE_CALL.match(rest) else None
    if _names(bare[1], place.tools) or (bare[2] == "</arg_key>" and any(map(bare[1].startswith, place.tools))):
        return MarkerShape.CALL
    return MarkerShape.MENTION if bare[2] == "</tool_call>" or not place.is_fit else MarkerShape.STRAY


def _object(place: MarkerPlace, rest: str) -> MarkerShape | None:
    """Returns what a tag is with a JSON object behind it; None if there is none with the keys of a call."""
    if (named := _OBJECT_OF_NAME.match(rest)) is not None:
        return MarkerShape.CALL if _names(named[1], place.tools) else MarkerShape.STRAY
    if _OPEN_OBJECT.match(rest):
        return MarkerShape.CALL if place.settled else MarkerShape.OPEN
    if _OBJECT.match(rest):
        return MarkerShape.CALL
    damaged = _DAMAGED_OBJECT.match(rest)
    if not place.settled and (_OPEN_DAMAGED.match(rest) if damaged is None else damaged.end() == len(rest)):
        return MarkerShape.OPEN
    return MarkerShape.CALL if damaged is not None and _names(damaged[1], place.tools) else None


_TOKEN = re.compile(r'\s*(?:"([^"\\\n]*)"|([{\[:,]))')
_OPEN_TOKEN = re.compile(r'\s*(?:"([^"\\\n]*))?\Z')
_KEYS_OF_A_WRAPPER = ("tool_calls", "tool_call", "function_call", "function")
_KINDS = ("function", "function_call", "tool_call", "tool_use")
_KEYS_OF_A_NAME = ("name", "tool_name", "tool", "function")
_KEYS_OF_ARGUMENTS = ("arguments", "parameters", "input", "args")
_MOST_BRACKETS = 8  # before the arguments, twice as many as in a message of OpenAI's
_ANY = ("",)  # word
_FIRST_KEYS: tuple[str, ...] = ("type", "id", "call_id", *_KEYS_OF_A_WRAPPER, *_KEYS_OF_A_NAME)


def shape_of_object(text: str, tools: Container[str], *, ended: bool) -> MarkerShape:
    """Returns what a JSON object or list at the beginning of a line is: stray, if it is a call without its markup.

    A call is written as its format has it, as OpenAI's or Anthropic's APIs have it, or in a list of such. The text
    begins with the bracket.
    """
    name, words, rest = _head_of_a_call(text)
    if not words:
        return MarkerShape.STRAY if name in tools else MarkerShape.MENTION
    half = _OPEN_TOKEN.match(rest)
    could = half is not None and (words is _ANY or half[1] is None or any(each.startswith(half[1]) for each in words))
    return MarkerShape.OPEN if could and not ended and len(text) < AHEAD else MarkerShape.MENTION


def _head_of_a_call(text: str) -> tuple[str, tuple[str, ...], str]:
    """Reads the members before a call's arguments.

    Returns:
        The call's name, if there is one so far; the words that may come next, none if the arguments have begun or this
            is no call; and the text behind what was read.
    """
    place, brackets, name, key, keys = 0, 0, "", "", _FIRST_KEYS
    while (token := _TOKEN.match(text, place)) is not None:
        word, sign = token.groups()
        if sign == ":":
            if name and key in _KEYS_OF_ARGUMENTS:
                return name, (), ""
        elif sign == ",":
            key, keys = "", _KEYS_OF_ARGUMENTS if name else _FIRST_KEYS
        elif sign is not None:
            brackets += 1
            if brackets > _MOST_BRACKETS or (key and key not in _KEYS_OF_A_WRAPPER):
                break
            key, keys = "", _FIRST_KEYS
        elif word not in (_KINDS if key == "type" else (word,) if key else keys):
            break
        elif not key:
            key = word
        elif key in _KEYS_OF_A_NAME:
            name = word
        place = token.end()
    else:
        return name, _ANY if key else keys, text[place:]
    return "", (), ""


def _function(place: MarkerPlace) -> MarkerShape:
    rest = place.text[place.start : place.start + AHEAD]
    tag = _TAG.match(rest)
    if tag is None:
        return _open(place, rest)
    behind = rest[tag.end() :].lstrip()
    if still_open := place.shape_of_prefix(behind, *_ARGUMENT_TAGS):
        return still_open
    if behind and not behind.startswith(_ARGUMENT_TAGS):
        return MarkerShape.MENTION
    return MarkerShape.CALL if _names(tag[1], place.tools) else MarkerShape.STRAY


def _open(place: MarkerPlace, rest: str) -> MarkerShape:
    """Returns what a tag is that has no end so far."""
    if not _OPEN_TAG.match(rest):
        return MarkerShape.MENTION
    return MarkerShape.CALL if place.settled else MarkerShape.OPEN


def _parameter(place: MarkerPlace) -> MarkerShape:
    if not place.begins_line:
        return MarkerShape.MENTION
    name, bracket, behind = place.rest.partition(">")
    if "\n" in name or "<" in name:
        return MarkerShape.MENTION
    if not (bracket and behind):
        return MarkerShape.MENTION if place.settled else MarkerShape.OPEN
    return MarkerShape.STRAY if behind.startswith("\n") else MarkerShape.MENTION


def _names(text: str, tools: Container[str]) -> bool:
    """Returns whether a tag or an id holds the name of a tool that may be called, however mangled."""
    return text.strip() in tools or any(word in tools for word in _WORD.findall(text))


# Turns and thoughts


def _block_of_lines(place: MarkerPlace) -> MarkerShape:
    """A tag that takes a line of its own."""
    if not place.begins_line:
        return MarkerShape.MENTION
    rest = place.rest.lstrip(" \t\r")
    if not rest and not place.settled:
        return MarkerShape.OPEN
    return MarkerShape.STRAY if rest.startswith(("\n", "<")) else MarkerShape.MENTION


_TURN = re.compile(r"(?:system|user|assistant|tool)[ \t\r]*(?:\n|<\|)")
_OPEN_TURN = re.compile(r"[a-z]{0,9}[ \t\r]*(?:<\|?)?\Z")


def _turn(place: MarkerPlace) -> MarkerShape:
    if _TURN.match(place.rest):
        return MarkerShape.STRAY
    return MarkerShape.OPEN if not place.settled and _OPEN_TURN.match(place.rest) else MarkerShape.MENTION


def _turn_end(place: MarkerPlace) -> MarkerShape:
    rest = place.rest.lstrip()
    if rest.startswith("<|im_"):
        return MarkerShape.STRAY
    return place.shape_of_prefix(rest, "<|im_start|>") or MarkerShape.MENTION


def _prompt_begin(place: MarkerPlace) -> MarkerShape:
    """Returns what the beginning of a prompt is: stray, right behind a word or a sentence."""
    return MarkerShape.MENTION if place.begins_line or not place.is_fit else MarkerShape.STRAY


def _thought_end(place: MarkerPlace) -> MarkerShape:
    rest = place.rest.lstrip(" \t\r")
    if not rest and not place.settled:
        return MarkerShape.OPEN
    return MarkerShape.STRAY if rest.startswith("\n") or _parts_texts(place) else MarkerShape.MENTION


def _parts_texts(place: MarkerPlace) -> bool:
    """Returns whether an end of thoughts stands between two texts without any space, as some templates have it.

    Whoever mentions one puts a space or a sign on a side of it, or a word of a script that has no spaces before it.
    """
    before = "." if place.begins_line else place.line[-1]
    ended = before in _ENDS_OF_TEXT or (before.isascii() and before.isalnum())
    return ended and (place.rest[:1].isalnum() or place.rest[:1] in ("*", "#"))


# All other formats

_ATTRIBUTE = re.compile(r"""(?:(["'])|(?=[^"']))([^"'<>\n]{0,256})(?(1)["']|>)""")
_OPEN_ATTRIBUTE = re.compile(r"""["']?[^"'<>\n]{0,256}\Z""")
_ATTRIBUTES = re.compile(r"\s*(?:invoke\s+name|call\s+tool|name|tool)\s*=\s*")
# What stands between an opener and a call's name.
_BETWEEN = re.compile(
    r"\s*(?:(?:(?:assistant|analysis|commentary|json|tools)(?![\w.])|to=|function(?=\s*[<\n])|functions\.|call:)\s*|\s+)"
)
_BARE_NAME = re.compile(r"([\w.:/\-]{1,128})(\s*)(?=<|\{|\(|```|\[ARGS\]|\[CALL_ID\])")
_OPEN_NAME = re.compile(r"[\w.:/\-]{1,128}(?:\s*`{0,2}|\s+\w{0,8}|\[[A-Z_]{0,7})\Z")
_LIST = re.compile(r"\[*\s*(?:\{|([\w.\-]{1,128})\()")
_OPEN_BETWEEN = re.compile(r"(?:(?:invoke|call)\s+)?(?:name|tool|to)\s*=?\s*\Z")
_OPEN_LIST = re.compile(r"\[*\s*[\w.\-]{0,128}\Z")
_NAME_IN_OBJECT = re.compile(r'"(?:name|tool_name|tool)"\s*:\s*"([^"\n]{0,256})"')
_TAGS = "(?:think|response|tools|call|argument|json|message)+"  # run together where the markers between them are lost
# The words by which a channel, or a tag of K3, is one and no mention of its marker.
_WORDS_OF_A_TAG = {
    "<|channel|>": re.compile(r"\s?(?:analysis|commentary|final)\b"),
    "<|start|>": re.compile(r"\s?(?:assistant|functions\.)"),
    "<|open|>": re.compile(rf"\s?{_TAGS}\b"),
    "<|close|>": re.compile(rf"\s?{_TAGS}\s?<"),
}
CHANNELS = tuple(_WORDS_OF_A_TAG)
"""The markers that begin a part of a turn, of thoughts as well as of calls."""
_OPEN_WORD = re.compile(r"\s?[a-z]{0,32}(?:\.|\s)?\Z")


def _opener(place: MarkerPlace) -> MarkerShape:
    """Returns what an opener of any format is: by the name of a call behind it, or what stands for one."""
    text, at, limit = place.text, place.start, place.end + AHEAD
    while True:
        if match := MARKUP.match(text, at):
            at = match.end()
            named = _ATTRIBUTES.match(text, at)
            if match.group()[-1] not in '="' and named is None:
                continue
            return _by_attribute(place, text[named.end() if named else at : limit])
        if (between := _BETWEEN.match(text, at)) is None:
            break
        at = between.end()
    return _by_name(place, text[at:limit])


def _by_attribute(place: MarkerPlace, rest: str) -> MarkerShape:
    if (name := _ATTRIBUTE.match(rest)) is not None:
        return MarkerShape.CALL if _names(name[2], place.tools) else MarkerShape.STRAY
    if not place.settled and _OPEN_ATTRIBUTE.match(rest):
        return MarkerShape.OPEN
    begun, newline, _ = rest.partition("\n")  # of a name that never ends
    return MarkerShape.STRAY if newline and _names(begun, place.tools) else MarkerShape.MENTION


def _by_name(place: MarkerPlace, rest: str) -> MarkerShape:
    if not rest:
        return MarkerShape.STRAY if place.settled else MarkerShape.OPEN
    if (listed := _LIST.match(rest)) is not None:
        if (named := listed if listed[1] else _NAME_IN_OBJECT.search(rest)) is not None:
            return MarkerShape.CALL if _names(named[1], place.tools) else MarkerShape.STRAY
        return MarkerShape.STRAY if place.settled else MarkerShape.OPEN
    if (name := _BARE_NAME.match(rest)) is not None:
        if _names(name[1], place.tools):
            return MarkerShape.CALL
        return MarkerShape.MENTION if name[2] else MarkerShape.STRAY
    partial = (
        _OPEN_NAME.match(rest) or _OPEN_BETWEEN.match(rest) or _OPEN_LIST.match(rest) or unfinished(rest) == len(rest)
    )
    return MarkerShape.OPEN if partial and not place.settled else MarkerShape.MENTION


def _common_opener(place: MarkerPlace) -> MarkerShape:
    shape = _opener(place)
    return MarkerShape.MENTION if shape is MarkerShape.STRAY else shape


def _tag_with_words(place: MarkerPlace) -> MarkerShape:
    """Returns what a marker is that words make a tag: stray, where they do not begin a call."""
    shape = _opener(place) if place.marker != "<|close|>" else MarkerShape.MENTION
    if shape in (MarkerShape.CALL, MarkerShape.OPEN):
        return shape
    if _WORDS_OF_A_TAG[canonical(place.marker)].match(place.rest):
        return MarkerShape.STRAY
    return MarkerShape.OPEN if not place.settled and _OPEN_WORD.match(place.rest) else MarkerShape.MENTION


_ARGUMENTS = (
    "<arg_key>", "<arg_key:opensource>", "<longcat_arg_key>", "<｜DSML｜parameter", "<｜DSML｜ parameter",
    "<steptml:parameter",
)  # fmt: skip
_ARGUMENT = re.compile(r"\s*(?:name|key)\s*=|[\w.\-]{1,64}</(?:longcat_)?arg_key")
_OPEN_ARGUMENT = re.compile(r"\s?[\w.\-]{0,64}(?:<(?:/\w{0,15})?)?\Z")


_MENTIONED_CALL = re.compile(r"<(?:longcat_)?tool_call>[\w.:/\-]{1,128}\s*\Z")


def _argument(place: MarkerPlace) -> MarkerShape:
    """Returns what the opener of an argument is outside of any call: stray, if the argument's name follows."""
    if _MENTIONED_CALL.search(place.line):  # it is a part of an example, as the marker before it was
        return MarkerShape.MENTION
    if _ARGUMENT.match(place.rest):
        return MarkerShape.STRAY
    return MarkerShape.OPEN if not place.settled and _OPEN_ARGUMENT.match(place.rest) else MarkerShape.MENTION


def _unquoted(words: str, signs: str, rest: str) -> re.Pattern[str]:
    """Returns a pattern of words that no sign stands before; they come first in it, since that is found faster."""
    literal = re.escape(words)
    return re.compile(rf"{literal}(?<![{signs}]{literal}){rest}")


# Words of a call whose special tokens an engine has left out of the text. Each begins with signs that are found fast.
_CALLS_IN_WORDS = (
    # The constraint may be lost in words of another script.
    _unquoted(
        "to=functions.", "`\"'", r"([\w.\-]{1,128})\s*(?:commentary json|(?:json|code)?(?:[^\x00-\x7f]|[\s.]){0,64}\{)"
    ),
    _unquoted('call tool="', '`"', r'([^"\n]{1,128})" index="\d{1,4}"'),
    _unquoted("functions.", r"`\"'\w", r"([\w.\-]{1,128}):\d{1,4}\s*\{"),
    _unquoted("call:", r"`\"'\w", r"([\w.\-]{1,128})\{\s{0,8}\w{1,64}:"),
    _unquoted('invoke name="', r"<`\"'｜|\w", r'([^"\n]{1,128})">?\s*(?:(?:<\w{1,16}:)?parameter name="|invoke>)'),
    # A name with an object behind it, maybe as if one called a function, or with a sign of another script between them.
    re.compile(
        r"\n<?(?a:(?:[\w.\-]{1,64}:){0,8}(?:functions\.)?([\w.\-]{1,128}))"
        r"(?:\((?:\w{1,32}=)?|[ \t]{0,8}[^\x00-\x7f]{0,16})\{\s{0,64}(?:\}|[\"']?[\w$\-]{1,64}[\"']?\s{0,8}:)"
    ),
    # Of formats that nobody here knows, with their special tokens.
    _unquoted("<|", "`\"'", r"\w{1,32}\|>\s?([\w.\-]{1,128})\s?<\|\w{1,32}\|>\s?\{"),
    # As clients show calls to their users and to models, and as prompts without tools ask for them.
    re.compile(
        r"\n\[(?i:tool[ _](?:calls?|use)|calling tool|called function)\]?:?[ \t]*(?:name=)?\"?"
        r"([\w.\-]{1,128})(?=[^\n{(]{0,128}(?:\{|(?<!\])\()|\]\s{0,64}\Z)"
    ),
    re.compile(r'\n\{\s{0,8}tool\s{0,8}=>\s{0,8}"([^"\n]{1,128})"'),
    re.compile(r"\n\[/([\w.\-]{1,128})\][ \t]*$", re.MULTILINE),
    re.compile(r"\nAction:[ \t]*([\w.\-]{1,128})\s{1,8}Action Input:"),
    re.compile(r"\n✿FUNCTION✿:[ \t]*([\w.\-]{1,128})\s{1,8}✿ARGS✿:"),
    re.compile(r"\n```tool_(?:code|calls?)\s{1,64}(?:print\()?(?:default_api\.)?([\w.\-]{1,128})\("),
    re.compile(r"\n<[\w:\-]{1,48}>\s{0,64}<name>([\w.\-]{1,128})</name>"),
    re.compile(
        r'\n<{1,3}[\w:\-]{1,48}>{1,3}\s{0,64}(?:\[\s{0,64})?\{\s{0,64}"name"\s{0,8}:\s{0,8}"([^"\n]{1,128})"\s{0,8},\s{0,8}'
        r'"(?:arguments|parameters|input|args)"\s{0,8}:'
    ),
    # With the name last (mudler/LocalAI#10052), in a line: of others, each that begins so would be read to its end.
    re.compile(
        r'\n\{\s{0,64}"(?:arguments|parameters)"\s{0,8}:\s{0,8}\{[^\n]{0,4096}?\}\s{0,64},\s{0,64}"name"\s{0,8}:\s{0,8}'
        r'"([^"\n]{1,128})"\s{0,64}\}'
    ),
    # Behind the first call of a block, the next one without its bracket.
    re.compile(r'\n"?name"\s{0,8}:\s{0,8}"([^"\n]{1,128})"\s{0,8},\s{0,8}"(?:arguments|parameters)"\s{0,8}:\s{0,8}\{'),
    re.compile(
        r"\n<(?!(?:details|p|summary|code)>)([\w.\-]{1,128})>"
        r"(?:\s{0,64}<([\w.\-]{1,128})>[^<>]{0,4096}</\2>|[^<>{}][^<>]{0,4096}</\1>)"
    ),
    re.compile(r'\n<([\w.\-]{1,128})>[ \t]{0,8}\{\s{0,64}"[\w$\-]{1,64}"\s{0,8}:'),
    _unquoted("functools", '`"', r'\s?\[\s*\{\s*"name"\s*:\s*"([^"\n]{1,128})"'),
    # As the last line, where one has no list around it (andrewyng/aisuite#339).
    re.compile(
        r"\n(?:tool_call:[ \t]?)?([\w.\-]{1,128})\((?=[a-zA-Z_]\w{0,63}=[\"'\[{\dTFN\-][^\n]{0,4096}\)\s{0,64}\Z)"
    ),
    # As Llama 4 and others write a list of calls, in Python; one within a line has no list in it.
    re.compile(r"\n\[([\w.\-]{1,128})\((?=(?:\)|[a-zA-Z_]\w{0,63}=)[^\n]{0,4096}\)?\][ \t]*$)", re.MULTILINE),
    re.compile(r"\[(?<=[ \t]\[)([\w.\-]{1,128})\((?:\)|[a-zA-Z_]\w{0,63}=[^\n\[]{0,4096}\))\][ \t]*$", re.MULTILINE),
)


# A channel of gpt-oss right behind another: reasoning was sent as content.
_CHANNEL_IN_WORDS = re.compile(r"assistant(?<=[.!?)…。！？\w]assistant)(?:final|commentary|analysis)(?=[^\s`\"'(=])")
_QUOTED = re.compile(r'"[^"\n]*"?')
_SIGNS_OF_WORDS = (
    "tool", "[Tool", "</", "<|", "call:", "functions.", ")]", 'invoke name="', '{"', "api:", "[/", "[Called", 'name"',
    "Action Input:", "✿FUNCTION✿",
    "assistantfinal", "assistantcommentary", "assistantanalysis",
)  # fmt: skip


def words_of_a_call(text: str, tools: Container[str]) -> bool:
    """Returns whether a text holds what is left of a call to a declared tool, or of a turn, without special tokens."""
    if not (any([sign in text for sign in _SIGNS_OF_WORDS]) or text.rstrip().endswith(")")):
        return False  # nearly always, and found out in no time
    text = "\n" + text  # where patterns of whole lines begin
    if _CHANNEL_IN_WORDS.search(text) and _CHANNEL_IN_WORDS.search(_QUOTED.sub('"', text)):
        return True
    return any(_names(match[1], tools) for pattern in _CALLS_IN_WORDS for match in pattern.finditer(text))


_SHAPES: Mapping[str, Callable[[MarkerPlace], MarkerShape]] = {
    **dict.fromkeys(RARE_PARTS, _block_of_lines),
    **dict.fromkeys(ENDS_OF_THOUGHTS, _thought_end),
    **dict.fromkeys(RARE_OPENERS, _opener),
    **dict.fromkeys(COMMON_OPENERS, _common_opener),
    **dict.fromkeys(_WORDS_OF_A_TAG, _tag_with_words),
    **dict.fromkeys(_ARGUMENTS, _argument),
    **dict.fromkeys(BEGINS_OF_PROMPTS, _prompt_begin),
    **dict.fromkeys(SECTION_BEGINS, _section),
    CALL_BEGIN: _kimi_call,
    ARGUMENTS_BEGIN: _kimi_arguments,
    "<tool_call>": _block,
    "<function=": _function,
    "<parameter=": _parameter,
    "<tool_code>": _block_of_lines,
    "<tool_response>": _block_of_lines,
    "<|im_start|>": _turn,
    "<|im_end|>": _turn_end,
}
_NEEDS_A_PLACE = frozenset((*RARE_OPENERS, *RARE_PARTS, *_ARGUMENTS, *ENDS_OF_THOUGHTS)) - {"</think>"}
_OLD_OPENINGS = (*SECTION_BEGINS, CALL_BEGIN, ARGUMENTS_BEGIN, "<tool_call>", "<function=", "<parameter=")
OPENINGS = frozenset((*_OLD_OPENINGS, *RARE_OPENERS, *COMMON_OPENERS))


# The name that a call has

_NAMES = (
    re.compile(r"<\|tool_call_begin\|>\s*([^<{]*)"),
    re.compile(r"<function(?:=|\s+name\s*=)([^<>\n]*)"),
    _DAMAGED_OBJECT,
    _NAME_IN_OBJECT,
    re.compile(r"""(?:invoke\s+name|call\s+tool)\s*=\s*["']?([^"'<>\n]*)"""),
    re.compile(r"functions\.([\w.\-]+)"),
    re.compile(r"<tool_call(?::\w+)?>\s*([^\s<{]+)\s*<"),
    re.compile(r"(?:begin|sep)[｜|]>\s*([^\s<{｜]+)"),
    re.compile(r"(?:\[TOOL_CALLS\]|call:|>\[?)\s*([\w.\-]+)[\[({]"),
)
_FUNCTION = re.compile(r"functions[.:_\-]?|:\d+")


def calls_a_tool(text: str, tools: Container[str]) -> bool:
    """Returns whether text that begins as a call does, with its marker, names a tool that may be called."""
    head = text[:AHEAD]
    found = (match[1] for pattern in _NAMES if (match := pattern.search(head)))
    return any(_names(name, tools) or _names(_FUNCTION.sub(" ", name), tools) for name in found)
