"""Our plug-ins inside vLLM's own parser classes, with a tokenizer of one token for each marker or character."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own deprecations, raised while vLLM is imported
    pytest.importorskip("vllm")
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser import ParserManager
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    from serve.engine import vllm_parsers

from serve.parsing import GRAMMARS
from tests.unit.parsing import cases

_LOG = "ray.serve.specgate.parsing"
_SPECIAL = sorted(
    {text for grammar in GRAMMARS.values() for text in grammar.lexicon.kinds} - {"</function>", "</parameter>"}
    | {"<|im_start|>", "<|im_end|>", "<|im_assistant|>", "<|im_middle|>"}
)


class Tokenizer:
    """Special tokens first, then one id for each character."""

    chat_template = None

    def get_vocab(self) -> dict[str, int]:
        return {text: number for number, text in enumerate(_SPECIAL)}

    def encode(self, text: str, **_: Any) -> list[int]:
        vocabulary = self.get_vocab()
        return [vocabulary.get(unit, 1000 + ord(unit[0])) for unit in self.units(text)]

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(_SPECIAL[token] if token < 1000 else chr(token - 1000) for token in ids)

    @staticmethod
    def units(text: str) -> Iterator[str]:
        for unit in cases.units(text):
            yield from [unit] if unit in _SPECIAL else unit


TOKENIZER = Tokenizer()
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
KIMI_CALL = (
    '<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Bern", "days": 2}<|tool_call_end|>'
)
OUTPUTS = {
    "kimi_k2": f"Well.</think>Look:<|tool_calls_section_begin|>{KIMI_CALL}<|tool_calls_section_end|> Done.",
    "qwen3_coder": "Well.</think>Look:<tool_call>\n<function=get_weather>\n<parameter=city>\nBern\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call> Done.",
    "hermes": 'Well.</think>Look:<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern", "days": 2}}\n'
    "</tool_call> Done.",
}
THINKING = "<|im_start|>assistant<think>"
NOT_THINKING = "<|im_start|>assistant<think></think>"


def request(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest(
        **{"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [TOOL]} | fields
    )


def parser(grammar: str, asked: ChatCompletionRequest, reasoning: bool = True, **template: Any) -> Any:
    name = f"specgate_{grammar}"
    made = ParserManager.get_parser(name, name if reasoning else None, enable_auto_tools=True, tokenizer=TOKENIZER)
    return made(TOKENIZER, asked.tools, chat_template_kwargs=template)


def whole(grammar: str, text: str, asked: ChatCompletionRequest, prompt: str = THINKING, **how: Any) -> tuple[Any, ...]:
    made = parser(grammar, asked, **how)
    made.is_reasoning_end(TOKENIZER.encode(prompt))
    reasoning, content, calls = made.parse(text, asked, enable_auto_tools=True)
    return reasoning, content or None, [(call.name, call.arguments) for call in calls or []]


def streamed(
    grammar: str,
    text: str,
    asked: ChatCompletionRequest,
    prompt: str = THINKING,
    size: int = 1,
    lag: int = 0,
    **how: Any,
) -> tuple[Any, ...]:
    """Fold vLLM's deltas as a client does; `lag` characters come later than their tokens, as with stop strings."""
    made = parser(grammar, asked, **how)
    units = list(Tokenizer.units(text))
    reasoning, content, calls, shown = "", "", {}, 0
    for place in range(0, len(units), size):
        last = place + size >= len(units)
        ready = len("".join(units[: place + size])) - (0 if last else lag)
        delta = made.parse_delta(
            text[shown : max(ready, shown)],
            TOKENIZER.encode("".join(units[place : place + size])),
            asked,
            TOKENIZER.encode(prompt),
            finished=last,
        )
        shown = max(ready, shown)
        if delta is None:
            continue
        sent = delta.model_dump(exclude_unset=True)
        reasoning += sent.get("reasoning") or ""
        content += sent.get("content") or ""
        for entry in sent.get("tool_calls") or []:
            if entry["index"] in calls:
                assert set(entry) == {"index", "function"}
                assert set(entry["function"]) == {"arguments"}
            else:
                assert entry["id"]
                assert entry["type"] == "function"
                assert entry["function"]["name"]
                calls[entry["index"]] = [entry["function"]["name"], ""]
            calls[entry["index"]][1] += entry["function"]["arguments"]
    return reasoning or None, content or None, [tuple(calls[index]) for index in sorted(calls)]


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_streamed_and_whole_answers_agree_in_every_step_size(grammar: str) -> None:
    expected = ("Well.", "Look: Done.", [("get_weather", '{"city": "Bern", "days": 2}')])
    assert whole(grammar, OUTPUTS[grammar], request()) == expected
    for size in (1, 2, 3, 4, 5, 8, 13, 1000):
        assert streamed(grammar, OUTPUTS[grammar], request(), size=size) == expected, size


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_text_that_lags_behind_its_tokens_changes_nothing(grammar: str) -> None:
    for lag in (1, 4, 11):
        assert streamed(grammar, OUTPUTS[grammar], request(), size=3, lag=lag) == whole(
            grammar, OUTPUTS[grammar], request()
        )


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_a_call_ends_reasoning_that_was_not_closed(grammar: str) -> None:
    text = OUTPUTS[grammar].replace("</think>Look:", "")
    expected = ("Well.", " Done.", [("get_weather", '{"city": "Bern", "days": 2}')])
    assert whole(grammar, text, request()) == expected
    assert streamed(grammar, text, request(), size=7) == expected


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_the_prompt_decides_whether_reasoning_comes_first(grammar: str) -> None:
    text = "Just an answer."
    assert whole(grammar, text, request(), NOT_THINKING) == (None, text, [])
    assert streamed(grammar, text, request(), NOT_THINKING) == (None, text, [])
    assert whole(grammar, text, request(), THINKING) == (text, None, [])
    assert streamed(grammar, text, request(), THINKING) == (text, None, [])
    assert streamed(grammar, text, request(), "<|im_start|>assistant") == (None, text, [])
    assert streamed(grammar, f"<think>Hm.</think>{text}", request(), "<|im_start|>assistant") == ("Hm.", text, [])


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_thinking_that_the_request_turns_off_makes_all_text_content(grammar: str) -> None:
    text = "Just an answer."
    for name in ("thinking", "enable_thinking"):
        assert whole(grammar, text, request(), THINKING, **{name: False}) == (None, text, [])
        assert streamed(grammar, text, request(), THINKING, **{name: False}) == (None, text, [])


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_each_further_choice_of_a_whole_answer_knows_the_prompt_too(grammar: str) -> None:
    asked = request(n=2)
    first, second = parser(grammar, asked), parser(grammar, asked)
    first.is_reasoning_end(TOKENIZER.encode(THINKING))
    assert first.parse("One.</think>1", asked, enable_auto_tools=True)[:2] == ("One.", "1")
    assert second.parse("Two, cut", asked, enable_auto_tools=True)[:2] == ("Two, cut", None)


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_without_a_reasoning_parser_a_tool_parser_works_alone(grammar: str) -> None:
    text = OUTPUTS[grammar].removeprefix("Well.</think>")
    expected = (None, "Look: Done.", [("get_weather", '{"city": "Bern", "days": 2}')])
    assert whole(grammar, text, request(), reasoning=False) == expected
    assert streamed(grammar, text, request(), reasoning=False, size=4) == expected


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_tool_choice_none_gives_text_and_no_calls(grammar: str) -> None:
    asked = request(tool_choice="none")
    assert whole(grammar, OUTPUTS[grammar], asked) == ("Well.", "Look: Done.", [])
    for size in (1, 5, 1000):
        assert streamed(grammar, OUTPUTS[grammar], asked, size=size) == ("Well.", "Look: Done.", [])


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_without_tools_markup_is_what_the_user_asked_to_see(grammar: str) -> None:
    asked = request(tools=None)
    content = OUTPUTS[grammar].split("</think>")[1]
    assert whole(grammar, OUTPUTS[grammar], asked) == ("Well.", content, [])
    assert streamed(grammar, OUTPUTS[grammar], asked, size=3) == ("Well.", content, [])


@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_forced_calls_are_read_in_the_models_own_format(grammar: str, choice: Any) -> None:
    asked = request(tool_choice=choice)
    adjusted = parser(grammar, asked).adjust_request(asked)
    assert json.loads(adjusted.structured_outputs.structural_tag)["type"] == "structural_tag"
    assert adjusted.skip_special_tokens is False
    assert whole(grammar, OUTPUTS[grammar], asked)[2] == [("get_weather", '{"city": "Bern", "days": 2}')]
    assert streamed(grammar, OUTPUTS[grammar], asked, size=4)[2] == [("get_weather", '{"city": "Bern", "days": 2}')]


@pytest.mark.parametrize("parallel", [True, False])
def test_a_bare_call_marker_starts_the_grammar_of_strict_kimi_tools(parallel: bool) -> None:
    asked = request(tool_choice="auto", parallel_tool_calls=parallel)
    adjusted = parser("kimi_k2", asked).adjust_request(asked)
    tag = json.loads(adjusted.structured_outputs.structural_tag)["format"]
    assert tag["triggers"] == ["<|tool_calls_section_begin|>", "<|tool_call_begin|>"]
    assert any(call["begin"].startswith("<|tool_call_begin|>functions.get_weather:") for call in tag["tags"])
    assert "<|tool_call_begin|>" not in tag["excludes"]
    assert tag["stop_after_first"] is not parallel


def test_that_grammar_accepts_calls_with_and_without_their_section() -> None:
    xgrammar = pytest.importorskip("xgrammar")
    asked = request(tool_choice="auto")
    tag = parser("kimi_k2", asked).adjust_request(asked).structured_outputs.structural_tag
    vocabulary = [*_SPECIAL, *(chr(code) for code in range(32, 127)), "<eos>"]
    info = xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[len(vocabulary) - 1])
    grammar = xgrammar.GrammarCompiler(info, max_threads=1).compile_structural_tag(tag)
    section = f"<|tool_calls_section_begin|>{KIMI_CALL}<|tool_calls_section_end|>"
    for text, good in ((section, True), (KIMI_CALL, True), (KIMI_CALL.replace('"city"', '"town"'), False)):
        matcher = xgrammar.GrammarMatcher(grammar)
        ids = [vocabulary.index(unit) for unit in Tokenizer.units(f"Hi. {text}")]
        assert all(matcher.accept_token(token) for token in ids) is good


def test_a_cut_call_keeps_what_came_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    text = OUTPUTS["kimi_k2"].split(', "days"')[0]
    with caplog.at_level(logging.WARNING, _LOG):
        assert whole("kimi_k2", text, request())[2] == [("get_weather", '{"city": "Bern"')]
        assert streamed("kimi_k2", text, request())[2] == [("get_weather", '{"city": "Bern"')]
    assert [record.name for record in caplog.records if "unfinished_call" in record.message] == [_LOG, _LOG]
    assert "Bern" not in caplog.text


def test_a_string_that_is_never_closed_does_not_swallow_the_markers_behind_it() -> None:
    """Seen on a real engine: a stream has the ids that tell a marker from text, a complete output has not."""
    text = OUTPUTS["kimi_k2"].replace('"Bern", "days": 2}', '"Bern}')
    expected = ("Well.", "Look: Done.", [("get_weather", '{"city": "Bern}')])
    assert whole("kimi_k2", text, request()) == expected
    for size in (1, 3, 1000):
        assert streamed("kimi_k2", text, request(), size=size) == expected, size


def test_a_marker_quoted_inside_a_closed_string_stays_text_in_a_complete_output() -> None:
    text = OUTPUTS["kimi_k2"].replace("Bern", "<|tool_call_end|>")
    assert whole("kimi_k2", text, request())[2] == [("get_weather", '{"city": "<|tool_call_end|>", "days": 2}')]


def test_empty_arguments_are_an_empty_object_in_both_modes() -> None:
    text = "</think><|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    text += "<|tool_call_end|><|tool_calls_section_end|>"
    assert whole("kimi_k2", text, request())[2] == streamed("kimi_k2", text, request())[2] == [("get_weather", "{}")]


def test_kimi_ids_are_the_models_and_other_ids_are_unique() -> None:
    kimi = parser("kimi_k2", request()).parse(OUTPUTS["kimi_k2"], request(), enable_auto_tools=True)
    assert kimi[2][0].id == "functions.get_weather:0"
    ids = {parser("hermes", request()).parse(OUTPUTS["hermes"], request(), True)[2][0].id for _ in range(9)}
    assert len(ids) == 9


def test_the_engine_core_learns_that_a_first_marker_of_a_call_ends_reasoning() -> None:
    vocabulary = TOKENIZER.get_vocab()
    made = ReasoningParserManager.get_reasoning_parser("specgate_kimi_k2")(TOKENIZER)
    for text, implicit in (("</think>", False), ("<|tool_calls_section_begin|>", True), ("<|tool_call_begin|>", True)):
        assert made.find_reasoning_end([5000, vocabulary[text], 5000]) == (1, implicit)
        assert made.is_reasoning_end_streaming([], [vocabulary[text]])
    assert made.find_reasoning_end([5000]) == (1, False)
    assert not made.is_reasoning_end_streaming([], [5000])


def test_reasoning_tokens_are_counted_up_to_its_end() -> None:
    made = parser("qwen3_coder", request())
    made.is_reasoning_end(TOKENIZER.encode(THINKING))
    assert made.count_reasoning_tokens(TOKENIZER.encode("abc</think>de")) == 3
    assert made.count_reasoning_tokens(TOKENIZER.encode("<think>abc")) == 3
    made.is_reasoning_end(TOKENIZER.encode(NOT_THINKING))
    assert made.count_reasoning_tokens(TOKENIZER.encode("abc")) == 0


@pytest.mark.parametrize(
    "row", cases.params({**row, "asserts": []} for row in cases.rows("qwen3_reasoning_end_tokens"))
)
def test_token_rows_say_whether_reasoning_has_ended(row: dict[str, Any]) -> None:
    made = ReasoningParserManager.get_reasoning_parser("specgate_qwen3_coder")(
        TOKENIZER, chat_template_kwargs={"enable_thinking": row["enable_thinking"]}
    )
    vocabulary = TOKENIZER.get_vocab()
    ids = [vocabulary.get(token, 5000) for token in row["tokens"]]
    assert made.is_reasoning_end(ids) is row["expected_reasoning_ended"]


@pytest.mark.parametrize("row", cases.params(cases.rows("kimi_k2_e2e", "qwen3_e2e")))
def test_end_to_end_rows_hold_through_vllm(row: dict[str, Any]) -> None:
    asked = request(tools=row.get("tools") or [TOOL])
    grammar = cases.options(row)["grammar"]
    prompt = THINKING if row.get("prompt_ends_in_think") else "<|im_start|>assistant"
    found = whole(grammar, row["output_text"], asked, prompt)
    wanted = [(call["name"], call["arguments"]) for call in row["expected_tool_calls"]]
    got = [(name, json.loads(arguments)) for name, arguments in found[2]]
    assert got == [(name, json.loads(a) if isinstance(a, str) else a) for name, a in wanted]
    assert (found[0] or "") == (row["expected_reasoning"] or "")
    for size in (1, 2, 3, 5, 11, 23):
        assert streamed(grammar, row["output_text"], asked, prompt, size=size) == found


def test_registering_twice_keeps_one_of_each() -> None:
    vllm_parsers.register()
    vllm_parsers.register()
    for name, made in vllm_parsers.TOOL_PARSERS.items():
        assert ToolParserManager.get_tool_parser(name) is made
