"""The streams of the parser benchmark: one call with a long argument, as tokens of a model with a small vocabulary."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

TOOLS = [
    {"type": "function", "function": {"name": "write", "parameters": {
        "type": "object", "properties": {"path": {"type": "string"}, "body": {"type": "string"}}}}},
]  # fmt: skip
WORDS = (" the", " quick", " brown", "\n", " fox", ",", " def", " x", " =", " 1", "检查", ' "ok"', ".", " <", " b")
JSON_WORDS = tuple(json.dumps(word, ensure_ascii=False)[1:-1] for word in WORDS)


def _dsml(wrapper: str, gap: str = "") -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
    invoke, parameter, end = f"{gap}invoke", f"{gap}parameter", ("</", "｜DSML｜")
    return (
        ("Hm", ".", "</think>", "\n\n", "<", "｜DSML｜", wrapper, ">", "\n",
         "<", "｜DSML｜", invoke, ' name="', "write", '">', "\n",
         "<", "｜DSML｜", parameter, ' name="', "path", '" string="', "true", '">', "a", *end, parameter, ">", "\n",
         "<", "｜DSML｜", parameter, ' name="', "body", '" string="', "true", '">'),
        WORDS,
        (*end, parameter, ">", "\n", *end, invoke, ">", "\n", *end, wrapper, ">"),
    )  # fmt: skip


MARK = "]<]minimax[>["
FRAMES: dict[str, tuple[Sequence[str], Sequence[str], Sequence[str]]] = {  # before the long argument, it, after it
    "kimi_k2": (
        ("Hm", ".", "</think>", "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "functions", ".write", ":0",
         "<|tool_call_argument_begin|>", '{"path": "a", "body": "'),
        JSON_WORDS,
        ('"}', "<|tool_call_end|>", "<|tool_calls_section_end|>"),
    ),
    "qwen3_coder": (
        ("Hm", ".", "</think>", "<tool_call>", "\n", "<function=write>", "\n", "<parameter=path>", "\n", "a", "\n",
         "</parameter>", "\n", "<parameter=body>", "\n"),
        WORDS,
        ("\n", "</parameter>", "\n", "</function>", "\n", "</tool_call>"),
    ),
    "deepseek_v3": (
        ("Hm", ".", "</think>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "function", "<｜tool▁sep｜>",
         "write", "\n", "```", "json", "\n", '{"path": "a", "body": "'),
        JSON_WORDS,
        ('"}', "\n", "```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    ),
    "deepseek_v31": (
        ("Hm", ".", "</think>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "write", "<｜tool▁sep｜>",
         '{"path": "a", "body": "'),
        JSON_WORDS,
        ('"}', "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    ),
    "deepseek_v32": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "deepseek_v41": _dsml(" calls", gap=" "),
    "mimo": (
        ("Hm", ".", "</think>", "<tool_call>", "<function=write>", "<parameter=path>", "a", "</parameter>",
         "<parameter=body>"),
        WORDS,
        ("</parameter>", "</function>", "</tool_call>"),
    ),
    "glm47": (
        ("Hm", ".", "</think>", "<tool_call>", "write", "<arg_key>", "path", "</arg_key>", "<arg_value>", "a",
         "</arg_value>", "<arg_key>", "body", "</arg_key>", "<arg_value>"),
        WORDS,
        ("</arg_value>", "</tool_call>"),
    ),
    "hy_v3": (
        ("Hm", ".", "</think>", "<tool_calls>", "\n", "<tool_call>", "write", "<tool_sep>", "\n", "<arg_key>", "path",
         "</arg_key>", "\n", "<arg_value>", "a", "</arg_value>", "\n", "<arg_key>", "body", "</arg_key>", "\n",
         "<arg_value>"),
        WORDS,
        ("</arg_value>", "\n", "</tool_call>", "\n", "</tool_calls>"),
    ),
    "minimax_m2": (
        ("Hm", ".", "</think>", "<minimax:tool_call>", "\n", "<invoke", ' name="write">', "\n", "<parameter",
         ' name="path">', "a", "</parameter>", "\n", "<parameter", ' name="body">'),
        WORDS,
        ("</parameter>", "\n", "</invoke>", "\n", "</minimax:tool_call>"),
    ),
    "minimax_m3": (
        ("<mm:think>", "Hm", ".", "</mm:think>", MARK, "<tool_call>", "\n", MARK, "<invoke", ' name="write">', MARK,
         "<path>", "a", MARK, "</path>", MARK, "<body>"),
        WORDS,
        (MARK, "</body>", MARK, "</invoke>", "\n", MARK, "</tool_call>"),
    ),
    "kimi_k3": (
        ("Hm", ".", "<|close|>", "think", "<|sep|>", "<|open|>", "response", "<|sep|>", "<|close|>", "response",
         "<|sep|>", "<|open|>", "tools", "<|sep|>", "<|open|>", "call", ' tool="write"', ' index="1"', "<|sep|>",
         "<|open|>", "argument", ' key="path"', ' type="string"', "<|sep|>", "a", "<|close|>", "argument", "<|sep|>",
         "<|open|>", "argument", ' key="body"', ' type="string"', "<|sep|>"),
        WORDS,
        ("<|close|>", "argument", "<|sep|>", "<|close|>", "call", "<|sep|>", "<|close|>", "tools", "<|sep|>"),
    ),
    "harmony": (
        ("Hm", ".", "<|end|>", "<|start|>", "assistant", "<|channel|>", "comment", "ary", " to", "=functions", ".write",
         " ", "<|constrain|>", "json", "<|message|>", '{"path": "a", "body": "'),
        JSON_WORDS,
        ('"}', "<|call|>"),
    ),
}  # fmt: skip
PROMPT = "<think>"
Step = tuple[str, list[int]]  # text and token ids of one delta


class Vocabulary:
    """The part of a tokenizer that parsers use: every token of the streams, with its text."""

    chat_template = None

    def __init__(self, words: Iterable[str]) -> None:
        self._texts = list(dict.fromkeys(words))
        self._ids = {text: number for number, text in enumerate(self._texts)}

    def get_vocab(self) -> dict[str, int]:
        """Returns ids by text."""
        return self._ids

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        """Returns the text of some ids."""
        return "".join(self._texts[token] for token in ids)

    def encode(self, text: str, **_: Any) -> list[int]:
        """Returns the ids of a text: one token, or a tag of several."""
        if text in self._ids:
            return [self._ids[text]]
        return [self._ids[part] for part in re.findall(r"<\|\w+\|>|[^<]+", text)]


VOCABULARY = Vocabulary([PROMPT, *(word for frame in FRAMES.values() for part in frame for word in part)])


@dataclass(frozen=True)
class Stream:
    """One output of a model.

    Attributes:
        grammar: The tool-call format.
        tokens: Number of tokens.
        words: Their texts, in order.
        body: The expected value of the long argument.
    """

    grammar: str
    tokens: int
    words: tuple[str, ...]
    body: str

    def steps(self, size: int) -> list[Step]:
        """Returns the stream as deltas of `size` tokens."""
        ids = VOCABULARY.get_vocab()
        pieces = (self.words[place : place + size] for place in range(0, self.tokens, size))
        return [("".join(piece), [ids[word] for word in piece]) for piece in pieces]


def stream(grammar: str, tokens: int) -> Stream:
    """Returns a stream of `tokens` tokens, nearly all of them in one argument."""
    head, words, tail = FRAMES[grammar]
    places = [place % len(WORDS) for place in range(tokens - len(head) - len(tail))]
    body = [words[place] for place in places]
    return Stream(grammar, tokens, (*head, *body, *tail), "".join(WORDS[place] for place in places))
