"""Evaluates the tiny models on real vLLM engines: `python -m models.evaluate` prints the figures of README.md.

Every answer is compared with the one right answer: text exactly, calls as our parser reads them. A call is clean if its
markup, its name and every argument are right; the order of arguments does not matter.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from models.dialogues import Dialogue, held_out
from models.render import answer_text, prompt_text, token_ids
from serve.parsing import parse

ROOT = Path(__file__).parent
# What the CPU build of vLLM needs on a small shared machine.
ENGINE_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}
DRAFTED = 3
POOLS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "tiny-kimi standard": ("tiny-kimi", None),
    "tiny-kimi eagle3": (
        "tiny-kimi",
        {"method": "eagle3", "model": str(ROOT / "tiny-kimi-eagle3"), "num_speculative_tokens": DRAFTED},
    ),
    "tiny-qwen standard": ("tiny-qwen", None),
    "tiny-qwen draft_model": (
        "tiny-qwen",
        {"method": "draft_model", "model": str(ROOT / "tiny-qwen-draft"), "num_speculative_tokens": DRAFTED},
    ),
    "tiny-qwen ngram": (
        "tiny-qwen",
        {"method": "ngram", "num_speculative_tokens": DRAFTED, "prompt_lookup_min": 1, "prompt_lookup_max": 3},
    ),
}
GRAMMARS = {"tiny-kimi": "kimi_k2", "tiny-qwen": "qwen3_coder"}


@dataclass(frozen=True, slots=True)
class Figures:
    """Right answers and all answers by kind of dialogue, and what the drafter did."""

    pool: str
    right: dict[str, int]
    asked: dict[str, int]
    clean_calls: int
    requests_with_calls: int
    drafts: int
    accepted: int

    @property
    def acceptance_length(self) -> float | None:
        """Mean number of tokens a step of the target yields, its own token included."""
        return 1 + self.accepted / self.drafts if self.drafts else None


def is_right(model: str, d: Dialogue, text: str) -> bool:
    """Returns True if a complete output is the dialogue's answer."""
    if not d.calls:
        return text == answer_text(model, d).removesuffix("<|im_end|>")
    said = parse(text, grammar=GRAMMARS[model], tools=[tool.schema() for tool in d.tools], thinking=d.thinking)
    if said.violations or (said.content or "").strip():
        return False
    return [(call.name, json.loads(call.arguments)) for call in said.tool_calls] == [
        (call.name, call.arguments) for call in d.calls
    ]


def measure(pool: str, count: int) -> Figures:
    """Start the engine of one pool in this process and put the whole set to it, greedily."""
    from vllm import LLM, SamplingParams

    from serve.engine.vllm import tokenizer as vllm_tokenizer

    vllm_tokenizer.register()
    model, speculative = POOLS[pool]
    engine = LLM(
        str(ROOT / model),
        tokenizer_mode=vllm_tokenizer.MODE if model == "tiny-kimi" else "auto",
        speculative_config=speculative,
        enforce_eager=True,
        max_model_len=1024,
        disable_log_stats=False,
        dtype="bfloat16",
    )
    dialogues = held_out(count)
    sampling = SamplingParams(temperature=0, max_tokens=300, skip_special_tokens=False)
    prompts = [{"prompt_token_ids": token_ids(model, d)[0]} for d in dialogues]
    outputs = engine.generate(prompts, sampling, use_tqdm=False)
    right, asked, clean, with_calls = Counter[str](), Counter[str](), 0, 0
    for d, output in zip(dialogues, outputs, strict=True):
        good = output.outputs[0].finish_reason == "stop" and is_right(model, d, output.outputs[0].text)
        asked[d.kind] += 1
        right[d.kind] += good
        with_calls += bool(d.calls)
        clean += good and bool(d.calls)
        if not good and os.environ.get("SPECGATE_SHOW_WRONG"):
            wanted = answer_text(model, d)
            print(f"{prompt_text(model, d)}\n  wanted {wanted}\n  got    {output.outputs[0].text}", file=sys.stderr)
    counters = {metric.name: getattr(metric, "value", 0) for metric in engine.get_metrics()}
    return Figures(
        pool, dict(right), dict(asked), clean, with_calls,
        int(counters.get("vllm:spec_decode_num_drafts", 0)),
        int(counters.get("vllm:spec_decode_num_accepted_tokens", 0)),
    )  # fmt: skip


def row(figures: Figures) -> str:
    """One line of the table in README.md."""
    length = figures.acceptance_length
    kinds = ", ".join(f"{kind} {figures.right[kind]}/{figures.asked[kind]}" for kind in sorted(figures.asked))
    clean = f"{figures.clean_calls}/{figures.requests_with_calls}"
    share = 100 * figures.clean_calls / figures.requests_with_calls
    drafted = "-" if length is None else f"{length:.2f}"
    return f"| {figures.pool} | {share:.1f} % ({clean}) | {drafted} | {kinds} |"


def main() -> None:
    """Measure every pool, each in a process of its own, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=600, help="dialogues")
    parser.add_argument("--pool", choices=POOLS, action="append", help="only this pool; may be repeated")
    parser.add_argument("--here", action="store_true", help="one pool, in this process, as JSON")
    given = parser.parse_args()
    pools = given.pool or list(POOLS)
    if given.here:
        print("FIGURES " + json.dumps(asdict(measure(pools[0], given.count))), flush=True)
        return
    print("| pool | clean tool calls | mean acceptance length | exact answers by kind |\n|---|---|---|---|", flush=True)
    for pool in pools:
        command = [sys.executable, "-m", "models.evaluate", "--here", "--pool", pool, "--count", str(given.count)]
        done = subprocess.run(
            command, env={**os.environ, **ENGINE_ENVIRONMENT}, stdout=subprocess.PIPE, text=True, check=True
        )
        line = next(line for line in done.stdout.splitlines() if line.startswith("FIGURES "))
        print(row(Figures(**json.loads(line.removeprefix("FIGURES ")))), flush=True)


if __name__ == "__main__":
    main()
