"""What the example requests came to, and what to try next."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import openai
from rich.markup import escape
from rich.table import Table

from serve.tools.demo.asking import ask
from serve.tools.demo.cases import WRONG_MODEL, Case, Result, cases


@dataclass
class Report:
    """What every case of a run came to: (model, case, result, problem or None)."""

    rows: list[tuple[str, Case, Result, str | None]] = field(default_factory=list)

    @property
    def right(self) -> int:
        return sum(problem is None for *_, problem in self.rows)

    def table(self) -> Table:
        table = Table("model", "request", "class", "pool", "speculation", "drafted", "accepted", "ms", "outcome")
        for model, case, result, problem in self.rows:
            table.add_row(
                model, case.name, case.kind, result.pool, result.speculative, str(result.drafted), str(result.accepted),
                f"{result.elapsed_ms:.0f}", "[green]right" if problem is None else f"[red]{escape(problem)}",
            )  # fmt: skip
        return table

    def to_dict(self) -> list[dict[str, Any]]:
        """The rows as plain values."""
        return [
            {
                "model": model, "request": case.name, "class": case.kind, "pool": result.pool,
                "speculative": result.speculative, "drafted": result.drafted, "accepted": result.accepted,
                "ms": round(result.elapsed_ms, 1), "problem": problem,
            }
            for model, case, result, problem in self.rows
        ]  # fmt: skip


async def run(url: str, models: Sequence[str], say: Callable[[str], None]) -> Report:
    """Send every case to every model of the gateway at `url`."""
    report = Report()
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        todo = [(model, case) for model in models for case in cases(model)]
        for model, case in [*todo, ("no-such-model", WRONG_MODEL)]:
            result = await ask(client, model, case)
            problem = case.right(result)
            report.rows.append((model, case, result, problem))
            say(f"{model}: {case.name}: {problem or 'right'}")
    return report


TRY_NEXT = """Try next, while `make serve` runs:

  curl -s {url}/v1/chat/completions -H 'content-type: application/json' -d '{{
    "model": "tiny-kimi", "messages": [{{"role": "user", "content": "Tell me about Lisbon"}}],
    "enable_speculative": false}}' -i

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="none")
  print(client.chat.completions.create(
      model="tiny-qwen", messages=[{{"role": "user", "content": "Tell me about Lisbon"}}],
      extra_body={{"enable_speculative": True}}).choices[0].message.content)
"""
