"""The questions to an engine, as requests; none of them changes it, and no prompt of a user is among them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

_MAX_DEPTH_ERRORS = (ValueError, RecursionError)


class Question(NamedTuple):
    """One request.

    Attributes:
        body: JSON; None for a GET.
    """

    path: str
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """An engine's answer.

    Attributes:
        status: HTTP's; 0 if there was no answer.
        body: Up to a limit.
    """

    status: int
    body: bytes = b""
    error: str = ""

    @property
    def document(self) -> dict[str, Any]:
        """The JSON object of a successful answer; empty for anything else."""
        if self.status != 200:
            return {}
        return self.any_document

    @property
    def any_document(self) -> dict[str, Any]:
        """The JSON object of the answer, whatever its status; empty for anything else."""
        try:
            document = json.loads(self.body)
        except _MAX_DEPTH_ERRORS:
            return {}
        return document if isinstance(document, dict) else {}

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace") if self.status == 200 else ""


NO_ANSWER = EngineAnswer(0)
Answers = Mapping[str, EngineAnswer]

# Nothing of these generates a token.
PASSIVE: Mapping[str, Question] = {
    "models": Question("/v1/models"),
    "version": Question("/version"),
    "metrics": Question("/metrics"),
    "server_info": Question("/server_info?config_format=json"),
    "old_server_info": Question("/get_server_info"),
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "A test.",
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
    },
}
SAID, THOUGHT, OLD_THOUGHT, TOLD = "SAID1", "THOUGHT1", "THOUGHT2", "TOLD1"
# One whole call in each dialect. An engine that is forced to write one by a grammar shows which one its parser reads,
# whatever the model would have written.
DIALECTS: Mapping[str, str] = {
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
    '{"a": "b"}<|tool_call_end|><|tool_calls_section_end|>',
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=a>\nb\n</parameter>\n</function>\n</tool_call>",
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>',
    "glm47": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>b</arg_value>\n</tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">b</parameter>\n</invoke>\n'
    "</minimax:tool_call>",
}


def rendering(model: str) -> Question:
    """Returns the question for the tokens of a conversation with a call, its result and a thought before it."""
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{"a": "C1"}'}}
    messages = [
        {"role": "user", "content": "ASKED1"},
        {
            "role": "assistant", "content": SAID, "reasoning": THOUGHT, "reasoning_content": OLD_THOUGHT,
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "functions.f:0", "content": TOLD},
    ]  # fmt: skip
    body = {"model": model, "messages": messages, "tools": [_TOOL], "add_generation_prompt": True}
    return Question("/tokenize", body)


def rendered(model: str, tokens: Sequence[int]) -> Question:
    """Returns the question for the text of a prompt's tokens."""
    return Question("/detokenize", {"model": model, "tokens": list(tokens)})


def min_p(model: str) -> Question:
    """Returns a request for one token that vLLM refuses while it speculates."""
    return _chat(model, max_tokens=1, min_p=0.01)


def forced(model: str, dialect: str) -> Question:
    """Returns a request whose answer must be a call in a dialect."""
    return _chat(
        model, max_tokens=400, tools=[_TOOL], tool_choice="auto",
        structured_outputs={"choice": [DIALECTS[dialect]]},
        chat_template_kwargs={"thinking": False, "enable_thinking": False},
    )  # fmt: skip


def _chat(model: str, **more: Any) -> Question:
    messages = [{"role": "user", "content": "x"}]
    return Question("/v1/chat/completions", {"model": model, "temperature": 0, "messages": messages, **more})
