"""Who broke an answer: told by its tokens, and by what the engine and a judge give each of them."""

import math

import pytest

from lab.probe.grid import ProbeCell
from lab.probe.trace import Trace, cause

REQUEST = ProbeCell("weather", "Weather?", "auto", None, False).body(0)
LIKELY, RARE = math.log(0.9), math.log(1e-7)
BROKEN = ['<tool_call>\n{"name": "get_weather", ', '"arguments": {"city": ', '"Tok', "\n</tool_call>"]
SOUND = ['<tool_call>\n{"name": "get_weather", ', '"arguments": {"city": ', '"Tokyo"}}', "\n</tool_call>", "<|im_end|>"]


def trace(texts, logprobs=None):
    return Trace([1, 2], list(range(len(texts))), texts, logprobs or [LIKELY] * len(texts))


@pytest.mark.parametrize(
    ("engine", "judge", "name", "token"),
    [
        ([LIKELY] * 4, [LIKELY] * 4, "model", None),
        ([LIKELY] * 4, [LIKELY, LIKELY, RARE, LIKELY], "state", 2),
        ([LIKELY, RARE, LIKELY, LIKELY], [LIKELY, RARE, LIKELY, LIKELY], "sampling", 1),
        ([LIKELY, LIKELY, RARE, LIKELY], [LIKELY] * 4, "model", None),  # the judge would have said it, too
        ([LIKELY] * 4, [LIKELY - 0.5] * 4, "model", None),  # numeric noise between two engines
    ],
)
def test_a_broken_answer_is_blamed_on_whom_its_tokens_show(engine, judge, name, token):
    found = cause(REQUEST, trace(BROKEN, engine), judge)
    assert (found["cause"], found.get("token")) == (name, token)


@pytest.mark.parametrize(
    ("temperature", "probability", "name"),
    [
        (None, 1e-5, "model"),
        (1, 1e-5, "model"),
        (0, 1e-5, "sampling"),
        (0, 0.01, "model"),
        (1, 1e-7, "sampling"),
        (2, 1e-7, "model"),
    ],
)
def test_how_rare_a_drawn_token_may_be_depends_on_the_temperature(temperature, probability, name):
    rare = [LIKELY, math.log(probability), LIKELY, LIKELY]
    assert cause({**REQUEST, "temperature": temperature}, trace(BROKEN, rare), rare)["cause"] == name


@pytest.mark.parametrize("texts", [SOUND, SOUND[:-1], ["Let me see.</think>", *SOUND]])
def test_sound_tokens_of_a_broken_answer_blame_the_parser(texts):
    assert cause(REQUEST, trace(texts), [LIKELY] * len(texts)) == {"cause": "parser"}


def test_calls_that_only_miss_their_schema_blame_the_parser_of_an_answer_that_ends_early():
    texts = ['<tool_call>\n{"name": "get_weather", "arguments": {}}', "\n</tool_call>"]
    assert cause(REQUEST, trace(texts), [LIKELY] * 2)["cause"] == "parser"


@pytest.mark.parametrize(
    ("texts", "name"),
    [
        (["So.</think>", '{"a": 1}', "<|im_end|>"], "parser"),  # swallowed as reasoning, or leaked with it
        (['{"a": 1}', "<|im_end|>"], "parser"),
        (["So.</think>", '{"a": 1', "<|im_end|>"], "model"),
        (["So."], "model"),
    ],
)
def test_sound_json_in_the_tokens_of_a_broken_answer_blames_the_parser(texts, name):
    request = {"messages": [], "response_format": {"type": "json_object"}}
    assert cause(request, trace(texts), [LIKELY] * len(texts))["cause"] == name


def test_prose_and_calls_of_undeclared_tools_do_not_blame_the_parser():
    for texts in (["No ", "idea."], ['<tool_call>\n{"name": "nope", "arguments": {}}', "\n</tool_call>"]):
        assert cause(REQUEST, trace(texts), [LIKELY] * 2)["cause"] == "model"


def test_a_trace_is_collected_from_chunks_and_incomplete_where_the_engine_keeps_silent():
    collected = Trace()
    collected.add({"prompt_token_ids": [5, 6], "choices": [{"delta": {"role": "assistant"}}]})
    for token, text in ((7, "a"), (8, "b")):
        entry = {"token": text, "logprob": LIKELY}
        collected.add({"choices": [{"delta": {}, "token_ids": [token], "logprobs": {"content": [entry]}}]})
    assert (collected.prompt, collected.ids, collected.texts) == ([5, 6], [7, 8], ["a", "b"])
    assert collected.complete
    collected.add({"choices": [{"token_ids": [9], "logprobs": None}]})
    assert not collected.complete
    assert not Trace().complete
