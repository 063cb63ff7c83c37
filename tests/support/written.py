"""One call of `write_file`, as the model of each grammar writes it."""

import json
from collections.abc import Mapping

ARGUMENTS = {"path": "src/a.py", "content": "if a < b:\n    print('<x>')"}
PATH, CONTENT = ARGUMENTS.values()
SOUND = json.dumps(ARGUMENTS)
_XML = (
    f"<tool_call>\n<function=write_file>\n<parameter=path>\n{PATH}\n</parameter>\n"
    f"<parameter=content>\n{CONTENT}\n</parameter>\n</function>\n</tool_call>"
)
_GLM = (
    f"<tool_call>write_file<arg_key>path</arg_key><arg_value>{PATH}</arg_value>"
    f"<arg_key>content</arg_key><arg_value>{CONTENT}</arg_value></tool_call>"
)
_COHERE = (
    f'<|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": "write_file", "parameters": {SOUND}}}\n]<|END_ACTION|>'
)


def _hunyuan(separator: str) -> str:
    pairs = "\n".join(
        f"<arg_key:opensource>{key}</arg_key:opensource>\n<arg_value:opensource>{value}</arg_value:opensource>"
        for key, value in ARGUMENTS.items()
    )
    return (
        f"<tool_calls:opensource>\n<tool_call:opensource>write_file{separator}\n{pairs}\n</tool_call:opensource>\n"
        "</tool_calls:opensource>"
    )


def _dsml(wrapper: str, gap: str = "") -> str:
    bar = f"｜DSML｜{gap}"
    parameters = "".join(
        f'<{bar}parameter name="{key}" string="true">{value}</{bar}parameter>\n' for key, value in ARGUMENTS.items()
    )
    return f'<{bar}{wrapper}>\n<{bar}invoke name="write_file">\n{parameters}</{bar}invoke>\n</{bar}{wrapper}>'


def _minimax_m3() -> str:
    mark = "]<]minimax[>["
    values = "".join(f"{mark}<{key}>{value}{mark}</{key}>" for key, value in ARGUMENTS.items())
    return f'{mark}<tool_call>\n{mark}<invoke name="write_file">{values}{mark}</invoke>\n{mark}</tool_call>'


def _kimi_k3() -> str:
    values = "".join(
        f'<|open|>argument key="{key}" type="string"<|sep|>{value}<|close|>argument<|sep|>'
        for key, value in ARGUMENTS.items()
    )
    return (
        f'<|open|>tools<|sep|><|open|>call tool="write_file" index="1"<|sep|>{values}<|close|>call<|sep|>'
        "<|close|>tools<|sep|>"
    )


WRITTEN: Mapping[str, str] = {
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.write_file:0<|tool_call_argument_begin|>"
    f"{SOUND}<|tool_call_end|><|tool_calls_section_end|>",
    "qwen3_coder": _XML,
    "hermes": f'<tool_call>\n{{"name": "write_file", "arguments": {SOUND}}}\n</tool_call>',
    "glm47": _GLM,
    "ling3": _GLM,
    "laguna": _GLM,
    "laguna_s": _GLM,
    "longcat": "<longcat_tool_call>write_file\n"
    f"<longcat_arg_key>path</longcat_arg_key>\n<longcat_arg_value>{PATH}</longcat_arg_value>\n"
    f"<longcat_arg_key>content</longcat_arg_key>\n<longcat_arg_value>{CONTENT}</longcat_arg_value>\n"
    "</longcat_tool_call>",
    "hy_v3": _hunyuan("<tool_sep:opensource>"),
    "hy_v4": _hunyuan(""),
    "step3p5": _XML,
    "step5": _XML,
    "nemotron_v3": _XML,
    "mimo": f"<tool_call><function=write_file><parameter=path>{PATH}</parameter><parameter=content>{CONTENT}"
    "</parameter></function></tool_call>",
    "seed_oss": f"<seed:tool_call>\n<function=write_file>\n<parameter=path>{PATH}</parameter>\n"
    f"<parameter=content>{CONTENT}</parameter>\n</function>\n</seed:tool_call>",
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>write_file\n```json\n"
    f"{SOUND}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v31": f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>write_file<｜tool▁sep｜>{SOUND}<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>",
    "deepseek_v32": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "deepseek_v41": _dsml("calls", " "),
    "minimax_m2": f'<minimax:tool_call>\n<invoke name="write_file">\n<parameter name="path">{PATH}</parameter>\n'
    f'<parameter name="content">{CONTENT}</parameter>\n</invoke>\n</minimax:tool_call>',
    "minimax_m3": _minimax_m3(),
    "kimi_k3": _kimi_k3(),
    "mistral": f"[TOOL_CALLS]write_file[ARGS]{SOUND}",
    "cohere_command3": _COHERE,
    "cohere_command4": _COHERE,
    "gemma4": f'<|tool_call>call:write_file{{path:<|"|>{PATH}<|"|>,content:<|"|>{CONTENT}<|"|>}}<tool_call|>',
    "bare": f"<|python_start|>[write_file(path={PATH!r}, content={CONTENT!r})]<|python_end|>",
    "harmony": f"<|channel|>commentary to=functions.write_file <|constrain|>json<|message|>{SOUND}<|call|>",
}
