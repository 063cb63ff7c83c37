"""Runs the example requests and reports their results, with suggestions for what to try next."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import openai
from rich.table import Table
from rich.text import Text

from lab.demo.client import ask
from lab.demo.examples import WRONG_MODEL, Example, ExampleResult, examples


@dataclass
class DemoReport:
    """The results of a run: (model, example, result, problem or None)."""

    rows: list[tuple[str, Example, ExampleResult, str | None]] = field(default_factory=list)

    @property
    def right(self) -> int:
        return sum(problem is None for *_, problem in self.rows)

    def table(self) -> Table:
        table = Table("model", "request", "class", "pool", "speculation", "drafted", "accepted", "ms", "outcome")
        for model, example, result, problem in self.rows:
            table.add_row(
                model,
                example.name,
                example.kind,
                result.pool,
                result.speculative,
                str(result.drafted),
                str(result.accepted),
                f"{result.elapsed_ms:.0f}",
                Text("right", "green") if problem is None else Text(problem, "red"),
            )
        return table

    def to_dict(self) -> list[dict[str, Any]]:
        """Returns the rows as plain values."""
        return [
            {
                "model": model, "request": example.name, "class": example.kind, "pool": result.pool,
                "speculative": result.speculative, "drafted": result.drafted, "accepted": result.accepted,
                "ms": round(result.elapsed_ms, 1), "problem": problem,
            }
            for model, example, result, problem in self.rows
        ]  # fmt: skip


async def run(url: str, models: Sequence[str], say: Callable[[str], None]) -> DemoReport:
    """Send every example to every model.

    Args:
        url: The gateway's base URL, without `/v1`.
        models: Names of the models to ask.
        say: Called with lines of progress.
    """
    report = DemoReport()
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        todo = [(model, example) for model in models for example in examples(model)]
        for model, example in [*todo, ("no-such-model", WRONG_MODEL)]:
            result = await ask(client, model, example)
            problem = example.check(result)
            report.rows.append((model, example, result, problem))
            say(f"{model}: {example.name}: {problem or 'right'}")
    return report


TRY_NEXT = """Try next, while `make serve` runs:

  {admin_api} in a browser: the pools, why requests went where they went, and quarantine

  curl -s {url}/v1/chat/completions -H 'content-type: application/json' -d '{{
    "model": "tiny-kimi", "messages": [{{"role": "user", "content": "Tell me about Lisbon"}}],
    "enable_speculative": false}}' -i

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="none")
  print(client.chat.completions.create(
      model="tiny-qwen", messages=[{{"role": "user", "content": "Tell me about Lisbon"}}],
      extra_body={{"enable_speculative": True}}).choices[0].message.content)
"""
