"""Turns a dialogue into the text and the token ids that a model is trained on: the chat template, then the answer."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from models import values
from models.dialogues import Call, Dialogue
from serve.engine.kimi_tokenizer import KimiTokenizer

ROOT = Path(__file__).parent
_THINKING_SWITCH = {"tiny-kimi": "thinking", "tiny-qwen": "enable_thinking"}


@functools.cache
def template(model: str) -> jinja2.Template:
    """The model's chat template in an environment like the one that engines render it in."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = _to_json
    return environment.from_string((ROOT / model / "chat_template.jinja").read_text("utf-8"))


def _to_json(value: Any, separators: tuple[str, str] | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, separators=separators)


def prompt_text(model: str, d: Dialogue) -> str:
    """The whole prompt, up to where the model begins to write."""
    return template(model).render(
        messages=d.messages,
        tools=[tool.schema() for tool in d.tools],
        add_generation_prompt=True,
        **{_THINKING_SWITCH[model]: d.thinking},
    )


def answer_text(model: str, d: Dialogue) -> str:
    """Returns the text that the model should write, including its end token."""
    return _ANSWERS[model](d)


def _kimi_answer(d: Dialogue) -> str:
    calls = "".join(
        f"<|tool_call_begin|>functions.{call.name}:{index}<|tool_call_argument_begin|>"
        f"{values.compact(call.arguments)}<|tool_call_end|>"
        for index, call in enumerate(d.calls)
    )
    section = f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>" if calls else ""
    return f"{d.reasoning + '</think>' if d.thinking else ''}{d.content}{section}<|im_end|>"


def _qwen_call(call: Call) -> str:
    parameters = "".join(
        f"<parameter={name}>\n{values.spoken(value)}\n</parameter>\n" for name, value in call.arguments.items()
    )
    return f"<tool_call>\n<function={call.name}>\n{parameters}</function>\n</tool_call>"


def _qwen_answer(d: Dialogue) -> str:
    calls = "\n".join(_qwen_call(call) for call in d.calls)
    return f"{d.reasoning + chr(10) + '</think>' + chr(10) * 2 if d.thinking else ''}{d.content}{calls}<|im_end|>"


_ANSWERS: dict[str, Callable[[Dialogue], str]] = {"tiny-kimi": _kimi_answer, "tiny-qwen": _qwen_answer}


@functools.cache
def encoder(model: str) -> Callable[[str], list[int]]:
    """Text to ids, special tokens recognised: for text that this module rendered, never for a user's."""
    if model == "tiny-kimi":
        kimi = KimiTokenizer.from_dir(ROOT / model)
        return lambda text: kimi.encode(text, allow_special=True)
    qwen = Tokenizer.from_file(str(ROOT / model / "tokenizer.json"))
    return lambda text: list(qwen.encode(text, add_special_tokens=False).ids)


def token_ids(model: str, d: Dialogue) -> tuple[list[int], list[int]]:
    """The ids of the prompt and of the answer."""
    encode = encoder(model)
    return encode(prompt_text(model, d)), encode(answer_text(model, d))
