"""What each family writes: its markers, its calls in every form that its grammar reads, and what stands around them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "note": {"type": ["string", "null"]}},
        "required": ["city"]}}},
    {"type": "function", "function": {"name": "mcp.fs.write", "parameters": {
        "type": "object", "properties": {"path": {"type": "string"}, "tags": {"type": "array"}}}}},
]  # fmt: skip
Call = Callable[[str, int], str]  # city and number of days -> a call of get_weather


@dataclass(frozen=True)
class Format:
    """What one grammar reads.

    Attributes:
        markers: For random mixtures: all kinds, well-formed, damaged and misspelt.
        units: A pattern of what counts as one marker where a text is cut or damaged.
        forms: Well-formed calls; the first is what the model's template prints.
        wrapper: Around all calls of an answer, if each call does not bring its own.
        end_of_thinking: The text that ends reasoning.
        answer: An answer that begins in reasoning, with text behind its calls.
        argument: An argument with tags of its own; None if all arguments are one JSON object.
        end: What stands behind the last argument, where arguments have tags.
        nested: Values may hold elements, and those of one name, with the text between them, stand together in JSON.
    """

    markers: Sequence[str]
    units: str
    forms: Sequence[Call]
    wrapper: tuple[str, str] = ("", "")
    end_of_thinking: str = "</think>"
    answer: str = "{reasoning}{end_of_thinking}{content}{calls}{rest}"
    argument: Callable[[str, object], str] | None = None
    end: str = ""
    nested: bool = False


def in_json(city: str, number: int) -> str:
    return json.dumps({"city": city, "days": number}, ensure_ascii=False)


def in_tags(argument: Callable[[str, object], str], city: str, number: int) -> str:
    return argument("city", city) + argument("days", number)


def hermes_call(city: str, number: int) -> str:
    return f'<tool_call>\n{{"name": "get_weather", "arguments": {in_json(city, number)}}}\n</tool_call>'


# Kimi K2 and DeepSeek: sections of calls in JSON

KIMI_K2 = Format(
    markers=["<|tool_calls_section_begin|>", "<|tool_call_section_begin|>", "<|tool_calls_section_end|>",
             "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<think>", "</think>"],
    units=r"<\|[a-z_]+\|>|</?think>",
    forms=[
        lambda city, number: f"<|tool_call_begin|>functions.get_weather:{number}<|tool_call_argument_begin|>"
        f"{in_json(city, number)}<|tool_call_end|>"
    ],
    wrapper=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
)  # fmt: skip


def deepseek_v3_call(city: str, number: int) -> str:
    body = f"get_weather\n```json\n{in_json(city, number)}\n```"
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{body}<｜tool▁call▁end｜>"


def deepseek_v31_call(city: str, number: int) -> str:
    return f"<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{in_json(city, number)}<｜tool▁call▁end｜>"


DEEPSEEK_V3 = Format(
    markers=["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
             "<｜tool▁call▁end｜>", "<｜tool▁outputs▁begin｜>", "<｜end▁of▁sentence｜>", "<|tool_call_begin|>",
             "<|tool▁sep|>", "<｜tool_call_end｜>", "<think>", "</think>",
             "function<｜tool▁sep｜>get_weather\n```json\n", "\n```"],
    units=r"<｜[^｜<>]+｜>|</?think>",
    forms=[deepseek_v3_call, deepseek_v31_call],
    wrapper=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
)  # fmt: skip
DEEPSEEK_V31 = replace(DEEPSEEK_V3, forms=[deepseek_v31_call, deepseek_v3_call])

# DSML

DSML_MARKERS = [
    "<｜DSML｜function_calls>", "</｜DSML｜function_calls>", '<｜DSML｜invoke name="get_weather">', "</｜DSML｜invoke>",
    '<｜DSML｜parameter name="city" string="true">', '<｜DSML｜parameter name="days" string="false">',
    '<｜DSML｜parameter name="note">', "</｜DSML｜parameter>", "<think>", "</think>", "<｜end▁of▁sentence｜>",
    '<｜DSML｜invoke name="get_weather"/>', '<｜DSML｜parameter name="arguments" string="false">',
    "</｜DSML｜parameter\n", "<|DSML|tool_calls>", '<invoke name="get_weather">', '<parameter name="city">',
    "</invoke>", "</parameter>", "<tool_calls>", '<｜DSML｜invoke name="x', '<｜DSML｜invoke name="x y">',
    "<｜DSML｜toolcalls>", "｜DSML｜", "<|DSML|tool_use>", '｜DSML｜invoke name="get_weather">',
    "<｜DSML｜function_calls\n", "<｜DSML｜r:function_calls>", '<｜DSML｜r:invoke name="get_weather">',
    '<｜DSML｜r:parameter name="city" string="true">',
]  # fmt: skip
DSML_TAGS = {  # what stands behind the bracket of each tag, and of the wrapper's
    "deepseek_v32": ("｜DSML｜", "｜DSML｜function_calls"),
    "deepseek_v4": ("｜DSML｜", "｜DSML｜tool_calls"),
    "deepseek_v41": ("｜DSML｜ ", "｜DSML｜ calls"),
}


def dsml(grammar: str, markers: Sequence[str]) -> Format:
    token, wrapper = DSML_TAGS[grammar]

    def argument(key: str, value: object) -> str:
        is_string = "true" if isinstance(value, str) else "false"
        return f'\n<{token}parameter name="{key}" string="{is_string}">{value}</{token}parameter>'

    def invoke(body: str) -> str:
        return f'<{token}invoke name="get_weather">{body}</{token}invoke>'

    def bare(city: str, number: int) -> str:
        return invoke(in_tags(argument, city, number) + "\n")

    return Format(
        markers=markers,
        units=r"</?[｜|‖ ]*DSML[｜|‖]+ ?[^<>]*>|<｜[^｜<>]+｜>|</?think>",
        forms=[
            lambda city, number: f"<{wrapper}>\n{bare(city, number)}\n</{wrapper}>",
            bare,
            lambda city, number: f"<{wrapper}>\n{invoke(in_json(city, number))}\n</{wrapper}>",
        ],
        argument=argument,
        end=f"</{token}invoke>",
    )


# Qwen3-Coder and its kin


def qwen3_coder(newline: str = "\n") -> Format:
    def argument(key: str, value: object) -> str:
        return f"<parameter={key}>{newline}{value}{newline}</parameter>{newline}"

    def around(body: str) -> str:
        return newline.join(["<tool_call>", "<function=get_weather>", f"{body}</function>", "</tool_call>"])

    def call(city: str, number: int) -> str:
        return around(in_tags(argument, city, number))

    return Format(
        markers=["<tool_call>", "</tool_call>", "<function=get_weather>", "<function=x y>", "</function>",
                 "<parameter=city>", "<parameter=days>", "<parameter=a=b>", "</parameter>", "</parameter1>",
                 "<think>", "</think>", "<function=", "<parameter=", '<function name="get_weather">',
                 '<parameter name="city">', '<parameter name="a"/>', "</function_invocation>"],
        units=r"</?think>|</?tool_call>|<function=[^>]*>|</function>|<parameter=[^>]*>|</parameter>",
        forms=[
            call,
            hermes_call,
            lambda city, number: re.sub(r"<(function|parameter)=(\w+)>", r'<\1 name="\2">', call(city, number)),
            lambda city, number: around(in_json(city, number) + newline),
        ],
        argument=argument,
        end="</function>",
    )  # fmt: skip


# GLM, LongCat's prefix and Hy3's wrapper around the same


def glm(markers: Sequence[str], newline: str = "", separator: str = "", suffix: str = "", prefix: str = "") -> Format:
    def tagged(text: str) -> str:
        """The text with the prefix of LongCat's tags, or the suffix of Hy3's or a checkpoint of Hy4's."""
        return re.sub(r"<(/?)(think|tool_\w+|arg_\w+)>", rf"<\1{prefix}\2{suffix}>", text)

    begin_key, end_key, begin, end = map(tagged, ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"))

    def argument(key: str, value: object) -> str:
        return f"{begin_key}{key}{end_key}{newline}{begin}{value}{end}{newline}"

    def around(body: str) -> str:
        return tagged(f"<tool_call>get_weather{separator}") + newline + body + tagged("</tool_call>")

    def call(city: str, number: int) -> str:
        return around(in_tags(argument, city, number))

    return Format(
        markers=markers,
        units=rf"</?{prefix}(?:think|tool_calls?|tool_sep|arg_key|arg_value)(?::\w+)?>",
        forms=[
            call,
            lambda city, number: tagged(hermes_call(city, number)),
            # as GLM 4.5 writes it
            lambda city, number: re.sub(rf"(get_weather|{end_key}|{end})", r"\1\n", call(city, number)),
            lambda city, number: around(in_json(city, number) + newline),
        ],
        wrapper=(tagged("<tool_calls>\n"), tagged("\n</tool_calls>")) if suffix else ("", ""),
        end_of_thinking=tagged("</think>"),
        argument=argument,
        end=tagged("</tool_call>"),
    )


GLM_MARKERS = [
    "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<think>", "</think>",
    "<tool_call>get_weather", "<arg_key>city</arg_key>", "<arg_key>days</arg_key><arg_value>",
]  # fmt: skip
LONGCAT_MARKERS = [re.sub("</?", r"\g<0>longcat_", marker) for marker in GLM_MARKERS]
HY_MARKERS = [
    "<tool_calls:opensource>", "</tool_calls:opensource>", "<tool_call:opensource>", "<tool_call>",
    "</tool_call:opensource>", "<tool_sep:opensource>", "<arg_key:opensource>", "</arg_key:opensource>",
    "<arg_value:opensource>", "</arg_value:opensource>", "<think:opensource>", "</think:opensource>",
    "</tool_call:6124c78e>", "<end_of_tool_call:opensource>", "<tool_calls>", "</tool_calls>",
    "<tool_call:opensource>get_weather",
    "<arg_key:opensource>city</arg_key:opensource>",
]  # fmt: skip

# MiniMax

MARK = "]<]minimax[>["


def minimax_m2() -> Format:
    def argument(key: str, value: object) -> str:
        return f'<parameter name="{key}">{value}</parameter>\n'

    def around(body: str) -> str:
        return f'<minimax:tool_call>\n<invoke name="get_weather">\n{body}</invoke>\n</minimax:tool_call>'

    def call(city: str, number: int) -> str:
        return around(in_tags(argument, city, number))

    return Format(
        markers=["<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="get_weather">', "<invoke name='x y'>",
                 "</invoke>", '<parameter name="city">', "<parameter name=days>", '<parameter name="a" b="c"/>',
                 "</parameter>", "</parameter\n", "<think>", "</think>", "<invoke", '<parameter name="'],
        units=r"</?(?:minimax:tool_call|invoke|parameter)\b[^<>]*>|</?think>",
        forms=[
            call,
            lambda city, number: re.sub(r'="(\w+)"', r"=\1" if number % 2 else r"='\1'", call(city, number)),
            lambda city, number: hermes_call(city, number).replace("tool_call", "minimax:tool_call"),
            lambda city, number: around(in_json(city, number)),
        ],
        argument=argument,
        end="</invoke>",
    )  # fmt: skip


def minimax_m3() -> Format:
    def argument(key: str, value: object) -> str:
        return f"{MARK}<{key}>{value}{MARK}</{key}>"

    def call(city: str, number: int) -> str:
        invoke = f'{MARK}<invoke name="get_weather">{in_tags(argument, city, number)}{MARK}</invoke>'
        return f"{MARK}<tool_call>\n{invoke}\n{MARK}</tool_call>"

    def named(tag: re.Match[str]) -> str:
        return f"<{tag[1]}parameter{'' if tag[1] else f' name={tag[2]}'}>"

    return Format(
        markers=[MARK, f"{MARK}<", f"{MARK}<tool_call>", f"{MARK}</tool_call>", f'{MARK}<invoke name="get_weather">',
                 f"{MARK}invoke name='x y'>", f'{MARK}<invoke name="mcp.fs.write">', f"{MARK}</invoke>",
                 f"{MARK}<city>", f"{MARK}</city>", f"{MARK}<days>", f"{MARK}</days>", f"{MARK}<tags>",
                 f"{MARK}</tags>", f"{MARK}<item>", f"{MARK}</item>", f"{MARK}<x y>", f"{MARK}<tags/>", "city>",
                 f'{MARK}<parameter name="city">', f"{MARK}</parameter>", "<city>", "</city>", "<mm:think>",
                 "</mm:think>"],
        units=r"\]<\]minimax\[>\[|</?mm:think>|</?(?:tool_call|invoke|parameter)\b[^<>]*>",
        forms=[
            call,
            lambda city, number: re.sub(
                re.escape(MARK) + "<(city|days|/invoke)", rf"\n{MARK}<\1", call(city, number)
            ),
            lambda city, number: re.sub(r"<(/?)(city|days)>", named, call(city, number)),
        ],
        end_of_thinking="</mm:think>",
        argument=argument,
        end=f"{MARK}</invoke>",
        nested=True,
    )  # fmt: skip


# Kimi K3 and gpt-oss


def kimi_k3() -> Format:
    tag = '<|open|>call tool="get_weather" index="1"<|sep|>'
    end = "<|close|>call<|sep|>"

    def argument(key: str, value: object) -> str:
        kind = "string" if isinstance(value, str) else "number"
        return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'

    return Format(
        markers=["<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>", "<|open|>think<|sep|>", "<|close|>think<|sep|>",
                 "<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|open|>tools<|sep|>", "<|close|>tools<|sep|>",
                 tag, end, "<|open|>call<|sep|>", '<|open|>argument key="city" type="string"<|sep|>',
                 '<|open|>argument key="days" type="number"<|sep|>', "<|close|>argument<|sep|>",
                 '<|open|>json type="object"<|sep|>', "<|close|>json<|sep|>", "<|close|>message<|sep|>",
                 'call tool="get_weather" index="1"', "argument", "<|open|>x<|sep|>"],
        units=r"<\|[a-z_]+\|>",
        forms=[
            lambda city, number: f"{tag}{in_tags(argument, city, number)}{end}",
            lambda city, number: f'{tag}<|open|>json type="object"<|sep|>{in_json(city, number)}'
            f"<|close|>json<|sep|>{end}",
        ],
        wrapper=("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
        end_of_thinking="<|close|>think<|sep|>",
        answer="{reasoning}{end_of_thinking}<|open|>response<|sep|>{content}<|close|>response<|sep|>{calls}"
        "<|close|>message<|sep|>{rest}",
        argument=argument,
        end=end,
    )  # fmt: skip


def harmony_call(head: str) -> Call:
    return lambda city, number: f"<|start|>assistant{head}<|message|>{in_json(city, number)}<|call|>"


HARMONY = Format(
    markers=["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>",
             "assistant", " to=functions.get_weather", "analysis", "commentary", "final", " json"],
    units=r"<\|[a-z_]+\|>",
    forms=[
        harmony_call("<|channel|>commentary to=functions.get_weather <|constrain|>json"),
        harmony_call(" to=functions.get_weather<|channel|>commentary json"),
        harmony_call(" to=functions.get_weather<|channel|>analysis json"),
    ],
    end_of_thinking="<|end|>",
    answer="{reasoning}{end_of_thinking}<|start|>assistant<|channel|>final<|message|>{content}<|end|>{calls}"
    "<|start|>assistant<|channel|>final<|message|>{rest}<|return|>",
)  # fmt: skip

QWEN3_CODER = qwen3_coder()


MISTRAL = Format(
    markers=["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[THINK]", "[/THINK]", "[TOOL_CALLS]get_weather", "[TOOL_CALLS",
             "[TOOL_CALLS]get_weather[ARGS]", "get_weather[ARGS]{", "[TOOL_CALLS] [", "}]"],
    units=r"\[/?[A-Z_]+\]",
    forms=[
        lambda city, number: f"[TOOL_CALLS]get_weather[ARGS]{in_json(city, number)}",
        lambda city, number: f"[TOOL_CALLS]get_weather{in_json(city, number)}",
        lambda city, number: f"[TOOL_CALLS]get_weather[CALL_ID]a{number}[ARGS]{in_json(city, number)}",
        lambda city, number: f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {in_json(city, number)}}}]',
    ],
    end_of_thinking="[/THINK]",
)  # fmt: skip


def gemma4() -> Format:
    def argument(key: str, value: object) -> str:
        return f",{key}:" + (f'<|"|>{value}<|"|>' if isinstance(value, str) else str(value))

    def call(city: str, number: int) -> str:
        return f"<|tool_call>call:get_weather{{{in_tags(argument, city, number)[1:]}}}<tool_call|>"

    return Format(
        markers=["<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>thought\n", "<|channel>", "<channel|>",
                 "<|tool_call>call:get_weather{", "city:", ",days:3", '{city:<|"|>', '<|"|>}', "[", "call:x{"],
        units=r'<\|channel>thought\n|<\|(?:tool_call|")?\|?>|<(?:tool_call|channel)\|>',
        forms=[call],
        end_of_thinking="<channel|>",
        argument=argument,
        end="}<tool_call|>",
    )  # fmt: skip


def seed_oss() -> Format:
    def tagged(text: str) -> str:
        return re.sub(r"<(/?)(tool_call|think)>", r"<\1seed:\2>", text)

    def argument(key: str, value: object) -> str:
        return f"<parameter={key}>{value}</parameter>\n"

    def call(city: str, number: int) -> str:
        body = in_tags(argument, city, number)
        return f"<seed:tool_call>\n<function=get_weather>\n{body}</function>\n</seed:tool_call>"

    return Format(
        markers=[*map(tagged, QWEN3_CODER.markers), "<seed:cot_budget_reflect>", "<tool_call>"],
        units=tagged(QWEN3_CODER.units).replace("</?think>|</?tool_call>", "</?seed:\\w+>"),
        forms=[call, lambda city, number: tagged(hermes_call(city, number))],
        end_of_thinking="</seed:think>",
        argument=argument,
        end="</function>",
    )


def cohere_call(city: str, number: int) -> str:
    return f'{{"tool_call_id": "{number}", "tool_name": "get_weather", "parameters": {in_json(city, number)}}}'


COHERE = Format(
    markers=["<|START_THINKING|>", "<|END_THINKING|>", "<|START_ACTION|>", "<|END_ACTION|>", "<|START_RESPONSE|>",
             "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>", "<|START_ACTION|>[", "]<|END_ACTION|>",
             '{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {', '"tool_name"'],
    units=r"<\|[A-Z_]+\|>",
    forms=[
        lambda city, number: f"<|START_ACTION|>[\n    {cohere_call(city, number)}\n]<|END_ACTION|>",
        lambda city, number: f"<|START_ACTION|>{cohere_call(city, number)}<|END_ACTION|>",
    ],
    end_of_thinking="<|END_THINKING|>",
    answer="{reasoning}{end_of_thinking}<|START_TEXT|>{content}<|END_TEXT|>{calls}{rest}",
)  # fmt: skip


BARE = Format(
    markers=["<|tool_call_start|>", "<|tool_call_end|>", "<|python_tag|>", "<|python_start|>", "<function_calls>",
             "</function_calls>", "<|tool_call|>", "functools[", "<think>", "</think>", "<|tool_call_start|>[",
             "[get_weather(", "get_weather(city='", "', days=", '")]', ")]", '{"name": "get_weather", "parameters": {',
             "get_weather()", "\\", "'''"],
    units=r"<\|(?:tool_call(?:_start|_end)?|python_(?:tag|start|end))\|>|</?function_calls>|functools\[|</?think>",
    forms=[
        lambda city, number: f"<|tool_call_start|>[get_weather(city={city!r}, days={number})]<|tool_call_end|>",
        lambda city, number: f"<|python_start|>[get_weather(city={json.dumps(city)}, days={number})]<|python_end|>",
        lambda city, number: f"<function_calls>\nget_weather(days={number}, city={city!r})\n</function_calls>",
        lambda city, number: f'<|python_tag|>{{"name": "get_weather", "parameters": {in_json(city, number)}}}; ',
        lambda city, number: f'<|tool_call|>[{{"name": "get_weather", "arguments": {in_json(city, number)}}}]',
        lambda city, number: f'functools[{{"name": "get_weather", "arguments": {in_json(city, number)}}}]',
    ],
    argument=lambda key, value: f", {key}={value!r}",
    end=")]",
)  # fmt: skip


FORMATS: Mapping[str, Format] = {
    "kimi_k2": KIMI_K2,
    "qwen3_coder": QWEN3_CODER,
    "hermes": Format(
        markers=["<tool_call>", "</tool_call>", "</function>", "</parameter>", "<think>", "</think>"],
        units="</?think>|</?tool_call>",
        forms=[
            hermes_call,
            lambda city, number: (
                f'<tool_call>[{{"name": "get_weather", "arguments": {in_json(city, number)}}}]</tool_call>'
            ),
        ],
    ),
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v31": DEEPSEEK_V31,
    "deepseek_v32": dsml("deepseek_v32", DSML_MARKERS),
    "deepseek_v4": dsml("deepseek_v4", [marker.replace("function_calls", "tool_calls") for marker in DSML_MARKERS]),
    "deepseek_v41": dsml(
        "deepseek_v41",
        [marker.replace("｜function_", "｜").replace("DSML｜", "DSML｜ ", 1) for marker in DSML_MARKERS],
    ),
    "step3p5": QWEN3_CODER,
    "step5": QWEN3_CODER,
    "nemotron_v3": QWEN3_CODER,
    "mimo": qwen3_coder(newline=""),
    "seed_oss": seed_oss(),
    "glm47": glm(GLM_MARKERS),
    "ling3": glm(GLM_MARKERS),
    "laguna": glm(GLM_MARKERS),
    "laguna_s": glm(GLM_MARKERS),
    "longcat": glm(LONGCAT_MARKERS, newline="\n", prefix="longcat_"),
    "hy_v3": glm(HY_MARKERS, newline="\n", separator="<tool_sep>", suffix=":opensource"),
    "hy_v4": glm(HY_MARKERS, newline="\n", suffix=":6124c78e"),
    "minimax_m2": minimax_m2(),
    "minimax_m3": minimax_m3(),
    "kimi_k3": kimi_k3(),
    "harmony": HARMONY,
    "mistral": MISTRAL,
    "gemma4": gemma4(),
    "cohere_command3": COHERE,
    "cohere_command4": COHERE,
    "bare": BARE,
}
MARKERS = {grammar: form.markers for grammar, form in FORMATS.items()}
UNIT = re.compile("|".join([*dict.fromkeys(form.units for form in FORMATS.values()), "."]), re.DOTALL)


def good_call(grammar: str, city: str, number: int) -> str:
    """A well-formed call, as the models' templates print it."""
    return FORMATS[grammar].forms[0](city, number)


def any_call(grammar: str, form: int, city: str, number: int) -> str:
    """A call in any form that a grammar reads."""
    forms = FORMATS[grammar].forms
    return forms[form % len(forms)](city, number)


def wrapped(grammar: str, calls: str) -> str:
    """Calls with what stands around all of them."""
    return calls.join(FORMATS[grammar].wrapper)


def answer(grammar: str, reasoning: str, content: str, calls: str, rest: str = "") -> str:
    """A whole answer that begins in reasoning, with text behind its calls."""
    form = FORMATS[grammar]
    return form.answer.format(
        reasoning=reasoning,
        end_of_thinking=form.end_of_thinking,
        content=content,
        calls=wrapped(grammar, calls),
        rest=rest,
    )


def with_second_city(grammar: str) -> str:
    """A well-formed call that gives its city twice."""
    form = FORMATS[grammar]
    call = good_call(grammar, "Bern", 1)
    if form.argument is None:
        return call.replace('"days"', '"city": "Rome", "days"')
    return call.replace(form.end, form.argument("city", "Rome") + form.end)
