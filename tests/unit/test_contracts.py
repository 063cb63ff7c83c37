"""`make lint` holds the house together: each contract fails when it is broken, in a copy of the tree."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("house")
    for package in ("serve", "policies", "lab"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__", "advisories"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


@pytest.fixture
def house(untouched: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(untouched, tmp_path / "house"))


def lint(house: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN / command[0], *command[1:]], cwd=house, capture_output=True, text=True, check=False)


def add_import(house: Path, module: str, line: str) -> None:
    path = house / module
    path.write_text(f"{path.read_text()}\n\ndef _added() -> None:\n    {line}\n")


def test_the_house_as_it_is_keeps_its_contracts(house: Path) -> None:
    assert lint(house, "lint-imports", "--no-cache").returncode == 0
    assert lint(house, "deptry", "serve", "policies").returncode == 0


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("serve/http1/server.py", "import vllm", "only serve.engine.vllm imports vLLM and torch"),
        ("serve/engine/replica.py", "import torch", "only serve.engine.vllm imports vLLM and torch"),
        ("serve/guard/core/guard.py", "import pydantic", "pure cores"),
        ("serve/http1/server.py", "import serve.gateway.pipeline", "one direction"),
        ("serve/guard/core/guard.py", "import serve.guard.rerun", "guard: wiring above the pure core"),
        ("serve/stream/frame.py", "import serve.stream.line", "stream: stages above the line"),
        ("serve/quarantine/detector.py", "import serve.quarantine.live_policy", "quarantine: what Ray runs"),
        ("policies/decide.py", "import serve.errors", "policies imports nothing of the serving side"),
        ("serve/gateway/pipeline.py", "import openai", "import what their extras bring"),
        ("serve/launch/submit.py", "import lab.sim", "the gateway does without the laboratory"),
        ("lab/sim/pool.py", "import lab.simulation", "the laboratory: one direction"),
        ("serve/parsing/events.py", "import serve.parsing.parser", "no cycles among siblings"),
    ],
)
def test_an_import_against_the_order_fails_lint(house: Path, module: str, line: str, broken: str) -> None:
    add_import(house, module, line)
    result = lint(house, "lint-imports", "--no-cache")
    assert result.returncode == 1
    assert any(broken in row and "BROKEN" in row for row in result.stdout.splitlines()), result.stdout


@pytest.mark.parametrize("module", ["serve/somewhere.py", "serve/guard/somewhere.py", "serve/quarantine/somewhere.py"])
def test_a_module_without_a_place_fails_lint(house: Path, module: str) -> None:
    (house / module).write_text('"""A module that nobody gave a place."""\n')
    result = lint(house, "lint-imports", "--no-cache")
    assert result.returncode == 1
    assert "somewhere" in result.stdout


def test_an_undeclared_import_fails_lint(house: Path) -> None:
    add_import(house, "serve/gateway/pipeline.py", "import attr")
    result = lint(house, "deptry", "serve", "policies")
    assert result.returncode == 1
    assert "'attr' imported but it is a transitive dependency" in result.stdout + result.stderr
