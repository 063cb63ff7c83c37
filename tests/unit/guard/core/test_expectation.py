"""What a request demands, in every form of `tool_choice`; a malformed request demands nothing and breaks nothing."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guard_harness import TOOLS

from serve.guard.core.expectation import Expectation

SHELL = {"type": "function", "function": {"name": "run.shell"}}
ALL = {tool["function"]["name"] for tool in TOOLS}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)


@pytest.mark.parametrize(
    ("choice", "names", "required"),
    [
        (None, ALL, False),
        ("auto", ALL, False),
        ("none", set(), False),
        ("required", ALL, True),
        (SHELL, ALL, True),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [SHELL]}}, {"run.shell"}, True),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [SHELL]}}, {"run.shell"}, False),
    ],
)
def test_tool_choice_says_which_tools_may_be_called_and_whether_one_must(
    choice: Any, names: set[str], required: bool
) -> None:
    expected = Expectation({"tools": TOOLS, "tool_choice": choice})
    assert set(expected.tools) == names
    assert expected.calls_required is required


@given(
    st.fixed_dictionaries({}, optional={key: JSON for key in ("tools", "tool_choice", "messages", "response_format")})
)
def test_a_malformed_request_does_no_harm(request: dict[str, Any]) -> None:
    expected = Expectation(request)
    assert expected.silence_is_odd in (True, False)
