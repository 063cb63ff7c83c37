"""The formats in which models write calls, and a tokenizer whose markers are one token each; no engine is needed."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

CHUNKINGS = 60
MOST_TOKENS = 16  # of a step: as many characters as four real tokens have
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "unit": {"type": "string"}}},
    },
}
Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Format:
    """A model's format of calls.

    Attributes:
        call: One call with the places `{name}` and, as JSON, `{arguments}`, or `{city}` and `{unit}`.
        before: Before the first call.
        after: After the last one.
        markers: The texts that are one token each; of everything else, each character is.
    """

    call: str
    before: str
    after: str
    markers: tuple[str, ...]


def _xml(before: str, call: str, parameter: tuple[str, str, str], end: str, after: str, *markers: str) -> Format:
    opening, middle, closing = parameter
    body = "".join(f"{opening}{name}{middle}{{{name}}}{closing}" for name in ("city", "unit"))
    return Format(f"{call}{body}{end}", before, after, markers)


_DEEPSEEK = tuple(f"<｜tool▁{part}｜>" for part in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep"))
_KIMI = tuple(
    f"<|tool_{part}|>"
    for part in ("calls_section_begin", "calls_section_end", "call_begin", "call_argument_begin", "call_end")
)
_GLM = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
FORMATS = {
    "kimi_k2": Format(
        f"{_KIMI[2]}functions.{{name}}:{{index}}{_KIMI[3]}{{arguments}}{_KIMI[4]}", _KIMI[0], _KIMI[1], _KIMI
    ),
    "qwen3_coder": _xml(
        "", "<tool_call>\n<function={name}>\n", ("<parameter=", ">\n", "\n</parameter>\n"), "</function>\n</tool_call>",
        "", "<tool_call>", "</tool_call>",
    ),
    "deepseek_v3": Format(
        f"{_DEEPSEEK[2]}function{_DEEPSEEK[4]}{{name}}\n```json\n{{arguments}}\n```{_DEEPSEEK[3]}",
        _DEEPSEEK[0], _DEEPSEEK[1], _DEEPSEEK,
    ),
    "deepseek_v31": Format(
        f"{_DEEPSEEK[2]}{{name}}{_DEEPSEEK[4]}{{arguments}}{_DEEPSEEK[3]}", _DEEPSEEK[0], _DEEPSEEK[1], _DEEPSEEK
    ),
    "glm45": _xml(
        "", "<tool_call>{name}\n", ("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"), "</tool_call>", "", *_GLM
    ),
    "glm47": _xml(
        "", "<tool_call>{name}", ("<arg_key>", "</arg_key><arg_value>", "</arg_value>"), "</tool_call>", "", *_GLM
    ),
    "minimax_m2": _xml(
        "<minimax:tool_call>\n", '<invoke name="{name}">\n',
        ('<parameter name="', '">', "</parameter>\n"), "</invoke>\n",
        "</minimax:tool_call>", "<minimax:tool_call>", "</minimax:tool_call>",
    ),
    "hermes": Format(
        '<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>', "", "",
        ("<tool_call>", "</tool_call>"),
    ),
}  # fmt: skip


class Tokenizer:
    """Markers first, then one id for each character."""

    chat_template = None
    eos_token_id = 0

    def __init__(self, markers: tuple[str, ...]) -> None:
        self._markers = ("<eos>", *markers, "<think>", "</think>")

    def get_vocab(self) -> dict[str, int]:
        return {text: number for number, text in enumerate(self._markers)}

    def tokens(self, text: str) -> Iterator[tuple[int, str]]:
        """Yields the ids of a text, each with its own part of the text."""
        while text:
            marker = next((marker for marker in self._markers if text.startswith(marker)), text[0])
            yield (self._markers.index(marker) if len(marker) > 1 else 1000 + ord(marker)), marker
            text = text[len(marker) :]

    def encode(self, text: str, **_: Any) -> list[int]:
        return [number for number, _ in self.tokens(text)]

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(self._markers[number] if number < 1000 else chr(number - 1000) for number in ids)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        return self.get_vocab().get(tokens) if isinstance(tokens, str) else [self.get_vocab().get(t) for t in tokens]


ANSWERS: tuple[list[Call], ...] = (
    [("get_weather", {"city": "Bern", "unit": "celsius"})],
    [("get_weather", {"city": "北京", "unit": "kelvin"}), ("get_weather", {"city": "Rome", "unit": "celsius"})],
)
"""Calls that a client must get, whatever the cuts."""


def written(form: Format, calls: list[Call], prefix: str | None = None) -> str:
    """Returns calls as a model writes them.

    Args:
        form: The model's format.
        calls: Names and arguments.
        prefix: What it writes before the first call; the format's own if not given.
    """
    parts = (
        form.call.format(name=name, index=index, arguments=json.dumps(arguments, ensure_ascii=False), **arguments)
        for index, (name, arguments) in enumerate(calls)
    )
    return f"{form.before if prefix is None else prefix}{''.join(parts)}{form.after}"


def assembled(calls: dict[int, list[str]]) -> list[Call] | None:
    """Returns the calls that a client puts together from all steps; None if one's arguments are no JSON."""
    try:
        return [(calls[index][0], json.loads(calls[index][1])) for index in sorted(calls)]
    except ValueError:
        return None


def folded(calls: dict[int, list[str]], deltas: Iterable[Any]) -> None:
    """Adds the parts of calls of one step to names and arguments by index."""
    for call in deltas:
        entry = calls.setdefault(call.index, ["", ""])
        if call.function:
            entry[0] += call.function.name or ""
            entry[1] += call.function.arguments or ""
