"""A declared tool is found in any spelling of a call's id, and never one that was not meant."""

import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.parsing import parse
from serve.parsing.tools import Names

CALL = "<|tool_call_begin|>{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
NAMES = [
    "read", "read_file", "list-files", "mcp.fs.read", "服务.查询", "step1", "exec", "Bash", "functions.read", "v2:beta",
]  # fmt: skip
SPELT = {
    "functions.read_file:0": "read_file",
    "functions.read_file": "read_file",
    "read_file:12": "read_file",
    "read_file": "read_file",
    "functionsexec5": "exec",
    "functions.exec5": "exec",
    "functionsexec:5": "exec",
    "functions_read_file_1": "read_file",
    "functions-read_file-1": "read_file",
    "functions-read-file-1": "read_file",
    "read_file_0": "read_file",
    "functions.read_file:": "read_file",
    "functions:read_file:0": "read_file",
    "functions/read_file/0": "read_file",
    "function.read_file:0": "read_file",
    "Functions.read_file:0": "read_file",
    " functions.read_file:0\n": "read_file",
    "functions.read_file:0:": "read_file",
    "functions_mcp_fs_read_0": "mcp.fs.read",
    "mcp.fs.read3": "mcp.fs.read",
    "functions.服务.查询:0": "服务.查询",
    "functions_服务_查询_0": "服务.查询",
    "服务.查询2": "服务.查询",
    "functions.step1:0": "step1",
    "functions.step10": "step1",
    "step1_4": "step1",
    "functions.bash:0": "Bash",
    "functions.v2:beta:0": "v2:beta",
    "functions.read:0": "read",
    "functions.functions.read:0": "functions.read",
    "list_files_2": "list-files",
}


@pytest.mark.parametrize("spelling", SPELT)
def test_any_spelling_of_an_id_names_its_tool(spelling: str) -> None:
    assert Names(NAMES).meant_by(spelling) == [SPELT[spelling]]


@pytest.mark.parametrize("spelling", ["Bash", "read-file", "READ_FILE", "readFile", '"bash"', "bash()"])
def test_a_name_that_is_no_id_may_differ_in_case_and_punctuation(spelling: str) -> None:
    names = Names(["bash", "read_file", "call"])
    assert names.meant_by(spelling, is_id=False) == ["bash" if "bash" in spelling.lower() else "read_file"]


@pytest.mark.parametrize("spelling", ["read_file_2", "readfile2", "call_1", "xbash"])
def test_a_name_that_is_no_id_has_no_counter_and_nothing_else(spelling: str) -> None:
    assert Names(["bash", "read_file", "call"]).meant_by(spelling, is_id=False) == []


@pytest.mark.parametrize(
    "spelling",
    ["", ":0", "0", "functions", "functions.:0", "call_read", "call_1", "call-abc123", "write:0", "readfiles:0", "rea",
     "xread:0", "read_file_x", "read_file:a", "step:0", "step2", "functions.read_file:0 and more", "r" * 5000],
)  # fmt: skip
def test_what_names_no_tool_names_none(spelling: str) -> None:
    assert Names(NAMES).meant_by(spelling) == []


def test_a_spelling_of_two_tools_is_either() -> None:
    assert set(Names(["step", "step1"]).meant_by("functionsstep1")) == {"step", "step1"}
    assert Names(["step", "step1"]).meant_by("functions.step1") == ["step1"]
    assert set(Names(["a.b", "a_b"]).meant_by("functions-a-b-0")) == {"a.b", "a_b"}
    assert set(Names(["a", "_a", "a_"]).meant_by("functions_a_0")) == {"a", "_a", "a_"}
    assert Names(["a", "b"]).meant_by("functions_a_0") == ["a"]
    assert Names(["call"]).meant_by("call_3") == []
    assert Names(["call"]).meant_by("call:3") == ["call"]


WORDS = st.text(string.ascii_lowercase + "._-:测", min_size=1, max_size=6).filter(lambda name: name.strip("._-:"))


@given(st.lists(WORDS, min_size=1, max_size=5, unique=True), st.integers(0, 99), st.data())
def test_the_form_of_the_template_names_its_tool_whatever_else_is_declared(
    names: list[str], number: int, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(names))
    assert Names(names).meant_by(f"functions.{name}:{number}") == [name]


@given(st.lists(WORDS, min_size=1, max_size=5, unique=True), st.integers(0, 99), st.data())
def test_a_drifted_form_is_never_read_as_another_tool_alone(names: list[str], number: int, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(names))
    prefix = data.draw(st.sampled_from(["functions", "functions_", "functions-", "functions:"]))
    joint = data.draw(st.sampled_from(["_", "-", "", ":", "."]))
    meant = Names(names).meant_by(f"{prefix}{name}{joint}{number}")
    exact = [other for other in names if f"{prefix}{name}{joint}{number}" in (other, f"{other}:{number}")]
    assert name in meant or exact


def tool(name: str, /, **properties: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()},
              "required": list(properties)}  # fmt: skip
    return {"type": "function", "function": {"name": name, "parameters": schema}}


FILES = [tool("read_file", path="string"), tool("list_files", path="string"), tool("make", name="string")]


@pytest.mark.parametrize(
    ("identity", "arguments", "meant"),
    [
        ("functions_read_file_1", {"path": "/a"}, ("read_file", {"path": "/a"})),
        ("call_abc", {"name": "list_files", "path": "/a"}, ("list_files", {"path": "/a"})),
        ("call_abc", {"name": "list_files", "arguments": {"path": "/a"}}, ("list_files", {"path": "/a"})),
        ("0", {"type": "function", "function": {"name": "list_files", "arguments": {"path": "/a"}}},
         ("list_files", {"path": "/a"})),
        ("call_abc", {"name": "functions.list_files:0", "parameters": {"path": "/a"}}, ("list_files", {"path": "/a"})),
        ("call_abc", {"name": "list_files"}, ("make", {"name": "list_files"})),
        ("call_abc", {"name": "list_files", "path": "/a", "more": 1}, None),
        ("call_abc", {"path": "/a"}, None),
        ("functions.other:0", {"path": "/a"}, ("other", {"path": "/a"})),
    ],
)  # fmt: skip
def test_a_call_is_read_by_its_id_or_else_by_what_its_arguments_say(
    identity: str, arguments: dict[str, Any], meant: tuple[str, Any] | None
) -> None:
    message = parse(CALL.format(identity, json.dumps(arguments)), "kimi_k2", FILES)
    assert [(each.name, json.loads(each.arguments)) for each in message.tool_calls] == ([meant] if meant else [])
    assert bool(meant) == ("unresolved_call" not in [each.kind for each in message.violations])


def test_of_two_tools_that_an_id_may_name_the_arguments_choose() -> None:
    tools = [tool("step", a="string"), tool("step1", b="string"), tool("other", b="string")]
    for arguments, name in (('{"a": "x"}', "step"), ('{"b": "x"}', "step1")):
        message = parse(CALL.format("functionsstep1", arguments), "kimi_k2", tools)
        assert [each.name for each in message.tool_calls] == [name]
    assert not parse(CALL.format("functionsstep1", '{"c": 1}'), "kimi_k2", tools).tool_calls
