"""Public suites: how their cases are read, asked and judged."""

import asyncio
import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest

from bench.public.__main__ import chosen, main, model_of, table, unanswered
from bench.public.arms import Row, judged, play
from bench.public.picture import picture
from bench.public.suites import SUITES, PublicCase
from bench.public.written_calls import FORMS
from lab.deltas import fold_deltas
from lab.probe.plan import ProbePlan
from lab.sim import SimSettings
from lab.sim.generation import Generation
from serve.errors import ConfigError
from tests.support.sims import engine

BFCL = {
    "id": "parallel_0",
    "question": [[{"role": "user", "content": "Play both."}]],
    "function": [
        {
            "name": "spotify.play",
            "description": "Plays.",
            "parameters": {"type": "dict", "properties": {"artist": {"type": "String"}, "x": {"type": "float"}}},
        }
    ],
}
GOLD = {"id": "parallel_0", "ground_truth": [{"spotify.play": {"artist": ["Ø"], "x": [1.5, ""], "y": ["", 3]}}] * 2}
TASK = {
    "id": "7",
    "user_scenario": "x",
    "evaluation_criteria": {"actions": [{"name": "get", "arguments": {"id": "Q"}}]},
}
TALK = {
    "id": "talk_0",
    "involved_classes": ["MathAPI", "UnknownAPI"],
    "question": [[{"role": "user", "content": "Sort."}], [{"role": "user", "content": "Rest."}], []],
    "initial_config": {},
}
TALK_GOLD = {"id": "talk_0", "ground_truth": [["sort('a.txt')", "add(x=1, y=2)"], ["sort(name='b')"], []]}
DOCUMENT = [
    {"name": name, "parameters": {"type": "dict", "properties": {each: {"type": kind} for each in members}}}
    for name, kind, members in (("sort", "string", ["name"]), ("add", "float", ["x", "y"]))
]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    }
]
MASK = {
    "case": "a",
    "schema": {"type": "object"},
    "tests": [{"valid": False, "data": 1}, {"valid": True, "data": {"a": 1}}],
}


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path | None]:
    """One case of each suite, in the shape of its own files."""

    def lines(name: str, *rows: Any) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    lines("bfcl/BFCL_v4_parallel.json", BFCL)
    lines("bfcl/possible_answer/BFCL_v4_parallel.json", GOLD)
    lines("kvv/walle_validator_cases/TestAnyOf/valid.jsonl", {"type": "integer"}, {"type": "null"})
    lines("tau2/airline/tasks.json", [TASK, {"id": "8"}])
    with gzip.open(tmp_path / "mask.jsonl.gz", "wt") as file:
        file.write(json.dumps(MASK))
    lines("bfcl/BFCL_v4_multi_turn_base.json", TALK)
    lines("bfcl/possible_answer/BFCL_v4_multi_turn_base.json", TALK_GOLD)
    lines("bfcl/multi_turn_func_doc/math_api.json", *DOCUMENT)
    lines("bfcl/BFCL_v4_format_sensitivity.json", {"parallel": ["parallel_0"]})
    lines(
        "k2vv.jsonl", {"model": "k2", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, "stream": True}
    )
    return {
        "bfcl": tmp_path / "bfcl",
        "multi_turn": tmp_path / "bfcl",
        "formats": tmp_path / "bfcl",
        "k2vv": tmp_path / "k2vv.jsonl",
        "kvv": tmp_path / "kvv",
        "tau2": tmp_path / "tau2",
        "maskbench": tmp_path / "mask.jsonl.gz",
    }


def answered(case: PublicCase, **settings: Any) -> dict[str, Any]:
    body = {**case.body, "model": "m", "stream": True}
    message = fold_deltas([delta for delta in Generation(body, SimSettings(**settings)).deltas() if delta])
    return {"choices": [{"message": message}]}


def test_every_suite_is_read_from_its_own_files(folders: dict[str, Path | None]) -> None:
    cases = chosen(folders, [*SUITES], 10)
    assert [(case.suite, case.name) for case in cases] == [
        ("kvv", "TestAnyOf 1"),
        ("kvv", "TestAnyOf 2"),
        ("maskbench", "a"),
        ("bfcl", "parallel_0"),
        ("bfcl multi-turn", "talk_0 turn 1"),
        ("bfcl multi-turn", "talk_0 turn 2"),
        ("bfcl formats", "parallel_0 as python, tagged"),
        ("tau2", "airline 7"),
        ("k2vv", "line 1"),
    ]
    first, second = cases[4:6]
    assert first.calls == [("sort", {"name": "a.txt"}), ("add", {"x": 1, "y": 2})]
    assert [each["role"] for each in second.body["messages"]] == ["user", "assistant", "tool", "tool", "user", "user"]
    bfcl = cases[3]
    assert bfcl.calls == [("spotify_play", {"artist": "Ø", "x": 1.5})] * 2
    assert bfcl.body["tools"][0]["function"]["parameters"]["properties"] == {
        "artist": {"type": "string"},
        "x": {"type": "number"},
    }


def test_suites_that_are_not_here_are_left_out(folders: dict[str, Path | None]) -> None:
    assert {
        case.suite
        for case in chosen(
            {**folders, "bfcl": None, "multi_turn": None, "formats": None, "k2vv": None, "tau2": None},
            [*SUITES],
            1,
        )
    } == {
        "kvv",
        "maskbench",
    }


def test_an_engine_that_copies_is_right_everywhere_and_one_that_breaks_calls_is_not(
    folders: dict[str, Path | None],
) -> None:
    for case in chosen(folders, [*SUITES], 10):
        assert judged(case, answered(case)) == ("right", "")
        assert judged(case, answered(case, faults={"truncated_string": 1.0}))[0] != "right" or case.suite in (
            "kvv",
            "k2vv",
            "bfcl formats",
        )


CALLS = PublicCase("s", "n", {"tools": [{"function": {"name": "f"}}]}, calls=[("f", {"a": 1})])


def message(**members: Any) -> dict[str, Any]:
    return {"choices": [{"message": members}]}


def call(name: str, arguments: str) -> dict[str, Any]:
    return message(tool_calls=[{"function": {"name": name, "arguments": arguments}}])


@pytest.mark.parametrize(
    ("case", "answer", "verdict"),
    [
        (CALLS, call("f", '{"a": 1}'), "right"),
        (CALLS, call("f", '{"a": 2}'), "changed"),
        (CALLS, call("f", '{"a": '), "broken"),
        (CALLS, call("g", "{}"), "broken"),
        (CALLS, call("f", "[]"), "broken"),
        (CALLS, message(content="I can't."), "lost"),
        (CALLS, {"choices": []}, "lost"),
        (PublicCase("s", "n", {}, document=[1]), message(content="[1.0]"), "right"),
        (PublicCase("s", "n", {}, document=[1]), message(content="[2]"), "changed"),
        (PublicCase("s", "n", {}, schema={"type": "null"}), message(content="1"), "broken"),
        (PublicCase("s", "n", {}, schema={"$ref": "#/nowhere"}), message(content="1"), "right"),
        (PublicCase("s", "n", {}, schema={}), message(content=None), "lost"),
        (PublicCase("s", "n", {}, text="[f(a=1)]"), message(content="[f(a=1)]"), "right"),
        (PublicCase("s", "n", {}, text="[f(a=1)]"), message(content="[f(a=2)]"), "changed"),
        (PublicCase("s", "n", {}, text="[f(a=1)]"), call("f", '{"a": 1}'), "broken"),
        (PublicCase("s", "n", {}, text="[f(a=1)]"), message(content=""), "lost"),
        (PublicCase("s", "n", {"tools": TOOLS}), call("f", '{"a": 1}'), "right"),
        (PublicCase("s", "n", {"tools": TOOLS}), call("f", '{"a": "x"}'), "broken"),
        (PublicCase("s", "n", {"tools": TOOLS}), message(content="no tool is needed"), "right"),
        (PublicCase("s", "n", {"tools": TOOLS}), message(content=None), "lost"),
    ],
)
def test_an_answer_is_right_changed_broken_or_lost(case: PublicCase, answer: dict[str, Any], verdict: str) -> None:
    assert judged(case, answer)[0] == verdict


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("python", "[f(a=1, b='Ø'), g()]"),
        ("json", '[{"function": "f", "parameters": {"a": 1, "b": "Ø"}}, {"function": "g", "parameters": {}}]'),
        (
            "verbose xml",
            '<functions><function name="f"><params><param name="a" value="1" type="int"/>'
            '<param name="b" value="Ø" type="str"/></params></function>'
            '<function name="g"><params></params></function></functions>',
        ),
        (
            "concise xml",
            '<functions><function name="f"><param name="a" type="int">1</param><param name="b" type="str">Ø</param>'
            '</function><function name="g"></function></functions>',
        ),
    ],
)
def test_calls_are_written_as_text_in_four_forms(form: str, text: str) -> None:
    assert FORMS[form]([("f", {"a": 1, "b": "Ø"}), ("g", {})]) == text


def plan_for(url: str) -> ProbePlan:
    return ProbePlan(
        url=url, model="m", cells=(), trials=1, temperature=0.0, max_tokens=None, speculative=None, concurrency=2,
        timeout_s=10, api_key_env=None, tolerate=0,
    )  # fmt: skip


@pytest.mark.parametrize("suite", [*SUITES])
def test_a_folder_that_is_empty_or_not_there_is_named_with_where_to_get_the_suite(suite: str, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match=rf"(?s){re.escape(str(folder))}.*({SUITES[suite].source})"):
            chosen({suite: folder}, [suite], 1)


def test_a_folder_that_holds_something_else_is_named(tmp_path: Path) -> None:
    (tmp_path / "airline").mkdir()
    (tmp_path / "airline" / "tasks.json").write_text("")
    with pytest.raises(ConfigError, match=rf"{tmp_path} does not hold the suite tau2"):
        chosen({"tau2": tmp_path}, ["tau2"], 1)


def test_the_table_has_a_line_for_each_suite_and_arm() -> None:
    rows = [
        Row("bfcl", str(n), arm, verdict, "", "", 0.1)
        for n, (arm, verdict) in enumerate([("a", "right"), ("a", "lost"), ("b", "right")])
    ]  # type: ignore[arg-type]
    assert [(line["arm"], line["cases"], line["right"], line["lost"]) for line in table(rows)] == [
        ("a", 2, 1, 1),
        ("b", 1, 1, 0),
    ]


def test_the_picture_has_a_bar_for_each_verdict_that_came_up() -> None:
    rows = [Row("a & b", str(n), "arm", verdict, "", "", 0.1) for n, verdict in enumerate(["right", "lost", "lost"])]  # type: ignore[arg-type]
    root = fromstring(picture(table(rows)))
    bars = [each for each in root if each.tag.endswith("rect") and each.get("height") == "14"]
    assert [each.get("width") for each in bars] == ["140.0", "280.0"]
    assert any("a & b: arm" in (each.text or "") for each in root)


def test_any_endpoint_is_played_with_the_only_model_that_it_has(folders: dict[str, Path | None]) -> None:
    cases = chosen({"bfcl": folders["bfcl"], "kvv": folders["kvv"]}, ["bfcl", "kvv"], 2)
    added: list[Row] = []
    with engine(model="only") as url:
        plan = replace(plan_for(url), model="")
        assert asyncio.run(model_of(plan)) == "only"
        rows = asyncio.run(play("it", replace(plan, model="only", max_tokens=1000), cases, added.append))
    assert [row.verdict for row in rows] == ["right"] * 3
    assert sorted(added) == sorted(rows)


@pytest.mark.parametrize("model", ["", "named"])
def test_an_endpoint_that_nobody_listens_at_is_named_with_the_reason(model: str) -> None:
    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:9/v1/models does not answer: .*[Cc]onnect"):
        asyncio.run(model_of(replace(plan_for("http://127.0.0.1:9"), model=model)))


def test_an_endpoint_that_lists_no_models_is_asked_for_the_named_one() -> None:
    with engine(model="only") as url:
        plan = replace(plan_for(f"{url}/elsewhere"), model="named")
        assert asyncio.run(model_of(plan)) == "named"
        with pytest.raises(ConfigError, match="does not answer"):
            asyncio.run(model_of(replace(plan, model="")))


def test_an_arm_without_one_answer_is_found_with_what_it_said_first() -> None:
    verdicts = [("a", "error", "first"), ("b", "refused", "x"), ("a", "refused", "then"), ("b", "lost", "")]
    rows = [Row("s", str(n), arm, verdict, detail, "", 0.1) for n, (arm, verdict, detail) in enumerate(verdicts)]  # type: ignore[arg-type]
    assert unanswered(rows) == {"a": "first"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bfcl", "/nowhere"], r"--bfcl /nowhere: nothing is there; .*bfcl-eval"),
        (["--suites", "k2vv"], r"none of these suites is here:\n  k2vv: --k2vv names its place"),
        (["--suites", "mmlu"], "unknown suites: mmlu; known: kvv, "),
        (["--arm", "mine"], "'mine' is not NAME=URL"),
        (["--arm", "mine=127.0.0.1:8000"], "url must have the form http://HOST:PORT"),
        (["--most", "0"], "'0' is not a number from 1"),
        (["--concurrency", "-1"], "'-1' is not a number from 1"),
        (["--real", "--model", "gpt-5"], "--real plays tiny-kimi, tiny-qwen, not gpt-5|needs vLLM's CPU build"),
        (["--arm", "mine=http://127.0.0.1:9"], "does not answer"),
        (["--arm", "mine=http://127.0.0.1:9", "--api-key-env", "NOT_SET"], "NOT_SET is not set"),
    ],
)
def test_a_mistake_on_the_command_line_ends_with_what_to_do(
    arguments: list[str], message: str, folders: dict[str, Path | None], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.delenv("NOT_SET", raising=False)
    here = [] if "--suites" in arguments or "--bfcl" in arguments else ["--suites", "kvv", "--kvv", str(folders["kvv"])]
    monkeypatch.setattr("sys.argv", ["bench.public", *arguments, *here, "--out", str(tmp_path / "out.jsonl")])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert re.search(message, capsys.readouterr().err)
