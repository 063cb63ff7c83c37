"""The markers of every tool-call and reasoning format that vLLM 0.33 and SGLang 0.5.23 can read.

Whichever format a pool's model writes, an engine that misses a call hands its markers on as text. So the guard knows
them all in any pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

# Kimi

REPLACEMENT = "\ufffd"
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
    "</longcat_tool_call>": "<longcat_tool_call", "</iquest_tool_call>": "<iquest_tool_call",
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
    "<|END_THINKING|>": "<|START_THINKING", "<|plamo:end_think:plamo|>": "<|plamo:begin_think",
}  # fmt: skip

# A model stops at these. No text holds one unless it speaks of turns, and then what begins one stands before it.
ENDS_OF_TURNS = {
    "<|im_end|>": "<|im_start", "<|endoftext|>": "<|endoftext|>",
    "<|eot_id|>": "<|start_header_id", "<|eom_id|>": "<|start_header_id", "<|end_of_text|>": "<|begin_of_text",
    "<|eot|>": "<|header_start", "<|eom|>": "<|header_start", "<|end_message|>": "<|content",
    "<end_of_turn>": "<start_of_turn", "<turn|>": "<|turn",  # Gemma 3 and 4
    "<｜end▁of▁sentence｜>": "<｜Assistant",  # DeepSeek
    "<|user|>": "<|assistant", "<|observation|>": "<|assistant",  # GLM
    "<|end|>": "<|message", "<|return|>": "<|message",  # gpt-oss
}  # fmt: skip

# Parts of calls, and the marks of turns and thoughts.
_PARTS = (
    "<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>", "<｜DSML｜parameter", "<｜DSML｜ parameter", "<｜tool_sep｜>",
    "<steptml:invoke", "<steptml:parameter", "<|close|>", "<|sep|>", "<|message|>", "<|constrain|>",
    "<tool_sep>", "<tool_sep:opensource>", "<arg_key:opensource>", "<arg_value:opensource>", "<|START_RESPONSE|>",
    "<ifm|arg_key>", "<ifm|arg_value>", "<|plamo:begin_tool_name:plamo|>", "<|tool_response>", '<|"|>',
    "<mm:think>", "<think:opensource>", "<seed:think>", "<|START_THINKING|>", "<|plamo:begin_think:plamo|>",
    "<|channel>", "<channel|>", "[e~[",
)  # fmt: skip

PROMPTED_THOUGHTS = ("<thinking>", "<reasoning>")
"""The openers of reasoning that prompts ask for and no template writes, so that a text may begin with one."""

# The three formats that the guard has known from the start.
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

# Known, and no evidence: ordinary texts hold them (`usage: prog [ARGS]`), or they are parts of markers above.
NOT_MARKERS = {
    "<response>": "plain XML", "</response>": "plain XML", "<param name=": "plain XML",
    '<parameter name="': "plain XML",
    "[ARGS]": "in every usage text", "[CALL_ID]": "a word in brackets", "[THINK]": "a word in brackets",
    "[/THINK]": "a word in brackets", "functools[": "a word; `words_of_a_call` sees the call",
    "to=functions.": "words; `words_of_a_call` sees the call",
    "Here is my thought process:": "English", "Here is my response:": "English",
    "｜DSML｜": "in each of its tags", "｜GCML｜": "in its tag",
}  # fmt: skip


def _spellings(literal: str) -> Iterator[str]:
    """Yields a marker, and as clients and Unicode's NFKC write its full-width bars, a tokenizer its blanks, and models
    that lose their way its name.
    """
    yield literal
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
CANONICAL = _canonical((*_OLD, *RARE_OPENERS, *COMMON_OPENERS, *_PARTS, *PROMPTED_THOUGHTS, *ENDS))
"""The marker that each spelling means."""
COMMON = frozenset((*COMMON_OPENERS, *_ENDS_OF_COMMON))
BEGINS = {
    literal: begin for begin in sorted(ENDS.values(), key=len) for literal in CANONICAL if literal.startswith(begin)
}
"""The thing that each beginning begins, as `ENDS` names it."""
ENDS_OF_CALLS = frozenset((*_ENDS_OF_OLD_CALLS, *_ENDS_OF_RARE, *_ENDS_OF_COMMON))
_BEGINS_OF_PARTS = (
    "<tool_call>",
    "<function=",
    "<parameter=",
    "<arg_key>",
    "<｜DSML｜parameter",
    "<｜DSML｜ parameter",
)
BEGINS_OF_CALLS = frozenset((*SECTION_BEGINS, CALL_BEGIN, *_BEGINS_OF_PARTS, *RARE_OPENERS))
THOUGHTS = frozenset(literal for literal in CANONICAL if literal.startswith(tuple(ENDS_OF_THOUGHTS.values())))
"""The markers that open reasoning."""
RARE_PARTS = frozenset((*_PARTS, *_ENDS_OF_RARE, *ENDS_OF_TURNS)) - {"</arg_value>", "</arg_key>", "<|endoftext|>"}
