"""The chat templates write the public wire formats, and the answers are what the grammars of serve.parsing read."""

import json
from random import Random

import pytest

from models.catalogue import Tool
from models.dialogues import Call, Dialogue, dialogue
from models.render import answer_text, prompt_text, token_ids

WEATHER = Tool("get_weather", (("city", "string"), ("days", "integer")))
ASKED = {"role": "user", "content": "weather in 成都"}
CALL = Call("get_weather", {"city": "成都", "days": 2})


def _dialogue(*messages: dict[str, object], thinking: bool = False, calls: tuple[Call, ...] = (CALL,)) -> Dialogue:
    return Dialogue("test", (ASKED, *messages), (WEATHER,), thinking, "Why.", calls=calls)


def test_kimi_prompt_and_answer() -> None:
    d = _dialogue(thinking=True)
    assert prompt_text("tiny-kimi", d) == (
        "<|im_system|>tool_declare<|im_middle|>get_weather(city,days:int)<|im_end|>"
        "<|im_user|>user<|im_middle|>weather in 成都<|im_end|><|im_assistant|>assistant<|im_middle|><think>"
    )
    assert answer_text("tiny-kimi", d) == (
        "Why.</think><|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city":"成都","days":2}<|tool_call_end|><|tool_calls_section_end|><|im_end|>'
    )


def test_kimi_without_thinking_closes_it_in_the_prompt() -> None:
    assert prompt_text("tiny-kimi", _dialogue()).endswith("<think></think>")


def test_qwen_prompt_and_answer() -> None:
    d = _dialogue()
    assert prompt_text("tiny-qwen", d) == (
        "<|im_start|>system\nTools:\nget_weather(city,days:int)<|im_end|>\n"
        "<|im_start|>user\nweather in 成都<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert answer_text("tiny-qwen", d) == (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\n成都\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
        "</function>\n</tool_call><|im_end|>"
    )


@pytest.mark.parametrize("model", ["tiny-kimi", "tiny-qwen"])
def test_an_answered_call_stands_in_the_history_as_the_model_wrote_it(model: str) -> None:
    turn = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "functions.get_weather:0", "function": {"name": CALL.name, "arguments": CALL.arguments}}],
    }
    told = {"role": "tool", "tool_call_id": "functions.get_weather:0", "content": "21"}
    prompt = prompt_text(model, _dialogue(turn, told))
    markup = answer_text(model, _dialogue()).removesuffix("<|im_end|>")
    assert markup + "<|im_end|>" in prompt


def test_a_clients_own_call_id_still_names_the_function() -> None:
    turn = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_x", "function": {"name": CALL.name, "arguments": json.dumps(CALL.arguments)}}],
    }
    assert "<|tool_call_begin|>functions.get_weather:0<|" in prompt_text("tiny-kimi", _dialogue(turn))


@pytest.mark.parametrize("model", ["tiny-kimi", "tiny-qwen"])
def test_dialogues_are_the_same_for_the_same_seed_and_short(model: str) -> None:
    made = [dialogue(Random(7)) for _ in range(2)]
    assert made[0] == made[1]
    r = Random(8)
    for _ in range(300):
        prompt, answer = token_ids(model, dialogue(r))
        assert len(prompt) + len(answer) < 1024
