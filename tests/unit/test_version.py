"""The version has one source, pyproject.toml, and whoever asks gets it."""

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from serve import VERSION
from serve.cli import app

ROOT = Path(__file__).parents[2]


def test_the_command_line_tells_the_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"specgate {VERSION}\n")


@pytest.mark.parametrize("file", ["pyproject.toml", "lab/pyproject.toml"])
def test_both_distributions_say_what_one_may_do_with_them(file: str) -> None:
    project = tomllib.loads((ROOT / file).read_text())["project"]
    assert project["license"] == "Apache-2.0"
    assert not any("Do Not Upload" in each for each in project.get("classifiers", ()))


def test_both_distributions_have_the_same_version() -> None:
    files = (ROOT / "pyproject.toml", ROOT / "lab/pyproject.toml")
    assert len({tomllib.loads(file.read_text())["project"]["version"] for file in files}) == 1
