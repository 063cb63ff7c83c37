"""Benchmark of the parsers against vLLM's own and against re-parsing the whole text at each step.

Every parser gets the same tokens in the same steps, in one process, in turns. Figures are medians of CPU time, so other
work on the machine matters little. Runs that would take minutes are sampled at a few places spread over the stream and
marked with `~`. Run it with `python -m bench.parsing`.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.parsing.sides import (
    REPARSED,
    Arguments,
    Open,
    is_in_vllm,
    machine,
    machine_arguments,
    reparse,
    through_vllm,
    vllm_arguments,
)
from bench.parsing.streams import FRAMES, Step, Stream, stream

LENGTHS = (1_000, 10_000, 100_000)
SIZES = (1, 4)
ROUNDS = 3
VLLM = {  # tool and reasoning parser
    "kimi_k2": ("kimi_k2", "kimi_k2"),
    "qwen3_coder": ("qwen3_coder", "qwen3"),
    "deepseek_v3": ("deepseek_v3", "deepseek_r1"),
    "deepseek_v31": ("deepseek_v31", "deepseek_r1"),
    "deepseek_v32": ("deepseek_v32", "deepseek_r1"),
    "deepseek_v4": ("deepseek_v4", "deepseek_v4"),
    "deepseek_v41": ("deepseek_v41", "deepseek_v41"),
    "mimo": ("mimo", "mimo"),
    "glm47": ("glm47", "glm45"),
    "hy_v3": ("hy_v3", "hy_v3"),
    "minimax_m2": ("minimax_m2", "minimax_m2"),
    "minimax_m3": ("minimax_m3", "minimax_m3"),
    "kimi_k3": ("kimi_k3", "kimi_k3"),
}
PLACES = 6  # places at which a sampled stream is measured
SAMPLE = 4  # steps measured at each place
SKIP = 2_500  # steps joined into one on the way to the next place
_NAMES = ("ours", "plug-in", "vLLM", "re-parse")
GOAL_GROWTH = 12.0
GOAL_REPARSE = 50.0


@dataclass(frozen=True)
class Side:
    """A parser under measurement; longer streams than `whole_up_to` tokens are measured in samples."""

    name: str
    open: Open
    arguments: Arguments
    whole_up_to: int


@dataclass(frozen=True)
class Figure:
    """Microseconds of CPU time per token, of a whole stream or from samples of it."""

    us: float
    sampled: bool


Row = dict[str, Any]  # grammar, tokens, step, and a Figure by side, of those sides that read the grammar


def sides(grammar: str) -> list[Side]:
    """Returns the parsers to compare; vLLM's XML parser, like `re-parse`, re-reads a call's arguments at each step."""
    longest = max(LENGTHS)
    plugin = f"specgate_{grammar}"
    found = [Side("ours", machine(grammar), machine_arguments, longest)]
    if is_in_vllm(plugin):
        found.append(Side("plug-in", through_vllm(plugin, plugin), vllm_arguments, longest))
    if grammar in VLLM:  # its parser of harmony reads nothing but gpt-oss' own tokens
        theirs = through_vllm(*VLLM[grammar])
        found.append(Side("vLLM", theirs, vllm_arguments, longest if grammar == "kimi_k2" else 1_000))
    if grammar in REPARSED:
        found.append(Side("re-parse", reparse(grammar), "".join, 10_000))
    return found


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def whole(side: Side, given: Stream, steps: Sequence[Step]) -> float:
    """Measure the seconds for all steps; the output is checked afterwards."""
    feed = side.open()
    last = len(steps) - 1
    outputs = []
    with _without_garbage_collection():
        start = time.thread_time()
        for place, (text, ids) in enumerate(steps):
            outputs.append(feed(text, ids, place == last))
        seconds = time.thread_time() - start
    assert json.loads(side.arguments(outputs))["body"] == given.body, f"{side.name} lost something of {given.grammar}"
    return seconds


def sampled(side: Side, given: Stream, steps: Sequence[Step]) -> float:
    """Estimate the seconds for all steps from evenly spaced samples; text in between is fed in large deltas."""
    feed = side.open()
    per_step: list[float] = []
    done = 0
    with _without_garbage_collection():
        for number in range(PLACES):
            place = (2 * number + 1) * len(steps) // (2 * PLACES)
            while done < place:
                joined = steps[done : min(done + SKIP, place)]
                feed("".join(text for text, _ in joined), [token for _, ids in joined for token in ids], False)
                done += len(joined)
            start = time.thread_time()
            for text, ids in steps[done : done + SAMPLE]:
                feed(text, ids, False)
            per_step.append((time.thread_time() - start) / SAMPLE)
            done += SAMPLE
    return fmean(per_step) * len(steps)


def measure(grammars: Sequence[str], lengths: Sequence[int], rounds: int) -> Iterator[Row]:
    """Yield one row after another; the sides take turns, in a different order in each round."""
    for grammar in grammars:
        compared = sides(grammar)
        for tokens in lengths:
            given = stream(grammar, tokens)
            for size in SIZES:
                steps = given.steps(size)
                print(f"{grammar}: {tokens:,} tokens, {size} per step", file=sys.stderr, flush=True)
                us_per_token: dict[str, list[float]] = {side.name: [] for side in compared}
                for number in range(rounds):
                    turn = number % len(compared)
                    for side in compared[turn:] + compared[:turn]:
                        seconds: Callable[..., float] = whole if tokens <= side.whole_up_to else sampled
                        us_per_token[side.name].append(seconds(side, given, steps) / tokens * 1e6)
                figures = {
                    side.name: Figure(median(us_per_token[side.name]), tokens > side.whole_up_to) for side in compared
                }
                yield {"grammar": grammar, "tokens": tokens, "step": size, **figures}


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Returns the ratios, and whether the goals are met."""
    lengths = sorted({row["tokens"] for row in rows})
    seconds = {
        (name, row["grammar"], row["step"], row["tokens"]): row[name].us * row["tokens"]
        for row in rows
        for name in ("ours", "plug-in")
        if name in row
    }
    growth = {
        f"{name}, {grammar}, {step} a step": total / seconds[name, grammar, step, lengths[-2]]
        for (name, grammar, step, tokens), total in seconds.items()
        if len(lengths) > 1 and tokens == lengths[-1]
    }
    vllm = min(filter(None, (_ratio(row, "vLLM", "plug-in") for row in rows)), default=None)
    at_10k = (_ratio(row, "re-parse", "ours") for row in rows if row["tokens"] == 10_000)
    reparsed = min(filter(None, at_10k), default=None)
    return {
        "time_of_longest_over_next": growth,
        "least_vllm_over_plugin": vllm,
        "least_vllm_over_ours": min(filter(None, (_ratio(row, "vLLM", "ours") for row in rows)), default=None),
        "least_reparse_over_ours_at_10k": reparsed,
        "goals_met": max(growth.values(), default=0) <= GOAL_GROWTH
        and (vllm or 0) > 1
        and (reparsed or 0) >= GOAL_REPARSE,
    }


def _ratio(row: Row, slow: str, fast: str) -> float | None:
    """Returns how many times as long one side takes as another; None if one of them does not read the grammar."""
    return float(row[slow].us / row[fast].us) if slow in row and fast in row else None


def table(rows: Sequence[Row]) -> Table:
    """Returns all rows as a table."""
    result = Table(title="CPU microseconds per token, medians; ~ from samples")
    for name in ("grammar", "tokens", "per step", *_NAMES, "vLLM / plug-in", "re-parse / ours"):
        result.add_column(name, justify="right")
    for row in rows:
        figures = [f"{'~' if row[name].sampled else ''}{row[name].us:,.1f}" if name in row else "" for name in _NAMES]
        ratios = [_ratio(row, "vLLM", "plug-in"), _ratio(row, "re-parse", "ours")]
        shown = [f"{ratio:,.1f}" if ratio else "" for ratio in ratios]
        result.add_row(row["grammar"], f"{row['tokens']:,}", str(row["step"]), *figures, *shown)
    return result


def plot(path: Path, rows: Sequence[Row]) -> None:
    """Plot the time per token over the stream's length, one token per step; hollow marks are from samples."""
    from matplotlib.figure import Figure as Drawing

    grammars = list(dict.fromkeys(row["grammar"] for row in rows))
    drawing = Drawing(figsize=(5 * len(grammars), 4))
    columns = drawing.subplots(1, len(grammars), sharey=True, squeeze=False)[0]
    for axes, grammar in zip(columns, grammars, strict=True):
        mine = [row for row in rows if row["grammar"] == grammar and row["step"] == 1]
        for name, colour in zip(reversed(_NAMES), ("C3", "C1", "C0", "C2"), strict=True):
            if name not in mine[0]:
                continue
            axes.plot([row["tokens"] for row in mine], [row[name].us for row in mine], color=colour, label=name)
            for row in mine:
                fill = "none" if row[name].sampled else colour
                axes.plot(row["tokens"], row[name].us, marker="o", color=colour, markerfacecolor=fill)
        axes.set(xscale="log", yscale="log", xlabel="tokens in the stream", title=f"{grammar}, one token per step")
        axes.grid(alpha=0.3)
    drawing.axes[0].set_ylabel("CPU µs per token (hollow: from samples)")
    drawing.axes[0].legend()
    drawing.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, dpi=110)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, save and plot."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--json", type=Path, default=Path("bench/results/parsing.json"))
    options.add_argument("--plot", type=Path, default=Path("docs/img/parsing.png"))
    options.add_argument("--rounds", type=int, default=ROUNDS)
    options.add_argument("--grammars", nargs="+", choices=FRAMES, default=list(FRAMES))
    options.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    given = options.parse_args(arguments)
    logging.disable(logging.WARNING)
    rows = list(measure(given.grammars, given.lengths, given.rounds))
    result = summary(rows)
    console = Console(width=120)
    console.print(table(rows))
    console.print_json(json.dumps(result))
    plot(given.plot, rows)
    given.json.parent.mkdir(parents=True, exist_ok=True)
    flat = [
        {
            key: {"us": round(value.us, 3), "sampled": value.sampled} if isinstance(value, Figure) else value
            for key, value in row.items()
        }
        for row in rows
    ]
    given.json.write_text(json.dumps({"rows": flat, "summary": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
