"""`python -m bench.goodput --traffic`: what it prints, and what it says of files that it can't play."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.goodput.__main__ import main

CONFIG = """
models:
  m:
    family: sim
    grammar: hermes
    pools:
      fast: {kind: sim, proven: [any], sim: {economics: {}, num_speculative_tokens: 3},
        facts: {engine_version: "0", drafter: none, tool_parser: none, prefix_caching: true}}
      plain: {kind: sim, sim: {economics: {}}}
policy:
  overrides: [{action: forbid, pool: fast, classes: [any], reason: as a test}]
"""


def line(number: int, kind: str) -> str:
    return json.dumps({"t_s": number / 10, "class": kind, "prompt_tokens": 200, "output_tokens": 50 + number})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Plays a file's text; what was printed."""

    def play(text: str, *arguments: str) -> str:
        path = tmp_path / "traffic.jsonl"
        path.write_text(text, encoding="utf-8")
        monkeypatch.setattr("sys.argv", ["goodput", "--traffic", str(path), *arguments])
        main()
        return capsys.readouterr().out

    return play


@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize("kinds", [["tools"], ["prose"], ["tools", "prose", "json"]])
def test_every_figure_is_a_number_whatever_the_classes(run: Any, kinds: list[str], processes: str) -> None:
    text = "\n".join(line(number, kinds[number % len(kinds)]) for number in range(20))
    reply = json.loads(run(text, "--json", "--processes", processes), parse_constant=pytest.fail)
    assert "null" not in json.dumps(reply)
    assert {*reply["arms"]} == {"speculative_first", "standard_only", "two_choices", "class_rule", "specgate"}
    assert reply["oracle"]["ratio_to_oracle"] == 1.0


def test_processes_change_nothing_but_the_time(run: Any) -> None:
    text = "\n".join(line(number, "tools") for number in range(20))
    assert run(text, "--json", "--processes", "1") == run(text, "--json", "--processes", "3")


def test_the_policy_of_the_configuration_is_kept(run: Any, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG, encoding="utf-8")
    reply = json.loads(run(line(0, "tools"), "--json", "--config", str(config)))
    assert [row["forbidden"] for row in reply["arms"].values()] == [0] * 5
    assert [row["ratio_to_oracle"] for row in reply["arms"].values()] == [1.0] * 5


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        ("", (), "no request"),
        ("[1]", (), "line 1"),
        (line(0, "poetry"), (), "tools, prose, json"),
        (line(0, "tools"), ("--config", "/nowhere.yaml"), "/nowhere.yaml"),
        (line(0, "tools"), ("--traffic", "/nowhere.jsonl"), "/nowhere.jsonl"),
    ],
)
def test_what_can_not_be_played_is_one_line_and_exit_code_2(
    run: Any, capsys: pytest.CaptureFixture[str], text: str, arguments: tuple[str, ...], words: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(text, *arguments)
    reply = capsys.readouterr().err
    assert stopped.value.code == 2
    assert words in reply
    assert reply.count("\n") == 1
