"""Leaked markup in a text: its structure decides what is one, in any chunking, and ordinary text does not wait."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.guard.core import markup
from serve.guard.core.call_check import suspicion
from serve.guard.core.leak_scanner import LeakScanner
from serve.guard.core.markup import markers, unfinished
from serve.guard.core.shape import MarkerShape

TOOLS = {"bash", "read_file", "mcp.files.read"}
KIMI = "<|tool_calls_section_begin|><|tool_call_begin|>functions.{}:0<|tool_call_argument_begin|>"
KIMI_ENDS = '{"command": "ls"}<|tool_call_end|><|tool_calls_section_end|>'
QWEN = "<tool_call>\n<function={}>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>"
HERMES = '<tool_call>\n{{"name": "{}", "arguments": {{"command": "ls"}}}}\n</tool_call>'
CALLS = [KIMI.format("bash") + KIMI_ENDS, QWEN.format("bash"), HERMES.format("bash")]
README = "Save this:\n\n```markdown\n# Calls\n\n```\n{0}\n```\n\nOr:\n```xml\n{0}\n```\n\n{0}\n```\n\n"
MARKERS = [
    "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
    "<|tool_call_section_begin|>", "<|tool_calls_section_end|>", "<tool_call>", "</tool_call>", "<function=",
    "</function>", "<parameter=", "</parameter>", "<think>", "</think>", "<tool_code>", "<|im_end|>",
    "<|reserved_token_163700|>", "<|start_header_id|>", "◁think▷",
]  # fmt: skip


def indented(text: str, by: str) -> str:
    return "\n".join(by + line for line in text.split("\n"))


def scanned(
    pieces: list[str], name: str = "content", *, patient: bool = True, document: bool = False
) -> tuple[str, str, MarkerShape, bool]:
    scanner = LeakScanner(name, TOOLS, patient=patient, document=document)
    passed = "".join(map(scanner.feed, pieces))
    passed += scanner.finish()
    return passed, scanner.leak, scanner.shape, scanner.strayed


def cut(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 11, 26, 27, 28, 1000])
@pytest.mark.parametrize(
    "before",
    [
        "",
        "Hm. ",
        "I look:\n\n",
        "Use `ls`.\n",
        "```bash\nls\n```\n",
        'It says "a < b". ',
        README.format("ls"),
        "````md\n\n```\nls\n```\n\n````\n",
    ],
)
@pytest.mark.parametrize("call", CALLS)
def test_a_call_outside_of_quotation_is_a_leak_from_its_first_marker_on(call: str, before: str, size: int) -> None:
    assert scanned(cut(before + call, size)) == (before, call, MarkerShape.CALL, False)
    assert scanned(cut(before + call, size), patient=False)[1:3] == (call, MarkerShape.CALL)
    assert scanned(cut(before + call, size), "reasoning")[1:3] == (call, MarkerShape.CALL)


OPENINGS = {
    "without its section": "<|tool_call_begin|>functions.bash:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
    "of an object with a damaged key": '<tool_call>\n{"name="bash", "arguments": {"command": "ls"}}\n</tool_call>',
    "of an object without quotes": "<tool_call>{name: bash, arguments: {}}</tool_call>",
    "behind words within its section": "<|tool_calls_section_begin|> so I call <|tool_call_begin|>functions.bash:0"
    "<|tool_call_argument_begin|>{}<|tool_call_end|>",
    "without its opener": "<function=bash>\n<parameter=command>\nls",
    "with an id that names nothing": "<|tool_call_begin|>call_1<|tool_call_argument_begin|>{}",
    "with a mangled id": '<|tool_call_begin|>functions.bash command="ls":0<|tool_call_argument_begin|>{}',
    "with a mangled name": '<tool_call>\n<function=bash command="ls">\n<parameter=command>',
    "with attributes": '<tool_call>\n<function name="bash">\n<parameter name="command">',
    "with its arguments first": '<tool_call>{"arguments": {}, "name": "bash"}',
    "cut in its id": "<|tool_call_begin|>functions.ba",
    "cut in its name": "<tool_call>\n<function=ba",
    "cut in its object": '<tool_call>\n{"na',
}
STRAYS = {
    "a call of no such tool": QWEN.format("drop_table"),
    "tool code": "<tool_call>\n<<tool_code>\nprint(bash())\n",
    "an opener alone": "<tool_call>\n",
    "an end alone": "</function>\n</tool_call>",
    "half an end": "<|tool_calls_section_end",
    "half an opener": "<tool_ca",
    "an empty section": "<|tool_calls_section_begin|><|tool_calls_section_end|>",
    "the end of the turn": "<|im_end|>",
    "another turn": "<|im_end|>\n<|im_start|>user\nhello",
    "a tool's result": "\n<tool_response>\nfile.txt\n</tool_response>\nThere is one file.",
    "a parameter": "\n<parameter=command>\nls\n</parameter> and so on",
    "the end of thoughts": "</think>\n\nHello!",
    "the end of thoughts before a text": "</think>Hello!",
    "the end of thoughts before a heading": "</think># Hello",
    "a call that lost its tag": '\n{"name": "bash", "arguments": {"command": "ls"}}',
    "a reserved token in a word": "<|reserved_token_163700|>file first",
}


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize("call", OPENINGS.values(), ids=OPENINGS)
def test_the_beginning_of_a_call_is_one_however_it_is_spelt(call: str, size: int) -> None:
    assert scanned(cut(f"Now. {call}", size)) == ("Now. ", call, MarkerShape.CALL, False)


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize("stray", STRAYS.values(), ids=STRAYS)
def test_markup_where_none_belongs_is_stray_and_passes_where_no_rerun_follows(stray: str, size: int) -> None:
    passed, leak, shape, _ = scanned(cut(f"Now, see.{stray}", size))
    assert (passed + leak, shape) == (f"Now, see.{stray}", MarkerShape.STRAY)
    assert scanned(cut(f"Now, see.{stray}", size), patient=False) == (
        f"Now, see.{stray}",
        "",
        MarkerShape.MENTION,
        True,
    )


ELEMENTS = [
    ("<pre>\n", "\n</pre>"), ('- <pre class="a"><code>', "</code></pre>"), ("<!--\n", "\n-->"), ("<!-- ", " -->"),
    *((f"\\begin{{{name}}}\n", f"\n\\end{{{name}}}") for name in ("verbatim", "lstlisting", "minted")),
]  # fmt: skip


def numbered(text: str, form: str) -> str:
    return "\n".join(form.format(number, line) for number, line in enumerate(text.split("\n"), 37))


MENTIONS = [
    "Write <tool_call> first, then <function=NAME> and <parameter=key>.",
    "<tool_call> is the tag that begins a call, and </tool_call> ends it.",
    "The <tool_call></tool_call> tags stand around a call.",
    "Kimi opens with <|tool_calls_section_begin|>, then <|tool_call_begin|> and an id.",
    "ChatML stands between <|im_start|> and <|im_end|> markers, GPT-2 ends with <|endoftext|> or so.",
    "Write `<tool_call>` first", "A span: ``<tool_call>{\"name\": \"bash\"}</tool_call>`` is a call.",
    f"Like this: `{HERMES.format('bash')}`.".replace("\n", ""),
    'The string "<tool_call>" and the quotation "<function=bash></function>" are no calls.',
    "> <tool_call>\n> <function=bash>\n> </function>\n\nis what you sent.",
    *(f"An example:\n\n{fence}xml\n{call}\n{fence}\n\nThat is all." for call in CALLS for fence in ("```", "~~~~")),
    *(f"- An example:\n  ```\n  {call}\n  ```" for call in CALLS),
    *(f"Qwen writes:\n\n{indented(call, by)}{end}" for call in CALLS for by in ("    ", "\t")
      for end in ("", "\n", "\n\nThat is all.", "\n\n    So.\n\nNo.")),
    *(f"1. Qwen writes:\n\n{indented(call, 7 * ' ')}\n\n2. No." for call in CALLS),
    *(f"Two:\n\n    ls\n\n{indented(call, 4 * ' ')}" for call in CALLS),
    *(f"{items}```xml\n{call}\n  ```\nNo." for call in CALLS for items in ("- - ", "- > ", "1. - ", "2024. ")),
    *(f"It is `{call}` there, and `<tool_call>` begins it." for call in CALLS),
    *(f"It is ``{call}``." for call in CALLS),
    *(f"Qwen: ```{note}\n{call}\n```\nNo." for call in CALLS for note in ("", "xml")),
    *(f"{README.format(call)}That is all." for call in CALLS),
    *(f"{begin}{call}{end}\n\nThat is all." for call in CALLS for begin, end in ELEMENTS),
    *(f"It is:\n\n{numbered(call, form)}\n\nThat is all." for call in CALLS
      for form in ("{}→{}", "   {}→{}", "{} │ {}", "parser.py:{}:{}", "/a/b.py:{}-{}")),
    "```jinja\n<|im_start|>user\n{{ content }}<|im_end|>\n```", "```python\nre.sub(r'<think>.*?</think>', '', t)\n```",
    "So <think>is</think>closed.", "Behind </think>, or </think> it", "在</think>之后是回答。",
    "The tag</think> ends them.", "- </think>: ends them", "(</think>) or «</think>»",
    "Between <think> and </think>\nstand the thoughts.", "a < b", "x<y>z", "<div>", "1 <| 2 |> 3", "<functional>",
    "a <", '{"name": "drop", "arguments": {}}', 'So {"name": "bash", "arguments": {}} is one.',
    "{\n  b\n}", '{"name": "b"}',
    "The tag <|reserved_token_163700|> is reserved.",
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 3, 11, 26, 1000])
@pytest.mark.parametrize("text", MENTIONS)
def test_prose_and_code_that_mention_markup_pass_whole(text: str, size: int) -> None:
    assert scanned(cut(text, size)) == (text, "", MarkerShape.MENTION, False)
    assert scanned(cut(text, size), patient=False) == (text, "", MarkerShape.MENTION, False)


@pytest.mark.parametrize(
    "text", ["The block ends at </think>\n and then comes the answer.", "so <|im_end|>", "</think>"]
)
def test_thoughts_may_mention_what_ends_thoughts_and_turns(text: str) -> None:
    for size in (1, 5, 100):
        assert scanned(cut(text, size), "reasoning") == (text, "", MarkerShape.MENTION, False)


@pytest.mark.parametrize("call", CALLS)
def test_a_quotation_counts_only_once_it_has_an_end(call: str) -> None:
    line = call.replace("\n", "")
    for size in (1, 9, 1000):
        assert scanned(cut(f"So `ls: {line}", size))[1:3] == (line, MarkerShape.CALL)
        assert scanned(cut(f"```\nls\n{call}", size))[1:3] == (call, MarkerShape.STRAY)
        for begin, end in ELEMENTS:
            assert scanned(cut(f"{begin}{call}", size))[1:3] == (call, MarkerShape.STRAY)
            assert scanned(cut(f"{begin}ls{end}\n{call}", size))[1:3] == (call, MarkerShape.CALL)


@pytest.mark.parametrize("size", [1, 9, 1000])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "front",
    ["    ", "\n\n    ", "I look:\n    ", "1. I look:\n\n    ", "- I look:\n  - at it:\n\n     "],
)
def test_an_indented_call_that_no_text_and_blank_line_introduce_is_a_leak(call: str, front: str, size: int) -> None:
    text = front + indented(call, " " * (len(front) - len(front.rstrip(" \n")))).lstrip()
    assert scanned(cut(text, size))[1:3] == (text[len(front) :], MarkerShape.CALL)


@pytest.mark.parametrize("call", CALLS[1:])
def test_a_call_of_which_only_the_first_line_is_indented_is_a_leak(call: str) -> None:
    for size in (1, 9, 1000):
        assert scanned(cut(f"I look:\n\n    {call}", size))[1:3] == (call, MarkerShape.CALL)


@pytest.mark.parametrize(
    "front", ["Write:\n```xml\n", "Write:\n\n~~~\n", "Write `", "Write ``", "A test:\n```py\nT = '"]
)
@pytest.mark.parametrize("call", CALLS)
def test_a_quotation_that_the_requests_own_limits_cut_needs_no_end(call: str, front: str) -> None:
    for length in range(1, len(call) + 1):
        text = front + call[:length]
        scanner = LeakScanner("content", TOOLS, patient=True, document=False)
        assert scanner.feed(text) + scanner.finish(cut=True) == text
        assert not scanner.leak


parts = st.sampled_from([
    *MARKERS, *CALLS, *OPENINGS.values(), *STRAYS.values(), "<", "<|", "a", "`", "```", "\n```\n", "\n", "汉", " <func",
    "</", "|>", "tool", '"', "> ", "\n\n", "{", ":0", "functions.bash", " ", "user\n", "\\n", "~~~", "    ",
    "\t", "1. ", "<pre>", "</pre>", "<!--", "-->", "1→",
    '{"name": "bash", "arg', 'uments": {', '{"name="ba', "sh", "{name: ", "{n", "```json\n", "</thi", "nk>", ".",
])  # fmt: skip


@given(st.lists(parts, max_size=8), st.booleans(), st.sampled_from(["prose", "json"]), st.data())
def test_the_result_does_not_depend_on_the_cuts(
    found: list[str], patient: bool, kind: str, data: st.DataObject
) -> None:
    text = ('{"a": "' if kind == "json" else "") + "".join(found)
    options: Any = {"patient": patient, "document": kind == "json"}
    pieces, rest = [], text
    while rest:
        size = data.draw(st.integers(1, min(len(rest), 30)))
        pieces.append(rest[:size])
        rest = rest[size:]
    result = scanned(pieces, **options)
    assert result == scanned([text], **options)
    assert result == scanned(list(text), **options)
    assert result[0] + result[1] == text


@given(st.lists(parts, max_size=8), st.sampled_from(["content", "reasoning"]), st.booleans())
def test_a_text_that_is_paused_loses_nothing_and_is_judged_at_its_end_as_ever(
    found: list[str], name: str, patient: bool
) -> None:
    scanner = LeakScanner(name, TOOLS, patient=patient, document=False)
    passed = "".join(scanner.feed(part) + scanner.pause() for part in found) + scanner.finish()
    assert passed + scanner.leak == "".join(found)
    once = LeakScanner(name, TOOLS, patient=patient, document=False)
    passed = once.feed("".join(found)) + once.pause()
    assert (passed + once.finish(), once.leak, once.shape, once.strayed) == scanned(
        ["".join(found)], name, patient=patient
    )


@pytest.mark.parametrize("text", ["a < b", "x<y>z", "if (a<b) {", "<div>", "<functional>", "word"])
def test_ordinary_text_does_not_wait(text: str) -> None:
    scanner = LeakScanner("content", TOOLS, patient=True, document=False)
    assert scanner.feed(text) == text


def test_only_what_may_become_markup_is_held_back() -> None:
    scanner = LeakScanner("content", TOOLS, patient=True, document=False)
    assert scanner.feed("text <div> and <too") == "text <div> and "
    assert scanner.feed("l_call> and") == "<tool_call> and"
    assert unfinished("no such thing <b") == 0
    for marker in MARKERS:
        for length in range(1, len(marker)):
            assert unfinished("a" + marker[:length]) == length


DAMAGE = [
    "ls</parameter>\n</function>\n</tool_call>", "say \"hi</tool_call>\"\n", "a.py<|tool_call_end|>",
    "a.py<|tool_call_end|><|tool_call_begin|>functions.bash:1<|tool_call_argument_begin|>", "Oslo<|reserved_token_1|>",
    "ls\n</parameter>\n<parameter=description>\nlists", "x<|im_end|>", "x</tool_ca", "x</tool_call> \n",
    "a\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=read_file>\n",
    "ls -la<｜begin▁of▁sentence｜>You are right, ", "ls<|begin_of_text|>", "ls\n</parameter/>",
    "ls</parameter_function>", "ls\n</parameterfunction>", '<|"|>hanoi<|"|>', '<|"|"/home/a.pdf<|"|',
    "app.log</arg_value><arg_key>pattern</arg_key>\n<arg_value>error</arg_value><arg_key>line</arg_key>\n<arg_value>1",
]  # fmt: skip
DATA = [
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}", "</think>",
    'import re\nre.sub(r"<think>.*?</think>", "", t)\n', "grep -n '<|tool_call_begin|>' parser.py",
    "The marker </tool_call> closes it.", "grep -n '<parameter=name>x</parameter>' notes.txt", *CALLS,
    'assert parse("<tool_call>\\n<function=f>\\n</function>\\n</tool_call>")\n', "<|endoftext|>", "<|im_end|>",
    'text.split("</tool_call>")[0].rsplit("</function>")', '<function name="f">\nx\n</function>', "a < b",
    "<parameter1>\nx\n</parameter1>", "<parameter_list>x</parameter_list>", '<|"|>', "grep '<|\"|>' t.jinja",
    "<tool_call>", "<｜begin▁of▁sentence｜>You are", 'bos = "<|begin_of_text|>"\n', "echo <|begin_of_text|>",
]  # fmt: skip


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("inside", [lambda text: {"a": text}, lambda text: {"a": [{"b": text}], "c": 1}])
def test_markup_in_arguments_is_damage_by_its_place_alone(inside: Any, ascii_only: bool) -> None:
    for texts, damaged in ((DAMAGE, True), (DATA, False)):
        for text in texts:
            value = inside(text)
            written = json.dumps(value, ensure_ascii=ascii_only)
            for spelt in (written, written.replace("<", "\\u003c")):
                assert (suspicion(spelt, value) is not None) is damaged, text


PAIRS = [
    ("<tool_call>", "</tool_call>"), ("<parameter=key>", "</parameter>"), ("<think>", "</think>"),
    ("<|tool_call_start|>[", "<|tool_call_end|>"), ("<|im_start|>user\n", "<|im_end|>"),
    ("<|im_user|>user<|im_middle|>", "<|im_end|>"), ("<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
]  # fmt: skip


@given(st.lists(st.sampled_from(MARKERS), max_size=4), st.sampled_from(PAIRS), st.integers(1, 40))
def test_a_pair_is_no_damage_whatever_is_mentioned_before_it(
    mentions: list[str], pair: tuple[str, str], size: int
) -> None:
    said = "".join(f'The word "{mention}" is one. ' for mention in mentions)
    written = f"{said}So it is.\n{pair[0]}value{pair[1]}"
    assert suspicion(json.dumps({"a": written}), {"a": written}) is None
    document = json.dumps({"a": written})
    assert scanned(cut(document, size), document=True) == (document, "", MarkerShape.MENTION, False)
    if pair[1] == "</think>":
        prose = f"{written}\nThat is all."
        assert scanned(cut(prose, size)) == (prose, "", MarkerShape.MENTION, False)


@pytest.mark.parametrize("key", ["parameter=city", "<parameter=city", "function=city", "<function=city"])
def test_a_tag_in_a_key_is_damage(key: str) -> None:
    value = {"a": 1, key: 2}
    assert suspicion(json.dumps(value), value)
    assert not suspicion("", {"parameter": "a=b", "function": "<div>"})


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_in_a_document_markup_is_stray_at_the_end_of_a_string_and_a_word_elsewhere(size: int) -> None:
    for text in DATA:
        document = json.dumps({"a": text, "b": 1})
        assert scanned(cut(document, size), document=True) == (document, "", MarkerShape.MENTION, False)
    for text in (
        "Oslo</tool_call>",
        "Oslo<|tool_call_end|>",
        "Oslo<|reserved_token_163700|>",
        "a</function>\n</tool_call>",
    ):
        document = json.dumps({"a": text, "b": 1})
        passed, leak, shape, _ = scanned(cut(document, size), document=True)
        assert (passed + leak, shape) == (document, MarkerShape.STRAY)
        assert passed.endswith(text[:1]) or passed.endswith("Oslo")


@given(st.lists(st.sampled_from([*MARKERS, "<", "<|", "a", "`", "汉"]), max_size=40).map("".join))
def test_a_text_searched_in_windows_has_the_same_markup(text: str) -> None:
    def found() -> list[tuple[int, int]]:
        return [match.span() for match in markers(text)]

    whole = found()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(markup, "_WINDOW", 7)
        assert found() == whole


@pytest.mark.parametrize("marker", MARKERS)
def test_markup_is_found_in_a_long_text_too(marker: str) -> None:
    text = "a < b <| " * 1_000 + marker
    assert [match.group() for match in markers(text)] == [marker]
    assert [match.group() for match in markers(" " * 5_000 + marker)] == [marker]
