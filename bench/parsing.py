"""Benchmark of the parsers: time per token beside vLLM's own parser and beside re-parsing the whole text each step.

The same tokens in the same steps through all of them, in one process, round by round; medians.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from serve.parsing import StreamParser, parse

LENGTHS = (1_000, 10_000, 100_000)
STEPS = (1, 4)
ROUNDS = 5
REPARSED_STEPS = 60  # of a stream that is re-parsed at each step; the rest follows from them
GOAL_GROWTH = 12.0
GOAL_REPARSE = 50.0
KIMI_IDS = {
    "<|tool_calls_section_begin|>": 163595, "<|tool_calls_section_end|>": 163596, "<|tool_call_begin|>": 163597,
    "<|tool_call_argument_begin|>": 163598, "<|tool_call_end|>": 163599, "<think>": 163606, "</think>": 163607,
}  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": "write", "parameters": {
        "type": "object", "properties": {"path": {"type": "string"}, "body": {"type": "string"}}}}},
]  # fmt: skip
QWEN_WORDS = (" the", " quick", " brown", "\n", " fox", ",", " def", " x", " =", " 1", "检查", ' "ok"', ".", " <", " b")
WORDS = tuple(json.dumps(word, ensure_ascii=False)[1:-1] for word in QWEN_WORDS)
Token = tuple[int, str]
Steps = list[tuple[str, list[int]]]
Runner = Callable[[Steps], float]


class Vocabulary:
    """The least that vLLM's parser asks of a tokenizer."""

    def get_vocab(self) -> dict[str, int]:
        """The markers alone."""
        return dict(KIMI_IDS)

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        """Text of markers."""
        names = {number: text for text, number in KIMI_IDS.items()}
        return "".join(names.get(token, "") for token in ids)

    def encode(self, text: str, **_: Any) -> list[int]:
        """Ids of markers."""
        return [KIMI_IDS[text]] if text in KIMI_IDS else [0]


def kimi_tokens(count: int) -> list[Token]:
    """One call with long arguments, `count` tokens in all."""
    head = ["<think>", "Hm", "</think>", "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "functions", ".write",
            ":0", "<|tool_call_argument_begin|>", '{"path": "a", "body": "']  # fmt: skip
    tail = ['"}', "<|tool_call_end|>", "<|tool_calls_section_end|>"]
    body = [WORDS[place % len(WORDS)] for place in range(count - len(head) - len(tail))]
    return [(KIMI_IDS.get(text, 17), text) for text in head + body + tail]


def qwen_tokens(count: int) -> list[Token]:
    """The same for XML."""
    head = ["<tool_call>", "\n", "<function=write>", "\n", "<parameter=body>", "\n"]
    tail = ["\n", "</parameter>", "\n", "</function>", "\n", "</tool_call>"]
    body = [QWEN_WORDS[place % len(QWEN_WORDS)] for place in range(count - len(head) - len(tail))]
    return [(17, text) for text in head + body + tail]


def cut(tokens: Sequence[Token], size: int) -> Steps:
    """Tokens as deltas of `size`."""
    return [
        ("".join(text for _, text in step), [token for token, _ in step])
        for step in (tokens[place : place + size] for place in range(0, len(tokens), size))
    ]


def timed(run: Callable[[], None]) -> float:
    """Seconds of one run, the collector at rest."""
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    finally:
        gc.enable()


def ours(grammar: str) -> Runner:
    """Our stream parser."""

    def seconds(steps: Steps) -> float:
        def run() -> None:
            parser = StreamParser(grammar, TOOLS)
            for text, ids in steps:
                parser.feed(text, ids)
            parser.finish()

        return timed(run)

    return seconds


def reparse(grammar: str) -> Runner:
    """Parse all text so far at each step and keep what is new; sampled, and its growth summed up."""

    def seconds(steps: Steps) -> float:
        wanted = max(1, len(steps) // REPARSED_STEPS)
        samples = []
        for place in range(wanted - 1, len(steps), wanted):
            text = "".join(piece for piece, _ in steps[: place + 1])
            samples.append(timed(lambda text=text: _diff(text, grammar)))  # type: ignore[misc]
        return statistics.fmean(samples) * len(steps)

    return seconds


def _diff(text: str, grammar: str) -> None:
    message = parse(text, grammar, TOOLS)
    sent = message.tool_calls[0].arguments[:-1] if message.tool_calls else ""
    assert not message.tool_calls or message.tool_calls[0].arguments.startswith(sent)


def vllm_kimi() -> Runner:
    """VLLM's own parser of the same format, at the level where ours is measured: text and ids in, deltas out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.parser.kimi_k2 import KimiK2Parser
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "x"}], tools=TOOLS)
    vocabulary = Vocabulary()

    def seconds(steps: Steps) -> float:
        def run() -> None:
            parser = KimiK2Parser(vocabulary, request.tools)
            for text, ids in steps[:-1]:
                parser.parse_delta(text, ids, request, [163606], finished=False)
            parser.parse_delta(*steps[-1], request, [163606], finished=True)

        return timed(run)

    return seconds


def plugin_kimi() -> Runner:
    """Our plug-in inside vLLM's parser classes, so that both sides make the same objects."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.parser import ParserManager

        from serve.engine import vllm_parsers
    vllm_parsers.register()
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "x"}], tools=TOOLS)
    made = ParserManager.get_parser("specgate_kimi_k2", "specgate_kimi_k2", enable_auto_tools=True)
    vocabulary = Vocabulary()

    def seconds(steps: Steps) -> float:
        def run() -> None:
            parser = made(vocabulary, request.tools)
            for text, ids in steps[:-1]:
                parser.parse_delta(text, ids, request, [163606], finished=False)
            parser.parse_delta(*steps[-1], request, [163606], finished=True)

        return timed(run)

    return seconds


def measure(lengths: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Microseconds per token of every way, by length and step."""
    ways: dict[str, tuple[Callable[[int], list[Token]], Runner]] = {
        "ours": (kimi_tokens, ours("kimi_k2")),
        "our plug-in": (kimi_tokens, plugin_kimi()),
        "vLLM": (kimi_tokens, vllm_kimi()),
        "re-parse": (kimi_tokens, reparse("kimi_k2")),
        "ours, XML": (qwen_tokens, ours("qwen3_coder")),
    }
    rows = []
    for length in lengths:
        for size in STEPS:
            found: dict[str, list[float]] = {name: [] for name in ways}
            for number in range(rounds):
                for name, (tokens, run) in ways.items():
                    if name != "re-parse" or number == 0:
                        found[name].append(run(cut(tokens(length), size)) / length * 1e6)
            rows.append({"tokens": length, "step": size, **{k: statistics.median(v) for k, v in found.items()}})
    return rows


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Ratios, and whether the goals are met."""
    by_key = {(row["tokens"], row["step"]): row for row in rows}
    longest, shorter = max(row["tokens"] for row in rows), sorted({row["tokens"] for row in rows})[-2]
    growth = {
        str(step): by_key[longest, step]["ours"] * longest / (by_key[shorter, step]["ours"] * shorter) for step in STEPS
    }
    faster = min(row["vLLM"] / row["our plug-in"] for row in rows)
    reparse_at = min(row["re-parse"] / row["ours"] for row in rows if row["tokens"] == shorter)
    return {
        "growth": growth,
        "least_vllm_over_plugin": faster,
        "least_vllm_over_ours": min(row["vLLM"] / row["ours"] for row in rows),
        "least_reparse_over_ours_at_10k": reparse_at,
        "goals_met": max(growth.values()) <= GOAL_GROWTH and faster > 1 and reparse_at >= GOAL_REPARSE,
    }


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """All of it, microseconds per token."""
    made = Table(title="microseconds per token, medians")
    for name in (*rows[0], "vLLM / plug-in", "re-parse / ours"):
        made.add_column(name, justify="right")
    for row in rows:
        values = [*row.values(), row["vLLM"] / row["our plug-in"], row["re-parse"] / row["ours"]]
        made.add_row(*(f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" for value in values))
    return made


def plot(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Time per token by length."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    for name in ("re-parse", "vLLM", "our plug-in", "ours", "ours, XML"):
        mine = [row for row in rows if row["step"] == 1]
        axes.plot([row["tokens"] for row in mine], [row[name] for row in mine], marker="o", label=name)
    axes.set(xscale="log", yscale="log", xlabel="tokens in the stream", ylabel="µs per token")
    axes.set_title("Parsing a tool call, one token a step")
    axes.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and draw."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--json", type=Path, help="write the figures here")
    options.add_argument("--plot", type=Path, default=Path("docs/img/parsing.png"))
    options.add_argument("--rounds", type=int, default=ROUNDS)
    options.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    given = options.parse_args(arguments)
    logging.disable(logging.WARNING)
    rows = measure(given.lengths, given.rounds)
    result = {"rows": rows, "summary": summary(rows)}
    console = Console()
    console.print(table(rows))
    console.print_json(json.dumps(result["summary"]))
    plot(given.plot, rows)
    if given.json:
        given.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
