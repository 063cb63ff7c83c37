"""Benchmark of the parsers: time per token beside vLLM's own parsers and beside re-parsing the whole text at each step.

The same tokens in the same steps through all of them, in one process, in turns; medians of CPU time, so that other work
on the machine counts little. What would take minutes is measured at some steps only, spread over the stream, and marked
with `~`. Run it with `python -m bench.parsing`.
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

from bench.parsing_sides import Arguments, Open, machine, machine_arguments, reparse, through_vllm, vllm_arguments
from bench.parsing_streams import FRAMES, Step, Stream, stream

LENGTHS = (1_000, 10_000, 100_000)
SIZES = (1, 4)
ROUNDS = 3
VLLM = {"kimi_k2": ("kimi_k2", "kimi_k2"), "qwen3_coder": ("qwen3_coder", "qwen3")}  # tool and reasoning parser
PLACES = 6  # of a stream that is measured in samples
SAMPLE = 4  # steps at each
SKIP = 2_500  # steps that are joined to one on the way to the next sample
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


Row = dict[str, Any]  # grammar, tokens, step, and a Figure by side


def sides(grammar: str) -> list[Side]:
    """All that are compared. VLLM's parser of XML reads a call's arguments again at each step, as re-parsing does."""
    longest = max(LENGTHS)
    plugin = f"specgate_{grammar}"
    return [
        Side("ours", machine(grammar), machine_arguments, longest),
        Side("plug-in", through_vllm(plugin, plugin), vllm_arguments, longest),
        Side("vLLM", through_vllm(*VLLM[grammar]), vllm_arguments, longest if grammar == "kimi_k2" else 1_000),
        Side("re-parse", reparse(grammar), "".join, 10_000),
    ]


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def whole(side: Side, given: Stream, steps: Sequence[Step]) -> float:
    """Seconds for all steps; what came out is checked afterwards."""
    feed, last, outputs = side.open(), len(steps) - 1, []
    with _collector_at_rest():
        start = time.thread_time()
        for place, (text, ids) in enumerate(steps):
            outputs.append(feed(text, ids, place == last))
        seconds = time.thread_time() - start
    assert json.loads(side.arguments(outputs))["body"] == given.body, f"{side.name} lost something of {given.grammar}"
    return seconds


def sampled(side: Side, given: Stream, steps: Sequence[Step]) -> float:
    """Seconds for all steps, from some at places spread evenly; the text between comes in larger deltas."""
    feed, taken, done = side.open(), [], 0
    with _collector_at_rest():
        for number in range(PLACES):
            place = (2 * number + 1) * len(steps) // (2 * PLACES)
            while done < place:
                joined = steps[done : min(done + SKIP, place)]
                feed("".join(text for text, _ in joined), [token for _, ids in joined for token in ids], False)
                done += len(joined)
            start = time.thread_time()
            for text, ids in steps[done : done + SAMPLE]:
                feed(text, ids, False)
            taken.append((time.thread_time() - start) / SAMPLE)
            done += SAMPLE
    return fmean(taken) * len(steps)


def measure(lengths: Sequence[int], rounds: int) -> Iterator[Row]:
    """One row after the other; in each round the sides take turns, each time in another order."""
    for grammar in FRAMES:
        compared = sides(grammar)
        for tokens in lengths:
            given = stream(grammar, tokens)
            for size in SIZES:
                steps = given.steps(size)
                print(f"{grammar}: {tokens:,} tokens, {size} a step", file=sys.stderr, flush=True)
                found: dict[str, list[float]] = {side.name: [] for side in compared}
                for number in range(rounds):
                    turn = number % len(compared)
                    for side in compared[turn:] + compared[:turn]:
                        way: Callable[..., float] = whole if tokens <= side.whole_up_to else sampled
                        found[side.name].append(way(side, given, steps) / tokens * 1e6)
                figures = {side.name: Figure(median(found[side.name]), tokens > side.whole_up_to) for side in compared}
                yield {"grammar": grammar, "tokens": tokens, "step": size, **figures}


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Ratios, and whether the goals are met."""
    lengths = sorted({row["tokens"] for row in rows})
    seconds = {
        (name, row["grammar"], row["step"], row["tokens"]): row[name].us * row["tokens"]
        for row in rows
        for name in ("ours", "plug-in")
    }
    growth = {
        f"{name}, {grammar}, {step} a step": total / seconds[name, grammar, step, lengths[-2]]
        for (name, grammar, step, tokens), total in seconds.items()
        if len(lengths) > 1 and tokens == lengths[-1]
    }
    vllm = min(row["vLLM"].us / row["plug-in"].us for row in rows)
    reparsed = min((row["re-parse"].us / row["ours"].us for row in rows if row["tokens"] == 10_000), default=None)
    return {
        "time_of_longest_over_next": growth,
        "least_vllm_over_plugin": vllm,
        "least_vllm_over_ours": min(row["vLLM"].us / row["ours"].us for row in rows),
        "least_reparse_over_ours_at_10k": reparsed,
        "goals_met": max(growth.values(), default=0) <= GOAL_GROWTH and vllm > 1 and (reparsed or 0) >= GOAL_REPARSE,
    }


def table(rows: Sequence[Row]) -> Table:
    """All of it."""
    made = Table(title="CPU microseconds per token, medians; ~ from samples")
    for name in ("grammar", "tokens", "a step", *_NAMES, "vLLM / plug-in", "re-parse / ours"):
        made.add_column(name, justify="right")
    for row in rows:
        figures = [f"{'~' if row[name].sampled else ''}{row[name].us:,.1f}" for name in _NAMES]
        ratios = [row["vLLM"].us / row["plug-in"].us, row["re-parse"].us / row["ours"].us]
        made.add_row(
            row["grammar"], f"{row['tokens']:,}", str(row["step"]), *figures, *(f"{ratio:,.1f}" for ratio in ratios)
        )
    return made


_NAMES = ("ours", "plug-in", "vLLM", "re-parse")


def plot(path: Path, rows: Sequence[Row]) -> None:
    """Time per token by length, one token a step; hollow marks are from samples."""
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(10, 4))
    for axes, grammar in zip(drawing.subplots(1, 2, sharey=True), FRAMES, strict=True):
        mine = [row for row in rows if row["grammar"] == grammar and row["step"] == 1]
        for name, colour in zip(reversed(_NAMES), ("C3", "C1", "C0", "C2"), strict=True):
            axes.plot([row["tokens"] for row in mine], [row[name].us for row in mine], color=colour, label=name)
            for row in mine:
                fill = "none" if row[name].sampled else colour
                axes.plot(row["tokens"], row[name].us, marker="o", color=colour, markerfacecolor=fill)
        axes.set(xscale="log", yscale="log", xlabel="tokens in the stream", title=f"{grammar}, one token a step")
        axes.grid(alpha=0.3)
    drawing.axes[0].set_ylabel("CPU µs per token (hollow: from samples)")
    drawing.axes[0].legend()
    drawing.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, dpi=110)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, save and draw."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--json", type=Path, default=Path("bench/results/parsing.json"))
    options.add_argument("--plot", type=Path, default=Path("docs/img/parsing.png"))
    options.add_argument("--rounds", type=int, default=ROUNDS)
    options.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    given = options.parse_args(arguments)
    logging.disable(logging.WARNING)
    rows = list(measure(given.lengths, given.rounds))
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
