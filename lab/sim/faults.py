"""Faults of real speculative engines, as edits of a model's text or of its transport; one row per fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from lab.sim.formats import FORMATS
from lab.sim.segments import Segment

Edit = Callable[[list[Segment], str, Random], list[Segment]]
_TALK = ("think_begin", "reasoning", "think_end", "content")
Transport = Literal["stall", "disconnect", "error_mid_stream", "http_500", "slow_start"]


@dataclass(frozen=True)
class InjectedFault:
    """A fault that the simulated engine can produce.

    Attributes:
        summary: What happens, and where it was seen.
        kinds: Kinds of answers that it can affect: `calls`, `json`, `prose`.
        edit: Changes the model's text; None for faults of the transport.
        transport: The effect on the connection; None for faults of the text.
        speculative: True if speculation causes it, so that requests that opted out are never affected.
    """

    summary: str
    kinds: frozenset[str]
    edit: Edit | None = None
    transport: Transport | None = None
    speculative: bool = True


def _each(part: str, change: Callable[[Segment], Segment]) -> Edit:
    """Returns an edit that applies `change` to one random segment of the given part."""

    def edit(segments: list[Segment], grammar: str, rng: Random) -> list[Segment]:
        parts = (part, "json") if part == "args" else (part,)
        places = [place for place, segment in enumerate(segments) if segment.part in parts]
        chosen = rng.choice(places)
        return [change(segment) if place == chosen else segment for place, segment in enumerate(segments)]

    return edit


def _both(change: Callable[[str], str]) -> Callable[[Segment], Segment]:
    return lambda segment: replace(segment, text=change(segment.text), passed=change(segment.handed_on))


def _cut_string(text: str) -> str:
    """Lose the end of the last string and everything after it, as in `{"description": "检查 CDP 依赖环境.`."""
    quote = text.rfind('"')
    return text[:quote] if quote > 0 else text[:-1]


def _cut_character(text: str) -> str:
    """End in the middle of a multi-byte character."""
    place = next((place for place, char in enumerate(text) if ord(char) > 0x7F), len(text) // 2)
    return text[:place] + "\ufffd"


def _break_character(text: str) -> str:
    """Lose one byte of a character in mid-text."""
    place = next((place for place, char in enumerate(text) if ord(char) > 0x7F), None)
    if place is None:
        place = max(1, len(text) - 1)
        return text[:place] + "\ufffd" + text[place:]
    return text[:place] + "\ufffd" + text[place + 1 :]


def _insert(markup: str) -> Callable[[str], str]:
    """Returns a change that writes markup before the last quote, so inside a string, or else before the end."""

    def change(text: str) -> str:
        quote = text.rfind('"')
        place = quote if quote > 0 else len(text) - 1
        return text[:place] + markup + text[place:]

    return change


def _leak_marker(segments: list[Segment], grammar: str, rng: Random) -> list[Segment]:
    return _each("args", _both(_insert(FORMATS[grammar].closing)))(segments, grammar, rng)


def _cascade(segments: list[Segment], grammar: str, rng: Random) -> list[Segment]:
    names = [segment.handed_on for segment in segments if segment.part == "name"]
    text = f"<tool_call>\n<<tool_code>\nprint({names[0]}(city='Tokyo'))\n"
    return [*_without_calls(segments), Segment("content", text)]


def _without_calls(segments: Sequence[Segment]) -> list[Segment]:
    return [segment for segment in segments if segment.part in _TALK]


def _no_section_begin(segments: list[Segment], grammar: str, rng: Random) -> list[Segment]:
    """Lose the first opening marker: an engine's parser then takes the rest as text."""
    kept = [segment for segment in segments if segment.part != "section_begin"]
    return [_as_text(segment) for segment in kept]


def _as_text(segment: Segment) -> Segment:
    return segment if segment.part in _TALK else Segment("content", segment.text)


def _merge(segments: list[Segment], grammar: str, rng: Random) -> list[Segment]:
    """Let the first call's arguments run into the next header, as in `{…}\ufffd.functions.bash:1 … {…}`."""
    first = next(segment for segment in segments if segment.part == "args")
    rest = [segment for segment in segments if segment.call > 0] or [
        segment for segment in segments if segment.call == 0
    ]
    tail = "\ufffd." + "".join(segment.text for segment in rest if segment.part in ("name", "arg_begin", "args"))
    merged = replace(first, text=first.text + tail, passed=first.handed_on + tail)
    return [merged if segment is first else segment for segment in segments if segment.call <= 0]


def _mangle_name(segment: Segment) -> Segment:
    return replace(segment, text=_mangled(segment.text), passed=_mangled(segment.handed_on))


def _mangled(name: str) -> str:
    stem, colon, count = name.partition(":")
    return f'{stem} command="ls"{colon}{count}'


def _double_key(segment: Segment) -> Segment:
    passed = segment.handed_on.replace('{"', '{"parameter=', 1)
    text = segment.text.replace("<parameter=", "<parameter=parameter=", 1)
    return replace(segment, text=passed if text == segment.text else text, passed=passed)


def _no_arguments(segment: Segment) -> Segment:
    return replace(segment, text="" if segment.text.startswith("<") else "{}", passed="{}")


def _double_brace(text: str) -> str:
    return text.replace("{", "{{", 1) if "{" in text else "{" + text


CALLS = frozenset({"calls"})
STRUCTURED = frozenset({"calls", "json"})
ANY = frozenset({"calls", "json", "prose"})

FAULTS: dict[str, InjectedFault] = {
    "truncated_string": InjectedFault(
        "ends inside a string (K2.6 + EAGLE3)", STRUCTURED, _each("args", _both(_cut_string))
    ),
    "truncated_character": InjectedFault("ends inside a character", STRUCTURED, _each("args", _both(_cut_character))),
    "broken_character": InjectedFault(
        "loses a byte of a character", STRUCTURED, _each("args", _both(_break_character))
    ),
    "double_brace": InjectedFault("opens twice (vllm#48228)", STRUCTURED, _each("args", _both(_double_brace))),
    "marker_leak": InjectedFault("a marker inside a string", STRUCTURED, _leak_marker),
    "reserved_id": InjectedFault(
        "a reserved token id (smg#1475)", STRUCTURED, _each("args", _both(_insert("<|reserved_token_163700|>")))
    ),
    "tool_code_cascade": InjectedFault("`<<tool_code>` in place of a call (vllm#40875)", CALLS, _cascade),
    "missing_section_begin": InjectedFault(
        "calls without their opening marker arrive as text", CALLS, _no_section_begin
    ),
    "merged_calls": InjectedFault("a second header inside the first call's arguments", CALLS, _merge),
    "swallowed_call": InjectedFault("the calls vanish", CALLS, lambda segments, grammar, rng: _without_calls(segments)),
    "wrong_name": InjectedFault('`bash command="ls"` as a name (vllm#56077)', CALLS, _each("name", _mangle_name)),
    "doubled_key": InjectedFault("`parameter=parameter=city` (vllm#40875)", CALLS, _each("args", _double_key)),
    "empty_arguments": InjectedFault(
        "`{}` for a call that needs arguments (vllm#56077)", CALLS, _each("args", _no_arguments)
    ),
    "stall": InjectedFault("no bytes for a while in mid-answer", ANY, transport="stall", speculative=False),
    "slow_start": InjectedFault("no first byte for a while", ANY, transport="slow_start", speculative=False),
    "disconnect": InjectedFault("the connection breaks in mid-answer", ANY, transport="disconnect", speculative=False),
    "error_mid_stream": InjectedFault("an error object after the first bytes", ANY, transport="error_mid_stream"),
    "http_500": InjectedFault("HTTP 500 as on a grammar rejection", ANY, transport="http_500"),
}


def draw(rates: dict[str, float], kind: str, *, speculative: bool, rng: Random) -> str | None:
    """Returns the name of the fault that affects an answer, or None.

    A single draw decides, so that rates are shares of all answers.

    Args:
        rates: Rate by fault name.
        kind: Kind of the answer: `calls`, `json` or `prose`.
        speculative: False if the request opted out of speculation.
        rng: Makes the draw.
    """
    point = rng.random()
    for name, rate in rates.items():
        if point < rate:
            fault = FAULTS[name]
            return name if kind in fault.kinds and (speculative or not fault.speculative) else None
        point -= rate
    return None
