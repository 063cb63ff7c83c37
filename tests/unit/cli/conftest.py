import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from serve.cli import app

K26 = """
models:
  kimi:
    family: kimi-k2
    version: "2.6"
    grammar: kimi_k2
    aliases: [k2]
    engine_args: {tool-call-parser: kimi_k2, reasoning-parser: kimi_k2}
    pools:
      speculative:
        engine_args: {speculative-config: {method: eagle3, model: %(drafter)s, num_speculative_tokens: 3}}
        facts: {engine_version: "%(version)s"}
      standard:
        facts: {engine_version: "%(version)s"}
"""


@pytest.fixture
def kimi(tmp_path: Path) -> Callable[..., Path]:
    def write(drafter: str = "org/kimi-k2.6-eagle3", version: str = "0.20.2", more: str = "") -> Path:
        path = tmp_path / f"{drafter.rsplit('/', 1)[-1]}-{version}.yaml"
        path.write_text(K26 % {"drafter": drafter, "version": version} + more, encoding="utf-8")
        return path

    return write


@pytest.fixture
def specgate() -> Callable[..., tuple[int, str]]:
    """Run a command; its exit code and what it printed."""

    def run(*arguments: Any, stdin: str | None = None) -> tuple[int, str]:
        result = CliRunner().invoke(app, [str(each) for each in arguments], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output

    return run


@pytest.fixture
def body() -> Callable[..., str]:
    def make(model: str = "kimi", tools: bool = True, **fields: Any) -> str:
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        messages = [{"role": "user", "content": "hi"}]
        return json.dumps({"model": model, "messages": messages, **({"tools": [tool]} if tools else {}), **fields})

    return make
