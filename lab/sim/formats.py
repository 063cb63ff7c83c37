"""How the model families write an answer: one row a tool-call format."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

Arguments = dict[str, Any]


def _text(value: Any) -> str:
    """Returns a value as most templates write it in a tag: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _compact_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _python_text(value: Any) -> str:
    """Returns a value as Qwen's templates write it in a tag: containers as JSON, other values by `str`."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)


def _json(arguments: Arguments) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def _each(form: str, text: Callable[[Any], str] = _text) -> Callable[[Arguments], str]:
    """Returns what writes each argument in a form with its key (K) and its value (V)."""

    def written(arguments: Arguments) -> str:
        return "".join(_filled(form, {"K": key, "V": text(value)}) for key, value in arguments.items())

    return written


def _filled(form: str, parts: dict[str, str]) -> str:
    return re.sub("|".join(parts), lambda name: parts[name.group()], form)


def _dsml(gap: str) -> Callable[[Arguments], str]:
    def written(arguments: Arguments) -> str:
        return "".join(
            f'<｜DSML｜{gap}parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
            f"{_text(value)}</｜DSML｜{gap}parameter>\n"
            for key, value in arguments.items()
        )

    return written


_TYPES = {str: "string", bool: "boolean", int: "number", float: "number", dict: "object", list: "array"}


def _xtml(arguments: Arguments) -> str:
    return "".join(
        f'<|open|>argument key="{key}" type="{_TYPES.get(type(value), "null")}"<|sep|>{_compact_text(value)}'
        "<|close|>argument<|sep|>"
        for key, value in arguments.items()
    )


_MARK = "]<]minimax[>["


def _elements(value: Any) -> str:
    """Returns a value as MiniMax-M3 writes it: members and items as elements."""
    if isinstance(value, dict):
        return "".join(f"{_MARK}<{key}>{_elements(member)}{_MARK}</{key}>" for key, member in value.items())
    if isinstance(value, list):
        return "".join(f"{_MARK}<item>{_elements(member)}{_MARK}</item>" for member in value)
    return _text(value)


def _gemma(value: Any) -> str:
    """Returns a value as Gemma 4 writes it: keys bare, strings between quotes of their own."""
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_gemma(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_gemma, value)) + "]"
    return json.dumps(value)


@dataclass(frozen=True, kw_only=True)
class ToolCallFormat:
    """A tool-call format: the markup around reasoning, content, and a call's name and arguments.

    Attributes:
        section_begin: Before the first call.
        call_begin: Before the name of a call.
        name: The name, where more belongs to it; N is the name of the tool, I the number of the call in the
            conversation.
        arg_begin: Between name and arguments; I is the number of the call in the message, from 1 on.
        arguments: Writes the arguments.
        call_end: After them.
        between: Between two calls.
        section_end: After the last call.
        before_calls: Between content and the calls.
        think_begin: Before reasoning, if the model writes it itself.
        think_end: After reasoning.
        content_begin: Before content that calls follow.
        content_end: After it.
        always_content: Both stand there without content, too.
        final_begin: Before content that no calls follow.
        final_end: After it.
        closing: Ends a call.
        special: Markers that are one token each.
    """

    section_begin: str = ""
    call_begin: str
    name: str = "N"
    arg_begin: str
    arguments: Callable[[Arguments], str] = _json
    call_end: str
    between: str = ""
    section_end: str = ""
    before_calls: str = ""
    think_begin: str = ""
    think_end: str = "</think>"
    content_begin: str = ""
    content_end: str = ""
    always_content: bool = False
    final_begin: str = ""
    final_end: str = ""
    closing: str
    special: tuple[str, ...]

    def named(self, tool: str, number: int) -> str:
        """Returns the name of a call as the model writes it."""
        return _filled(self.name, {"N": tool, "I": str(number)})


_BLOCK = ("<tool_call>", "</tool_call>", "<think>", "</think>")
_QWEN3_CODER = ToolCallFormat(
    call_begin="<tool_call>\n<function=",
    arg_begin=">\n",
    arguments=_each("<parameter=K>\nV\n</parameter>\n", _python_text),
    call_end="</function>\n</tool_call>",
    between="\n",
    closing="</tool_call>",
    special=_BLOCK,
)
_STEP = replace(
    _QWEN3_CODER,
    arguments=_each("<parameter=K>\nV\n</parameter>\n"),
    think_end="\n</think>\n",
    before_calls="\n",
)
_GLM = ToolCallFormat(
    call_begin="<tool_call>",
    arg_begin="",
    arguments=_each("<arg_key>K</arg_key><arg_value>V</arg_value>"),
    call_end="</tool_call>",
    closing="</tool_call>",
    special=(*_BLOCK, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
_HY3 = ":opensource"
_DEEPSEEK = ToolCallFormat(
    section_begin="<｜tool▁calls▁begin｜>",
    call_begin="<｜tool▁call▁begin｜>",
    arg_begin="<｜tool▁sep｜>",
    call_end="<｜tool▁call▁end｜>",
    section_end="<｜tool▁calls▁end｜>",
    closing="<｜tool▁call▁end｜>",
    special=(
        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>", "<think>", "</think>",
    ),
)  # fmt: skip


def _dsml_format(wrapper: str, gap: str, special: tuple[str, ...]) -> ToolCallFormat:
    return ToolCallFormat(
        section_begin=f"<｜DSML｜{wrapper}>\n",
        call_begin=f'<｜DSML｜{gap}invoke name="',
        arg_begin='">\n',
        arguments=_dsml(gap),
        call_end=f"</｜DSML｜{gap}invoke>\n",
        section_end=f"</｜DSML｜{wrapper}>",
        before_calls="\n\n",
        closing=f"</｜DSML｜{gap}parameter>",
        special=special,
    )


def _cohere(begin: str, end: str) -> ToolCallFormat:
    return ToolCallFormat(
        section_begin="<|START_ACTION|>[\n",
        call_begin='    {"tool_call_id": "0", "tool_name": "',
        arg_begin='", "parameters": ',
        call_end="}",
        between=",\n",
        section_end="\n]<|END_ACTION|>",
        think_begin="<|START_THINKING|>",
        think_end="<|END_THINKING|>",
        final_begin=begin,
        final_end=end,
        closing="<|END_ACTION|>",
        special=("<|START_ACTION|>", "<|END_ACTION|>", "<|START_THINKING|>", "<|END_THINKING|>", begin, end),
    )


FORMATS = {
    "kimi_k2": ToolCallFormat(
        section_begin="<|tool_calls_section_begin|>",
        call_begin="<|tool_call_begin|>",
        name="functions.N:I",
        arg_begin="<|tool_call_argument_begin|>",
        call_end="<|tool_call_end|>",
        section_end="<|tool_calls_section_end|>",
        closing="<|tool_call_end|>",
        special=(
            "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<think>", "</think>",
        ),
    ),
    "qwen3_coder": _QWEN3_CODER,
    "hermes": ToolCallFormat(
        call_begin='<tool_call>\n{"name": "',
        arg_begin='", "arguments": ',
        call_end="}\n</tool_call>",
        between="\n",
        closing="</tool_call>",
        special=_BLOCK,
    ),
    "step3p5": _STEP,
    "nemotron_v3": replace(_STEP, arguments=_QWEN3_CODER.arguments),
    "step5": replace(_STEP, between=""),
    "mimo": replace(
        _STEP,
        call_begin="<tool_call><function=",
        arg_begin=">",
        arguments=_each("<parameter=K>V</parameter>"),
        call_end="</function></tool_call>",
        between="",
        think_begin="<think>",
        think_end="</think>",
        before_calls="",
    ),
    "seed_oss": replace(
        _STEP,
        call_begin="<seed:tool_call>\n<function=",
        arguments=_each("<parameter=K>V</parameter>\n", _python_text),
        call_end="</function>\n</seed:tool_call>",
        think_end="</seed:think>",
        before_calls="\n\n",
        closing="</seed:tool_call>",
        special=("<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>"),
    ),
    "glm47": _GLM,
    "ling3": _GLM,
    "laguna": _GLM,
    "laguna_s": _GLM,
    "longcat": replace(
        _GLM,
        call_begin="<longcat_tool_call>",
        arg_begin="\n",
        arguments=_each(
            "<longcat_arg_key>K</longcat_arg_key>\n<longcat_arg_value>V</longcat_arg_value>\n"
        ),
        call_end="</longcat_tool_call>",
        between="\n",
        think_end="</longcat_think>\n",
        closing="</longcat_tool_call>",
        special=tuple(re.sub("</?", r"\g<0>longcat_", marker) for marker in _GLM.special),
    ),
    "hy_v3": ToolCallFormat(
        section_begin=f"<tool_calls{_HY3}>\n",
        call_begin=f"<tool_call{_HY3}>",
        arg_begin=f"<tool_sep{_HY3}>\n",
        arguments=_each(f"<arg_key{_HY3}>K</arg_key{_HY3}>\n<arg_value{_HY3}>V</arg_value{_HY3}>\n"),
        call_end=f"</tool_call{_HY3}>\n",
        section_end=f"</tool_calls{_HY3}>",
        think_end=f"</think{_HY3}>",
        closing=f"</tool_call{_HY3}>",
        special=tuple(
            f"<{slash}{tag}{_HY3}>"
            for tag in ("think", "tool_calls", "tool_call", "tool_sep", "arg_key", "arg_value")
            for slash in ("", "/")
        ),
    ),
    "deepseek_v3": replace(
        _DEEPSEEK,
        call_begin="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        arg_begin="\n```json\n",
        call_end="\n```<｜tool▁call▁end｜>",
        between="\n",
    ),
    "deepseek_v31": _DEEPSEEK,
    "deepseek_v32": _dsml_format("function_calls", "", ("<think>", "</think>")),
    "deepseek_v4": _dsml_format("tool_calls", "", ("｜DSML｜", "<think>", "</think>")),
    "deepseek_v41": _dsml_format(" calls", " ", ("｜DSML｜", "<think>", "</think>")),
    "minimax_m2": ToolCallFormat(
        section_begin="<minimax:tool_call>\n",
        call_begin='<invoke name="',
        arg_begin='">\n',
        arguments=_each('<parameter name="K">V</parameter>\n'),
        call_end="</invoke>\n",
        section_end="</minimax:tool_call>",
        before_calls="\n",
        think_end="\n</think>\n\n",
        closing="</parameter>",
        special=("<minimax:tool_call>", "</minimax:tool_call>", "<think>", "</think>"),
    ),
    "minimax_m3": ToolCallFormat(
        section_begin=f"{_MARK}<tool_call>\n",
        call_begin=f'{_MARK}<invoke name="',
        arg_begin='">',
        arguments=_elements,
        call_end=f"{_MARK}</invoke>\n",
        section_end=f"{_MARK}</tool_call>",
        think_begin="<mm:think>",
        think_end="</mm:think>",
        closing=f"{_MARK}</invoke>",
        special=(_MARK, "<mm:think>", "</mm:think>"),
    ),
    "kimi_k3": ToolCallFormat(
        section_begin="<|open|>tools<|sep|>",
        call_begin='<|open|>call tool="',
        arg_begin='" index="I"<|sep|>',
        arguments=_xtml,
        call_end="<|close|>call<|sep|>",
        section_end="<|close|>tools<|sep|><|close|>message<|sep|>",
        think_end="<|close|>think<|sep|>",
        content_begin="<|open|>response<|sep|>",
        content_end="<|close|>response<|sep|>",
        always_content=True,
        final_begin="<|open|>response<|sep|>",
        final_end="<|close|>response<|sep|><|close|>message<|sep|>",
        closing="<|close|>argument<|sep|>",
        special=("<|open|>", "<|close|>", "<|sep|>"),
    ),
    "mistral": ToolCallFormat(
        call_begin="[TOOL_CALLS]",
        arg_begin="[ARGS]",
        call_end="",
        think_begin="[THINK]",
        think_end="[/THINK]",
        closing="[ARGS]",
        special=("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"),
    ),
    "cohere_command3": _cohere("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    "cohere_command4": replace(_cohere("<|START_TEXT|>", "<|END_TEXT|>"), think_begin=""),
    "gemma4": ToolCallFormat(
        call_begin="<|tool_call>call:",
        arg_begin="",
        arguments=_gemma,
        call_end="<tool_call|>",
        think_begin="<|channel>thought\n",
        think_end="<channel|>",
        closing="<tool_call|>",
        special=("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"),
    ),
    "bare": ToolCallFormat(
        section_begin="<|tool_call_start|>[",
        call_begin="",
        arg_begin="(",
        arguments=lambda arguments: ", ".join(f"{key}={value!r}" for key, value in arguments.items()),
        call_end=")",
        between=", ",
        section_end="]<|tool_call_end|>",
        closing="<|tool_call_end|>",
        special=("<|tool_call_start|>", "<|tool_call_end|>"),
    ),
    "harmony": ToolCallFormat(
        call_begin="<|channel|>commentary to=functions.",
        arg_begin=" <|constrain|>json<|message|>",
        call_end="<|call|>",
        between="<|start|>assistant",
        think_begin="<|channel|>analysis<|message|>",
        think_end="<|end|><|start|>assistant",
        content_begin="<|channel|>commentary<|message|>",
        content_end="<|end|><|start|>assistant",
        final_begin="<|channel|>final<|message|>",
        final_end="<|return|>",
        closing="<|call|>",
        special=(
            "<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>",
        ),
    ),
}  # fmt: skip
"""Formats by the name of their grammar."""
