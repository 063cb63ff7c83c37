"""The guard knows the markers of every format: a leak of any family is seen in any pool, and ordinary code is none."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.config.guard import GuardConfig
from serve.guard.core import check_answer
from serve.guard.core.leak_scanner import LeakScanner
from serve.guard.core.markup import CANONICAL, ENDS_OF_TURNS, MARKUP, STARTS, canonical
from serve.guard.core.shape import MarkerShape, words_of_a_call
from serve.guard.core.verdict import Outcome, Severity

_FILE = Path(__file__).parents[5] / "shared" / "conformance" / "families" / "markers.json"
TOOLS = {"bash", "read_file", "mcp.files.read"}

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


def listed() -> dict[str, dict[str, Any]]:
    parsers: dict[str, dict[str, Any]] = {}
    for engine in json.loads(_FILE.read_bytes())["tool_parsers"].values():
        parsers |= engine
    return parsers


@pytest.mark.skipif(not _FILE.exists(), reason="the study of markers is not here")
def test_every_marker_of_every_parser_is_known_or_left_out_for_a_reason() -> None:
    reasoning = json.loads(_FILE.read_bytes())["reasoning_parsers"]
    texts = [text for parser in listed().values() for text in (*parser["call_openers"], *parser["more"])]
    texts += [text for parser in reasoning.values() for text in parser["markers"]]
    unknown = {text for text in texts if text not in NOT_MARKERS and MARKUP.search(text) is None}
    assert not unknown


def test_a_marker_is_found_whole_and_each_spelling_means_one() -> None:
    for spelling, meant in CANONICAL.items():
        match = MARKUP.match(spelling)
        assert match is not None
        assert match.group() == spelling
        assert canonical(meant) == meant
        assert spelling.startswith("◁") or any(start in spelling for start in STARTS)


def test_no_marker_is_the_beginning_of_another_so_that_no_cut_decides_which_it_is() -> None:
    texts = sorted(CANONICAL)
    assert not [(one, two) for one, two in pairwise(texts) if two.startswith(one)]


# One call of bash, as each format writes it; taken from the engines' documentation of their parsers.
CALLS = {
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>bash\n```json\n{}\n```",
    "deepseek_v31": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>bash<｜tool▁sep｜>{"command": "ls"}<｜tool▁call▁end｜>',
    "deepseek_v31 with plain bars": "<|tool▁calls▁begin|><|tool▁call▁begin|>bash<|tool▁sep|>{}",
    "deepseek_v32": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="bash">\n</｜DSML｜invoke>',
    "deepseek_v4": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="bash">\n</｜DSML｜invoke>',
    "deepseek_v4 with plain bars": '<|DSML|tool_calls>\n<|DSML|invoke name="bash">',
    "deepseek_v4 with double bars": '<||DSML||tool_calls>\n<||DSML||invoke name="bash">',
    "deepseek_v4 with two full bars": '<｜｜DSML｜｜tool_calls>\n<｜｜DSML｜｜invoke name="bash">',
    "deepseek_v4 with double strokes": '<‖DSML‖tool_calls>\n<‖DSML‖invoke name="bash">',
    "deepseek_v4 with a fence": '<｜DSML｜toolcall>bash\n\n```json\n{"command": "ls"}\n```',
    "deepseek_v4 with blanks": '< | DSML | tool_calls>\n< | DSML | invoke name="bash">',
    "deepseek_v4 with a prefix": '<｜DSML｜r:tool_calls>\n<｜DSML｜r:invoke name="bash">',
    "deepseek_v4 without wrapper": '<｜DSML｜invoke name="bash">\n<｜DSML｜parameter name="command"',
    "deepseek_v41 with two full bars": '<｜｜DSML｜｜ calls>\n<｜｜DSML｜｜ invoke name="bash">',
    "deepseek_v41": '<｜DSML｜ calls>\n<｜DSML｜ invoke name="bash">',
    "deepseek with its token dropped": '<function_calls>\n<invoke name="bash">\n<parameter name="command">',
    "glm": "<tool_call>bash<arg_key>command</arg_key><arg_value>ls</arg_value></tool_call>",
    "glm, no arguments": "<tool_call>bash</tool_call>",
    "glm, no arguments, with the end of a value": "<tool_call>bash</arg_value></tool_call>",
    "glm, with words": '<tool_call>bash command="ls"</tool_call>',
    "glm, with an object": '<tool_call>bash\n{"command": "ls"}\n</tool_call>',
    "glm45": "<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>",
    "granite": '<|tool_call|>[{"name": "bash", "arguments": {}}]',
    "granite, second form": '<tool_call>[{"name": "bash", "arguments": {}}]',
    "granite 20b": '<function_call> {"name": "bash", "arguments": {}}',
    "cohere": '<|START_ACTION|>[\n{"tool_call_id": "0", "tool_name": "bash", "parameters": {}}]<|END_ACTION|>',
    "hunyuan_a13b": '<tool_calls>[{"name": "bash", "arguments": {}}]</tool_calls>',
    "hy_v3": "<tool_calls:opensource>\n<tool_call:opensource>bash<tool_sep:opensource>\n",
    "hy_v3 preview": "<tool_calls>\n<tool_call>bash<tool_sep>\n<arg_key>command</arg_key>",
    "internlm": '<|action_start|><|plugin|>{"name": "bash", "parameters": {}}<|action_end|>',
    "jamba": '<tool_calls>[\n{"name": "bash", "arguments": {}}\n]</tool_calls>',
    "lfm2": "<|tool_call_start|>[bash(command='ls')]<|tool_call_end|>",
    "kimi_k3": '<|open|>tools<|sep|><|open|>call tool="bash" index="1"<|sep|><|open|>argument key="command"',
    "k2_horizon": "<ifm|tool_calls><ifm|tool_call>bash<ifm|arg_key>command",
    "llama": '<|python_tag|>{"name": "bash", "parameters": {}}',
    "llama4 pythonic": "<|python_start|>[bash(command='ls')]<|python_end|>",
    "longcat": "<longcat_tool_call>bash\n<longcat_arg_key>command</longcat_arg_key>",
    "longcat, no arguments": "<longcat_tool_call>bash\n</longcat_tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="bash">\n<parameter name="command">ls</parameter>\n</invoke>',
    "minimax_m3": ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="bash">]<]minimax[>[<command>ls',
    "minicpm5": '<function name="bash"><param name="command">ls</param></function>',
    "mistral": '[TOOL_CALLS]bash[ARGS]{"command": "ls"}',
    "mistral, first form": '[TOOL_CALLS] [{"name": "bash", "arguments": {}}]',
    "muse": '<atem:function_calls>\n<atem:invoke name="bash">',
    "harmony": '<|channel|>commentary to=functions.bash <|constrain|>json<|message|>{"command": "ls"}<|call|>',
    "harmony, recipient first": "<|start|>assistant to=functions.bash<|channel|>commentary json<|message|>{}",
    "seed_oss": "<seed:tool_call>\n<function=bash>\n<parameter=command>ls</parameter>",
    "step3": '<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="bash">',
    "inkling": '<|content_invoke_tool_json|>{"name": "bash"}',
    "gigachat3": '<|role_sep|>\n{"name": "bash", "arguments": {}}',
    "functiongemma": "<start_function_call>call:bash{command:ls}<end_function_call>",
    "gemma4": '<|tool_call>call:bash{command:<|"|>ls<|"|>}<tool_call|>',
    "apertus": '<|tools_prefix|>[{"bash": {}}, {"name": "bash"}]<|tools_suffix|>',
}  # fmt: skip


def scanned(pieces: list[str], name: str = "content") -> tuple[str, str, MarkerShape, bool]:
    scanner = LeakScanner(name, TOOLS, patient=True, document=False)
    passed = "".join(map(scanner.feed, pieces))
    passed += scanner.finish()
    return passed, scanner.leak, scanner.shape, scanner.strayed


def cut(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("before", ["", "I look:\n\n", "Let me see."])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_of_any_format_is_a_leak_in_any_pool(call: str, before: str, size: int) -> None:
    assert scanned(cut(before + call, size)) == (before, call, MarkerShape.CALL, False)


STRAYS = {
    "a channel": "<|channel|>analysis<|message|>Let me think.",
    "a channel of K3": "<|open|>response<|sep|>Hello.",
    "a call of K3 that lost markers": '<|open|>toolscall tool="bash" index="1"<|sep|><|open|>argument key="command"',
    "tags of K3 that run together": 'passesresponse<|sep|><|open|>toolscall tool="Shell" index="1"<|sep|>x',
    "the end of one": "Hello.<|close|>response<|sep|>",
    "ends of several": "Hello.<|close|>argument\n<|close|>toolsresponse<|sep|>",
    "an argument of no call": "<arg_key>filePath</arg_key> is it.",
    "an argument of no call of LongCat's": "<longcat_arg_key>filePath</longcat_arg_key> is it.",
    "a wrapper that stays empty": "<｜tool▁calls▁begin｜>",
    "half a marker": "Hello.]<]minima",
    "the end of MiniMax's turn": "Hello.[e~[",
    "results that a model makes up": "<|tool_response><|tool_response>",
    "a call of no such tool": "<tool_call>drop_table<arg_key>a</arg_key>",
    "a thought": "<mm:think>Hm.",
    "the end of a thought that nothing began": "I look.\n</thinking>\n\nThis is it.",
    "the end of reasoning": "I look.\n</reasoning>\n\nThis is it.",
}


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("text", STRAYS.values(), ids=STRAYS)
def test_what_belongs_to_no_call_is_stray(text: str, size: int) -> None:
    assert scanned(cut(text, size))[2] is MarkerShape.STRAY


MENTIONS = (
    "The marker `<｜tool▁calls▁begin｜>` opens a block of calls.",
    "Then <minimax:tool_call> opens a block, and </minimax:tool_call> closes it.",
    "In harmony the <|channel|> marker names a channel, and <|message|> begins its text.",
    "Run it as `prog [OPTIONS] [ARGS]`; or prog [OPTIONS] [ARGS]",
    "[TOOL_CALLS] is what Mistral writes first.",
    "[TOOL_CALLS]\nenabled = true\n",
    "functools[0] is no call, and functools.partial is one.",
    'In K3 a call is written as `call tool="bash" index="1"`.',
    "Use `to=functions.bash` in the header.",
    "```\n<|open|>tools<|sep|><|open|>call tool=\"bash\" index=\"1\"<|sep|>\n```\nis a call.",
    '```xml\n<invoke name="bash">\n</invoke>\n```\n',
    '<invoke name="System.String" />\nis WiX.',
    "a[0] = b[i]; c = d[[1, 2]]; x = [y for y in z]\nif a < b and c > d: pass",
    "<response>ok</response>",
    "<thinking>\nI look.\n</thinking>\n\nThis is it.",
    "Begin with <reasoning>, and end with </reasoning> or </thinking>.",
    "<details>\n<summary>bash</summary>\n</details>",
    "<bash>\n<table><tr><td>is an element here</td></tr></table>\n</bash>",
    "[Tool calls](bash.md) and [Tool call: bash](bash.md) are pages.",
    "[bash()](bash.md) and [bash(command)] are words.",
    "[bash(x) for x in y]\n[bash(1)]",
    "Then it reads <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call> as a call.",
    "```xml\n<bash>\n<command>ls</command>\n</bash>\n```",
    "<tool_calls> is plain XML here, and so is </function_calls> and </invoke>.",
)  # fmt: skip


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("text", MENTIONS)
def test_a_word_about_markup_is_text(text: str, size: int) -> None:
    assert scanned(cut(text, size)) == (text, "", MarkerShape.MENTION, False)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("end", ENDS_OF_TURNS)
def test_the_end_of_a_turn_is_stray_behind_a_text(end: str, size: int) -> None:
    assert scanned(cut(f"It is sunny.{end}", size))[:3] == ("It is sunny.", end, MarkerShape.STRAY)
    for text in (f"A turn ends with `{end}`.", f"With {end} a turn ends."):
        assert scanned(cut(text, size)) == (text, "", MarkerShape.MENTION, False)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("begin", ["<｜begin▁of▁sentence｜>", "<|begin_of_sentence|>", "<|begin_of_text|>"])
def test_the_beginning_of_a_prompt_is_stray_right_behind_a_word_or_a_sentence(begin: str, size: int) -> None:
    for said in ("It is sunny.", "It is sun"):
        leak = f"{begin}You are right, I read the file."
        assert scanned(cut(said + leak, size))[:3] == (said, leak, MarkerShape.STRAY)
    for text in (f"A prompt begins with {begin}You", f"{begin}User: Hi", f"See `x{begin}y`.", f'The "{begin}" token'):
        assert scanned(cut(text, size)) == (text, "", MarkerShape.MENTION, False)


@pytest.mark.parametrize(("end", "begin"), [(end, begin) for end, begin in ENDS_OF_TURNS.items() if end != begin])
def test_the_end_of_a_turn_is_suspect_behind_a_value_that_began_none(end: str, begin: str) -> None:
    def outcome(value: str) -> Outcome:
        arguments = json.dumps({"command": value}, ensure_ascii=False)
        function = {"name": "bash", "arguments": arguments}
        message = {"content": None, "tool_calls": [{"id": "a", "type": "function", "function": function}]}
        tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
        answer = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
        return check_answer(GuardConfig(), {"messages": [], "tools": tools}, answer).outcome

    assert outcome(f"Oslo{end}") is Outcome.MARKER_LEAK
    for value in (end, f"{begin}|>Hi{end}", f"grep '{end}' chat.txt", f"sed s/{end}//"):
        assert outcome(value) is Outcome.CLEAN, value


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(
    "text",
    [
        'Here.responsetoolscall tool="bash" index="1"argument key="command" type="string"ls\nls -l\nargumentcalltools',
        'analysisI look.assistantcommentary to=functions.bash json{"command": "ls"}',
        'I look. +#+#+#assistant to=functions.bash code  全民彩票天天{"command": "ls"}',
        'I look. to=functions.bash մեկնաբանություն ... {"command": "ls"}',
        'functools[{"name": "bash", "arguments": {}}]',
        'I look. functions.bash:0{"command": "ls"}',
        'I look.\n[Tool Call: bash] Arguments: {"command": "ls"}',
        '[Tool Call] name=bash id=3d4e5f6a-7b8c args={"command": "ls"}',
        '[Calling tool: bash({"command": "ls"})]',
        'I look.\n[Tool Use: bash({"command": "ls"})]',
        'I look.\n<TOOLCALL>[{"name": "bash", "arguments": {"command": "ls"}}]</TOOLCALL>',
        "I should look.call:bash{command:ls,cwd:/}",
        'I look.\n<<<TOOL_CALL>>>{"name": "bash", "arguments": {"command": "ls"}}<<<END_TOOL_CALL>>>',
        "I look.\n<bash>\n  <command>ls</command>\n</bash>",
        "<tool><name>bash</name><command>ls</command></tool>",
        'I look.\n\n<bash>{"command": "ls"}</bash>',
        '<x:function_calls>\n<x:invoke name="bash">\n<x:parameter name="command">ls</x:parameter>\n</x:invoke>\n',
        'I look.\n\ninvoke name="bash">\nparameter name="command">lsparameter>\ninvoke>',
        'functions.bash:12 {"command": "ls"}functions.bash:13 {"command": "pwd"}',
        '[bash(command="ls -la")]',
        'I look.\n\n[bash(), other(city="Dublin, Ireland")]',
        "call:bash{command:ls}",
        'assistant to=functions.bash commentary json\n{"command": "ls"}',
        'functions.bash({"command": "ls"})',
        'bash(parameters={"command": "ls"})',
        'bash {"command": "ls"}',
        'I look.\nbash ব্যক{"command": "ls"}',
        "Lie:default_api:bash{command: 1}",
        '[Called function "bash" with args: {"command": "ls"}]',
        '[bash]\n{"command": "ls"}\n[/bash]',
        "bash\nls\n[/bash]",
        "<function_call>\n<name>bash</name>\n<arguments>{}</arguments>\n</function_call>",
        "I look.\n<bash>ls -la</bash>",
        'To see, I call [bash(command="ls")]',
        'Thought: look.\nAction: bash\nAction Input: {"command": "ls"}',
        '✿FUNCTION✿: bash\n✿ARGS✿: {"command": "ls"}',
        '```tool_code\nprint(bash(command="ls"))\n```',
        'I look.\n\n```tool_code\ndefault_api.bash(command="ls")\n```\n',
        "I look.\ncall:google:mcp:shell:bash{command: 'ls'}",
        "call:bash{command:\n\n# A plan without an end",
        '<|content_tool_call|>bash<|tool_args|>{"command": "ls"}<|end_tool_call|>',
        '[TOOL_CALL]\n{tool => "bash", args => {\n--command "ls"\n}}\n[/TOOL_CALL]',
        '<tool>{"name": "bash", "arguments": {"command": "ls"}}</parameter></tool>',
        'I look.\n<use_tool>{"name": "bash", "parameters": {"command": "ls"}}</use_tool>',
        'name": "bash", "arguments": {"command": "ls"}}]',
        'I look.\n"name": "bash", "arguments": {"command": "ls"}}\n',
        'bash(command="ls -la")',
        'I look.\n\nbash(command="ls", timeout=5)\n',
        "tool_call:bash(commands=['ls'])",
        "I look.\n\n[tool_call:bash]\n",
        'I look.\n{"arguments": {"command": "ls"}, "name": "bash"}',
    ],
)
def test_a_call_whose_special_tokens_were_skipped_is_noticed_by_its_words(text: str, size: int) -> None:
    assert scanned(cut(text, size)) == (text, "", MarkerShape.MENTION, True)
    assert scanned(cut(text.replace("bash", "mop"), size))[3] is False


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_reasoning_of_gpt_oss_in_content_is_noticed_by_the_words_of_the_next_channel(size: int) -> None:
    leaked = 'analysisWe answer "What is 2+2?" in one word.assistantfinalfour'
    assert scanned(cut(leaked, size)) == (leaked, "", MarkerShape.MENTION, True)


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(
    "text",
    [
        'It writes:\n\n```\nI look.assistantcommentary to=functions.bash json{}\ninvoke name="bash">\ninvoke>\n```\n',
        "<pre>\nhm.assistantfinal to=functions.bash json{}\n</pre>\n\nThat is all.",
        "<!-- hm.assistantfinal to=functions.bash json{} -->",
        "\\begin{verbatim}\nhm.assistantfinal to=functions.bash json{}\n\\end{verbatim}\n\nThat is all.",
        "It writes:\n\n    hm.assistantfinal to=functions.bash json{}\n\n\tor functions.bash:0{}\n\nThat is all.",
        "It writes `hm.assistantfinalfour`, and `functions.bash:0{}`.",
        'It writes "hm.assistantfinalfour".',
        "Then call: bash{command} runs it, and call:bash(command) does, too. See rpc-call:bash{x}.",
        'Gemma writes `call:bash{command:ls}`, and Inkling `<|tool|>bash<|args|>{"command": "ls"}`.',
        "Then bash {command} runs, and bash(command) and bash({}) do, too.\nbash (a shell): {it}",
        'The list is x[bash(a=1)] or `[bash(a=1)]`; "[bash(a=1)]',
        "Action: bash\nInput: ls",
        "<summary>bash</summary>\n<bash>\n\n[bash]: /bin/bash\n[/bin/bash]",
        "```python\nbash({'command': 1})\n```\n\n```tool_output\nbash(1)\n```",
        'In JSX, <bash>{"ls"}</bash> is a text, and <bash>{command}</bash> a value.\n<bash>{"ls"}</bash>',
        '<package>{"name": "bash", "version": "5.2"}</package>',
        'It has a "name": "bash", "arguments": {}, and\n"name": "bash", "version": 5',
        "The assistant. Final report: self.assistantfinal = assistantfinal(turns)",
        'Call it so:\nbash(command="ls")\n\nIt lists files.',
        'Then I say bash(command="ls")',
        "It is defined as\nbash(command: str)",
        "bash(command=command)",
        "I have seen [tool call: bash] there.",
    ],
)
def test_words_of_a_call_in_code_are_text(text: str, size: int) -> None:
    assert scanned(cut(text, size)) == (text, "", MarkerShape.MENTION, False)


@pytest.mark.parametrize("bracket", ["{", "[", "\n{", "[\n"])
def test_brackets_that_are_nested_deeper_than_those_of_a_call_do_not_wait(bracket: str) -> None:
    scanner = LeakScanner("content", TOOLS, patient=True, document=False)
    text = bracket * 50_000
    assert len(scanner.feed(text)) > len(text) - 20
    assert not scanner.leak_begun


@pytest.mark.parametrize("line", ['{"arguments": {', '{"arguments": {},', 'bash(a="', "[tool_call:"])
def test_beginnings_of_calls_in_words_take_time_in_proportion_to_their_length(line: str) -> None:
    text = f"\n{line}" * 20_000  # seconds, if each were read far beyond its line
    assert not words_of_a_call(text, {"mop"})


def test_quoted_words_without_end_take_time_in_proportion_to_their_length() -> None:
    text = 'It says "' + "assistantfinal" * 100_000  # a minute, if each looked for the quotation that it is in
    assert scanned([text]) == (text, "", MarkerShape.MENTION, False)


# The ways in which models, and engines that lost the markup, write a call as JSON.
OBJECTS = {
    "hermes": '{"name": "bash", "arguments": {"command": "ls"}}',
    "llama": '{"name": "bash", "parameters": {"command": "ls"}}',
    "a kind first": '{"type": "function", "name": "bash", "parameters": {}}',
    "OpenAI's": '{"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}',
    "Anthropic's": '{"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {}}',
    "a message's": '{"tool_calls": [{"type": "function", "function": {"name": "bash", "arguments": "{}"}}]}',
    "a function": '{"function": "bash", "arguments": {}}',
    "a tool": '{\n  "tool": "bash",\n  "args": {}\n}',
}


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_code_block_that_says_it_is_a_call_quotes_none(size: int) -> None:
    for kind in ("tool", "tool_use", "tool_call", "tool_calls", "tool_code"):
        begin, call = f"I look.\n\n```{kind}\n", '{"name": "bash", "arguments": {}}\n```\n'
        assert scanned(cut(begin + call, size)) == (begin, call, MarkerShape.STRAY, False)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_markup_right_behind_the_end_of_a_code_block_is_not_in_it(size: int) -> None:
    text, ends = 'bash\n```json\n{"command": "ls"}\n```', "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    assert scanned(cut(text + ends, size)) == (text, ends, MarkerShape.STRAY, False)
    for fence in ("```", "````"):
        shown = f"It writes:\n{fence}\n{text}{ends}\n{fence}\nThat is all."
        assert scanned(cut(shown, size)) == (shown, "", MarkerShape.MENTION, False)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("before", ["", "I look.\n"])
@pytest.mark.parametrize("list_", ["", "[", "[\n  ", " [[ "])
@pytest.mark.parametrize("call", OBJECTS.values(), ids=OBJECTS)
def test_an_object_or_list_of_calls_without_markup_is_stray_from_its_first_bracket_on(
    call: str, list_: str, before: str, size: int
) -> None:
    before, call = before + list_[: len(list_) - len(list_.lstrip())], list_.lstrip() + call
    assert scanned(cut(before + call, size)) == (before, call, MarkerShape.STRAY, False)
    other = before + call.replace("bash", "mop")
    assert scanned(cut(other, size)) == (other, "", MarkerShape.MENTION, False)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    "text",
    [
        'Write {"name": "bash", "arguments": {}} for it.',
        'So:\n```json\n{"name": "bash", "arguments": {}}\n```',
        '```json\n{"name": "bash", "arguments": {}}\n```\n\nlists the files.',
        '```json\n{"name": "bash", "arguments": {}}\n```\n\n```json\n{}\n```',
        '```json\n\n# A call\n{"name": "bash", "arguments": {}}\n```',
        '```json\n{"name": "rash", "arguments": {}}\n```',
        '{"name": "bash", "version": "5.2", "arguments": []}',
        '{"type": "object", "name": "bash", "input": 1}',
        '{"scripts": {"name": "bash", "arguments": {}}}',
        '{"name": ["bash"], "arguments": {}}',
        '{"bash": {"name": "bash", "arguments": {}}}',
        "{bash}",
        '{"name": "bash"',
        '[{"name": "bash"',
        "[",
        "[ \n]",
        "[bash] is a [{name}](url)",
        '[{"name": "bash", "version": "5.2"}]',
    ],
)
def test_an_object_that_is_no_call_or_stands_in_a_sentence_is_text(text: str, size: int) -> None:
    assert scanned(cut(text, size)) == (text, "", MarkerShape.MENTION, False)


BLOCK = '```json\n{"name": "bash", "arguments": {"command": "ls"}}\n```'


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("front", "call"),
    [
        ("```json\n", '{"name": "bash", "arguments": {"command": "ls"}}\n```'),
        ("\n\n~~~~\n", '{\n  "name": "bash",\n  "arguments": {}\n}\n~~~~\n\n'),
        ("```\n \n", '[{"type": "function", "function": {"name": "bash", "arguments": "{}"}}]\n``` \n'),
        ("```json\n", '{"name": "bash", "arguments": {"command": "l'),
    ],
)
def test_a_call_in_a_code_block_that_is_the_whole_answer_is_a_lost_one(front: str, call: str, size: int) -> None:
    assert scanned(cut(front + call, size)) == (front, call, MarkerShape.STRAY, False)


def test_a_code_block_before_a_call_or_the_requests_own_limits_is_text() -> None:
    for ends in ("finish", "pause"):
        scanner = LeakScanner("content", TOOLS, patient=True, document=False)
        passed = scanner.feed(BLOCK)
        passed += scanner.pause() if ends == "pause" else scanner.finish(cut=True)
        assert passed + scanner.finish() == BLOCK
        assert not scanner.leak


def test_a_code_block_with_a_call_waits_no_longer_than_until_words_follow_it() -> None:
    scanner = LeakScanner("content", TOOLS, patient=True, document=False)
    assert scanner.feed(f"{BLOCK}\n\n") == "```json\n"
    assert scanner.feed("It") == f"{BLOCK}\n\nIt".removeprefix("```json\n")
    assert scanner.feed(" lists.") == " lists."


def test_space_behind_a_code_block_with_a_call_takes_time_in_proportion_to_its_length() -> None:
    scanner = LeakScanner("content", TOOLS, patient=True, document=False)
    block = BLOCK.replace("\n", "\n" * 100_000)  # a minute, if every space looked for the end of the block
    passed = scanner.feed(block + "\n") + "".join(scanner.feed(" ") for _ in range(1000)) + scanner.finish()
    assert (passed + scanner.leak, scanner.shape) == (block + "\n" + " " * 1000, MarkerShape.STRAY)


PIECES = st.lists(
    st.sampled_from(
        [
            *sorted(CANONICAL),
            *CALLS.values(),
            *OBJECTS.values(),
            " ",
            "\n",
            "`",
            "a",
            "bash",
            "[",
            "]",
            "<",
            '"',
            "{",
            "to=",
            "tools",
            "argument",
            "analysis",
            "path</arg_key>",
        ]
    ),
    max_size=8,
)


@given(pieces=PIECES, data=st.data())
def test_no_cut_changes_what_passes_or_what_leaks(pieces: list[str], data: st.DataObject) -> None:
    text = "".join(pieces)
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parts = [text[one:two] for one, two in pairwise([0, *places, len(text)])]
    assert scanned(parts) == scanned([text])


@given(pieces=PIECES)
def test_nothing_is_lost(pieces: list[str]) -> None:
    text = "".join(pieces)
    passed, leak, _, _ = scanned(list(text))
    assert passed + leak == text


@pytest.mark.skipif(not _FILE.exists(), reason="the study of markers is not here")
def test_openers_hold_in_themselves_what_the_study_says_of_them() -> None:
    for name, parser in listed().items():
        for opener in parser["call_openers"]:
            assert opener in NOT_MARKERS or re.search(MARKUP, opener), name


def verdict(message: dict[str, Any], **settings: Any) -> tuple[Outcome, set[Severity]]:
    parameters = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
    tools = [{"type": "function", "function": {"name": "bash", "parameters": parameters}}]
    tools += [{"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}]
    answer = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    found = check_answer(GuardConfig(**settings), {"tools": tools, "messages": [{"role": "user"}]}, answer)
    return found.outcome, {defect.severity for defect in found.defects}


def empty_call(name: str) -> list[dict[str, Any]]:
    return [{"id": "c", "type": "function", "function": {"name": name, "arguments": "{}"}}]


@pytest.mark.parametrize("schema", ["warn", "enforce"])
def test_an_empty_object_where_the_schema_requires_members_is_not_clean(schema: str) -> None:
    outcome, severities = verdict({"content": None, "tool_calls": empty_call("bash")}, schema=schema)
    assert outcome is Outcome.SCHEMA_MISMATCH
    assert severities == {Severity.SOFT if schema == "enforce" else Severity.NOTE}
    assert verdict({"content": None, "tool_calls": empty_call("now")}, schema=schema) == (Outcome.CLEAN, set())


@pytest.mark.parametrize(
    "leaked",
    [
        "</arg_value>",
        "</parameter>",
        "<arg_key>zone</arg_key>UTC",
        '\n<｜DSML｜parameter name="zone" string="true">U',
    ],
)
def test_an_empty_call_beside_the_markup_of_arguments_is_suspect(leaked: str) -> None:
    outcome, severities = verdict({"content": f"So.{leaked}", "tool_calls": empty_call("now")})
    assert outcome is Outcome.MARKER_LEAK
    assert severities == {Severity.SUSPECT}


def test_an_empty_call_beside_the_end_of_a_block_lost_nothing() -> None:
    assert verdict({"content": "</tool_call>", "tool_calls": empty_call("now")})[1] == {Severity.NOTE}


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_a_name_that_never_ends_is_stray_where_it_begins_with_a_tools(size: int) -> None:
    leak = '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="bash {\ncommand: ls\n\nWait, this looks malformed.'
    assert scanned(cut(f"I look.\n{leak}", size)) == ("I look.\n", leak, MarkerShape.STRAY, False)
    assert scanned(cut(leak.replace("bash", "mop"), size))[2] is MarkerShape.MENTION
