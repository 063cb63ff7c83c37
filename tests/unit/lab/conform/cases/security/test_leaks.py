"""Fields that leak are found under every spelling."""

import json

import pytest

from lab.conform.cases.security.leaks import holds_field


@pytest.mark.parametrize("member", ['"priority": 1', '"\\u0070riority": 1', '"priority": null, "priority": 1'])
def test_a_field_is_found_however_it_is_spelled(member: str) -> None:
    assert holds_field(f'{{"x": 1, {member}}}'.encode(), "priority")


@pytest.mark.parametrize("value", [{"x": 1}, {"priority": None}, {"messages": [{"priority": 1}]}])
def test_a_field_that_is_missing_or_null_does_not_leak(value: dict[str, object]) -> None:
    assert not holds_field(json.dumps(value).encode(), "priority")
