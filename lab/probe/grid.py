"""The grid of a probe: prompts by tool shapes by thinking by streaming, and the request of each cell."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

# Modelled on the bug reports that started this project: the weather tool of the ngram report, Chinese text before the
# closing quote as in the EAGLE3 report, and braces and quotes inside a string.
PROMPTS = {
    "weather": "Get the weather for Tokyo in celsius.",
    "chinese": "用 bash 工具运行 check-deps.sh，description 写“检查 CDP 依赖环境”。",
    "quoting": 'Write the text {"a": "b\\"}"} to /tmp/x.json with the bash tool; the description says why.',
    "two": "Get the weather for Paris and then for Berlin, one call each.",
}


def _function(name: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": f"Tool {name}.", "parameters": parameters}}


_TEXT = {"type": "string"}
TOOLS = [
    _function("get_weather", {"city": _TEXT, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}, ["city"]),
    _function("bash", {"command": _TEXT, "description": _TEXT}, ["command"]),
]
_STRICT = [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in TOOLS]
_SCHEMA = {
    "type": "object",
    "properties": {"city": _TEXT, "unit": _TEXT},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
SHAPES: dict[str, dict[str, Any]] = {
    "text": {},
    "auto": {"tools": TOOLS, "tool_choice": "auto"},
    "required": {"tools": TOOLS, "tool_choice": "required"},
    "named": {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
    "strict": {"tools": _STRICT, "tool_choice": "auto"},
    "single": {"tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": False},
    "json": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": _SCHEMA}}
    },
}


@dataclass(frozen=True, slots=True)
class ProbeCell:
    """One kind of request, which is tried a number of times."""

    prompt: str
    text: str
    shape: str
    thinking: bool | None
    stream: bool

    @property
    def name(self) -> str:
        """The cell's name in tables and trial logs."""
        thinking = {None: "default", True: "on", False: "off"}[self.thinking]
        return f"{self.prompt} {self.shape} thinking={thinking} stream={'on' if self.stream else 'off'}"

    def numbers(self, trials: int) -> range:
        """Returns the numbers of the trials, if the request is sent `trials` times."""
        return range(trials)

    def body(self, number: int) -> dict[str, Any]:
        """Returns the request of a trial, under a seed of its own: equal seeds give equal, so dependent, answers."""
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": self.text}],
            "stream": self.stream,
            "seed": crc32(f"{self.name} {number}".encode()),
            **SHAPES[self.shape],
        }
        if self.thinking is not None:
            body["chat_template_kwargs"] = {"thinking": self.thinking, "enable_thinking": self.thinking}
        return body


def grid(
    prompts: Mapping[str, str], shapes: Iterable[str], thinking: Iterable[bool | None], streams: Iterable[bool]
) -> Iterator[ProbeCell]:
    """Yield a cell for every combination.

    Args:
        prompts: Texts by name.
        shapes: Names from `SHAPES`.
        thinking: Thinking on or off; None leaves it to the model.
        streams: Streamed or whole answers.
    """
    for (prompt, text), shape, thinks, stream in itertools.product(prompts.items(), shapes, thinking, streams):
        yield ProbeCell(prompt, text, shape, thinks, stream)
