"""The markup of every tool-call and reasoning format that vLLM 0.33 and SGLang 0.5.23 can read, and how it is found.

Whichever format a pool's model writes, an engine that misses a call hands its markers on as text. So the guard knows
them all in any pool.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

REPLACEMENT = "\ufffd"  # a cut character

# Kimi

SECTION_BEGINS = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>")
SECTION_ENDS = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>")
CALL_BEGIN = "<|tool_call_begin|>"
ARGUMENTS_BEGIN = "<|tool_call_argument_begin|>"
CALL_END = "<|tool_call_end|>"

MINIMAX = "]<]minimax[>["
"""In front of every tag of MiniMax M3; the tags themselves are those of other formats."""

# Each has a format of its own: no text holds one unless it is about that format.
RARE_OPENERS = (
    "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>",  # DeepSeek V3, V3.1
    "<｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "<｜DSML｜toolcalls>", "<｜DSML｜tool>",
    "<｜DSML｜invoke",  # DeepSeek V3.2, V4
    "<｜DSML｜ calls>", "<｜DSML｜ invoke",  # V4.1
    "<｜DSML｜toolcall>", "<｜DSML｜tool_call>", "<｜DSML｜tool_use>", "<｜DSML｜function_call>",
    "<｜DSML｜calls>",  # what damage makes of them
    "<｜GCML｜tool_calls>",  # GigaChat 3.5
    "<｜tool_calls_begin｜>", "<｜tool_call_begin｜>",  # Step 3
    "<minimax:tool_call>", MINIMAX,
    "<|open|>",  # Kimi K3
    "<|channel|>", "<|start|>",  # harmony
    "<tool_calls:opensource>", "<tool_call:opensource>",  # Hy3, Hy4
    "<|START_ACTION|>", "<dots_function_call>", "<longcat_tool_call>", "<iquest_tool_call>", "<seed:tool_call>",
    "<ifm|tool_calls>", "<ifm|tool_call>", "<atem:function_calls>", "<atem:invoke", "<start_function_call>",
    "<|action_start|><|plugin|>", "<|action_start|> <|plugin|>", "<|content_invoke_tool_json|>", "<|tools_prefix|>",
    "<|tool_call_start|>", "<|tool_call|>", "<|tool_call>", "<|python_tag|>", "<|python_start|>",
    "<|plamo:begin_tool_request:plamo|>", "<|role_sep|>", "[TOOL_CALLS]",
)  # fmt: skip

# Ordinary XML may hold them, too: only a call to a declared tool counts.
COMMON_OPENERS = (
    "<tool_calls>", "<function_calls>", "<function_call>", "<invoke name=", "<function name=", "<functionname=",
)  # fmt: skip

# What each ends, without the bracket at its end: a beginning may have attributes.
_ENDS_OF_RARE = {
    "<｜tool▁calls▁end｜>": "<｜tool▁calls▁begin", "<｜tool▁call▁end｜>": "<｜tool▁call▁begin",
    "</｜DSML｜function_calls>": "<｜DSML｜function_calls", "</｜DSML｜tool_calls>": "<｜DSML｜tool_calls",
    "</｜DSML｜invoke>": "<｜DSML｜invoke", "</｜DSML｜parameter>": "<｜DSML｜parameter",
    "</｜DSML｜ calls>": "<｜DSML｜ calls", "</｜DSML｜ invoke>": "<｜DSML｜ invoke",
    "</｜DSML｜ parameter>": "<｜DSML｜ parameter",
    "<｜tool_calls_end｜>": "<｜tool_calls_begin", "<｜tool_call_end｜>": "<｜tool_call_begin",
    "</minimax:tool_call>": "<minimax:tool_call",
    "</tool_calls:opensource>": "<tool_calls:opensource", "</tool_call:opensource>": "<tool_call:opensource",
    "</arg_value:opensource>": "<arg_value:opensource", "</arg_key:opensource>": "<arg_key:opensource",
    "</arg_value>": "<arg_value", "</arg_key>": "<arg_key",
    "<|END_ACTION|>": "<|START_ACTION", "</dots_function_call>": "<dots_function_call",
    "</longcat_tool_call>": "<longcat_tool_call", "</longcat_arg_value>": "<longcat_arg_value",
    "</longcat_arg_key>": "<longcat_arg_key", "</iquest_tool_call>": "<iquest_tool_call",
    "</seed:tool_call>": "<seed:tool_call", "<end_function_call>": "<start_function_call",
    "<|tools_suffix|>": "<|tools_prefix", "<|python_end|>": "<|python_start", "<tool_call|>": "<|tool_call>",
    "<|action_end|>": "<|action_start",
    "<|call|>": "<|channel",
}  # fmt: skip
_ENDS_OF_COMMON = {"</tool_calls>": "<tool_calls", "</function_calls>": "<function_calls", "</invoke>": "<invoke"}
ENDS_OF_THOUGHTS = {
    "</think>": "<think",
    "</thinking>": "<thinking", "</reasoning>": "<reasoning",
    "</mm:think>": "<mm:think", "</think:opensource>": "<think:opensource", "</seed:think>": "<seed:think",
    "</longcat_think>": "<longcat_think",
    "<|END_THINKING|>": "<|START_THINKING", "<|plamo:end_think:plamo|>": "<|plamo:begin_think",
}  # fmt: skip

# A model stops at these. No text holds one unless it speaks of turns, and then what begins one stands before it.
ENDS_OF_TURNS = {
    "<|im_end|>": "<|im_start", "<|endoftext|>": "<|startoftext",
    "<|eot_id|>": "<|start_header_id", "<|eom_id|>": "<|start_header_id", "<|end_of_text|>": "<|begin_of_text",
    "<|eot|>": "<|header_start", "<|eom|>": "<|header_start", "<|end_message|>": "<|content",
    "<end_of_turn>": "<start_of_turn", "<turn|>": "<|turn",  # Gemma 3 and 4
    "<｜end▁of▁sentence｜>": "<｜Assistant",  # DeepSeek
    "<|user|>": "<|assistant", "<|observation|>": "<|assistant",  # GLM
    "<|end|>": "<|message", "<|return|>": "<|message",  # gpt-oss
    "<|END_OF_TURN_TOKEN|>": "<|START_OF_TURN_TOKEN", "<|END_RESPONSE|>": "<|START_RESPONSE",  # Cohere
    "<|END_TEXT|>": "<|START_TEXT",
}  # fmt: skip

# An engine puts one before the prompt. No answer holds one unless it speaks of prompts.
BEGINS_OF_PROMPTS = ("<｜begin▁of▁sentence｜>", "<|begin_of_text|>")

# Parts of calls, and the marks of turns and thoughts.
_PARTS = (
    "<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>", "<｜DSML｜parameter", "<｜DSML｜ parameter", "<｜tool_sep｜>",
    "<steptml:invoke", "<steptml:parameter", "<|close|>", "<|sep|>", "<|message|>", "<|constrain|>",
    "<tool_sep>", "<tool_sep:opensource>", "<arg_key:opensource>", "<arg_value:opensource>", "<|START_RESPONSE|>",
    "<|START_TEXT|>", "<longcat_arg_key>", "<longcat_arg_value>", "<ifm|arg_key>", "<ifm|arg_value>",
    "<|plamo:begin_tool_name:plamo|>", "<|tool_response>", '<|"|>', "<mm:think>", "<think:opensource>", "<seed:think>",
    "<longcat_think>", "<|START_THINKING|>", "<|plamo:begin_think:plamo|>", "<|channel>", "<channel|>", "[e~[",
)  # fmt: skip

PROMPTED_THOUGHTS = ("<thinking>", "<reasoning>")
"""The openers of reasoning that prompts ask for and no template writes, so that a text may begin with one."""

# Kimi K2, Qwen and Hermes, and the marks of their turns and thoughts.
_OLD = (
    "<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>", "<think>", "</think>",
    "<tool_code>", "<tool_response>", "</tool_response>", "<argname>", "<argvalue>", "<arg_key>", "<arg_value>",
    "◁think▷", "◁/think▷", *SECTION_BEGINS, *SECTION_ENDS, CALL_BEGIN, ARGUMENTS_BEGIN, CALL_END,
    "<|im_start|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>",
    "<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>", "<|start_header_id|>",
    "<|end_header_id|>",
)  # fmt: skip
_ENDS_OF_OLD_CALLS = {
    "</tool_call>": "<tool_call", "</function>": "<function", "</parameter>": "<parameter",
    CALL_END: "<|tool_call_begin",
    **{end: begin.removesuffix("|>") for end, begin in zip(SECTION_ENDS, SECTION_BEGINS, strict=True)},
}  # fmt: skip


def _spellings(literal: str) -> Iterator[str]:
    """Yields a marker, and as clients and Unicode's NFKC write its full-width bars, a tokenizer its blanks, and models
    that lose their way its name.
    """
    yield literal
    if literal == "</parameter>":  # before `</function>`, of which a part is lost
        yield from ("</parameter/>", "</parameter_function>", "</parameterfunction>")
    if "｜" not in literal:
        return
    plain = literal.replace("▁", "_")
    yield literal.replace("｜", "|")
    yield plain.replace("｜", "|")
    if "DSML" in literal:
        yield from (literal.replace("｜", bar) for bar in ("||", "｜｜", "‖"))
        yield literal.replace("｜DSML｜", " | DSML | ").replace("  ", " ")
        yield literal.replace("｜DSML｜", "｜DSML｜r:")


def _canonical(literals: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for literal in literals:
        found[literal] = literal
    for literal in [*found]:
        for spelling in _spellings(literal):
            found.setdefault(spelling, literal)
    return found


ENDS = {
    **_ENDS_OF_OLD_CALLS, **_ENDS_OF_RARE, **_ENDS_OF_COMMON, **ENDS_OF_THOUGHTS, **ENDS_OF_TURNS,
    "</tool_response>": "<tool_response", "◁/think▷": "◁think", '<|"|>': '<|"|>',
}  # fmt: skip
"""The beginning that each end ends, without its bracket: `<function name="f">` begins a function, too."""
_SAME_END = {"<|tool_call_begin": "<|tool_call_start|>", "<|im_start": "<|im_middle|>"}  # LFM2's calls, Kimi's turns
OTHER_BEGINS = {begin: begin.replace("｜", "|") for begin in ENDS.values() if "｜" in begin} | _SAME_END
"""The other beginning of a thing, beside that in `ENDS`: another spelling, or another format with the same end."""
CANONICAL = _canonical((*_OLD, *RARE_OPENERS, *COMMON_OPENERS, *_PARTS, *PROMPTED_THOUGHTS, *BEGINS_OF_PROMPTS, *ENDS))
"""The marker that each spelling means."""
COMMON = frozenset((*COMMON_OPENERS, *_ENDS_OF_COMMON))
BEGINS = {
    literal: begin for begin in sorted(ENDS.values(), key=len) for literal in CANONICAL if literal.startswith(begin)
} | {other: begin for begin, other in _SAME_END.items()}
"""The thing that each beginning begins, as `ENDS` names it."""
ENDS_OF_CALLS = frozenset((*_ENDS_OF_OLD_CALLS, *_ENDS_OF_RARE, *_ENDS_OF_COMMON))
_BEGINS_OF_PARTS = (
    "<tool_call>", "<function=", "<parameter=", "<arg_key>", "<｜DSML｜parameter", "<｜DSML｜ parameter",
)  # fmt: skip
BEGINS_OF_CALLS = frozenset((*SECTION_BEGINS, CALL_BEGIN, *_BEGINS_OF_PARTS, *RARE_OPENERS))
THOUGHTS = frozenset(literal for literal in CANONICAL if literal.startswith(tuple(ENDS_OF_THOUGHTS.values())))
"""The markers that open reasoning."""
RARE_PARTS = frozenset((*_PARTS, *_ENDS_OF_RARE, *ENDS_OF_TURNS)) - {"</arg_value>", "</arg_key>", "<|endoftext|>"}

# How it is found

_RESERVED = r"<\|reserved_token_\d{1,9}\|>"
_SIGNS = frozenset(literal[0] for literal in CANONICAL)  # with which a marker begins


def _either(texts: Collection[str]) -> str:
    """Returns a pattern of any of these texts, the longest that fits.

    It is a tree of their characters: where no text goes on, it fails at the first one, however many texts there are.
    """
    by_sign: dict[str, list[str]] = {}
    for text in texts:
        if text:
            by_sign.setdefault(text[0], []).append(text[1:])
    branches = [re.escape(sign) + _either(rests) for sign, rests in by_sign.items()]
    tree = branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})" if branches else ""
    return f"(?:{tree})?" if "" in texts and tree else tree


_ANY = f"{_either(CANONICAL)}|{_RESERVED}"
MARKUP = re.compile(_ANY)
RUN = re.compile(rf"(?:\s|{_ANY})*")
"""Markers with nothing but whitespace between them."""
RUN_IN_JSON = re.compile(rf"(?:\s|\\[nrt]|{_ANY})*")
"""The same inside a string of a JSON document."""
_LONGEST = 48  # characters of the longest marker
_PREFIXES = frozenset(literal[:length] for literal in CANONICAL for length in range(1, len(literal))) | frozenset(
    "<|reserved_token_"[:length] for length in range(1, 18)
)
_UNFINISHED_RESERVED = re.compile(r"<\|reserved_token_\d{0,9}\|?\Z")
_DISTINCT = 5  # characters from which on a piece of a marker is no accident: `<tool`, `</fun`
# One of these is in every text that holds markup. Looking for each takes less than trying the pattern at every `<`.
STARTS = (
    "<|", "<tool_", "</tool_", "function", "parameter", "think", "<arg", "</arg", "｜", "minimax", "<invoke",
    "</invoke", "seed:", "atem:", "<ifm|", "dots_", "longcat_", "iquest_", "steptml:", "DSML", "GCML", "|>",
    "[TOOL_CALLS]", "reasoning>", "_of_turn>", "[e~[",
)  # fmt: skip
_LONG = 4096  # characters, from which on that pays
_WINDOW = 64 * 1024  # characters that are searched at once: no other thread runs meanwhile
_CHANNEL = re.compile(r"<\|channel\|>\s?(?:analysis|commentary|final)\b")


def markers(text: str) -> Iterator[re.Match[str]]:
    """Yields the markers in a text, in their order."""
    if len(text) > _LONG and not any(start in text for start in STARTS):
        return
    for start in range(0, len(text), _WINDOW):
        end = start + _WINDOW
        yield from (match for match in MARKUP.finditer(text, start, end + _LONGEST) if match.start() < end)


def has_markup(text: str) -> bool:
    return MARKUP.search(text) is not None


def unfinished(text: str) -> int:
    """Returns the length of the end of `text` that may begin markup, or 0."""
    tail = text[-_LONGEST:]
    for place, char in enumerate(tail):
        if char in _SIGNS:
            rest = tail[place:]
            if rest in _PREFIXES or _UNFINISHED_RESERVED.match(rest):
                return len(rest)
    return 0


def half_marker(text: str) -> int:
    """Returns the length of a cut marker at the end of a text that nothing but a marker begins with, or 0."""
    length = unfinished(text)
    return length if length >= _DISTINCT else 0


def is_residue(text: str) -> bool:
    """Returns whether a text is nothing but markers, the last of them maybe cut, and space."""
    end = RUN.match(text).end()  # type: ignore[union-attr]
    return end == len(text) or unfinished(text) == len(text) - end


def without_ends(name: str) -> str:
    """Returns a call's name without what ended it: markers of ends, or the channel of gpt-oss that it was sent in."""
    first = MARKUP.search(name)
    if first is None:
        return name
    place = first.start()
    while match := _CHANNEL.match(name, place) or MARKUP.match(name, place):
        if match.re is MARKUP and canonical(match.group()) not in ENDS:
            return name
        place = match.end()
    return name[: first.start()] if name[place:].strip() == "" else name


def canonical(marker: str) -> str:
    return CANONICAL.get(marker, marker)


def is_reserved(marker: str) -> bool:
    """Returns whether a marker is a token that no template uses."""
    return marker.startswith("<|reserved_token_")
