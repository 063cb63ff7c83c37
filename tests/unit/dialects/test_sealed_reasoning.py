"""Reasoning that clients keep."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.dialects.sealed_reasoning import seal, unseal


@given(st.text(st.characters(codec="utf-8")))
def test_a_seal_gives_its_text_back(text: str) -> None:
    assert unseal(seal(text)) == text


@given(st.text())
def test_any_text_can_be_sealed(text: str) -> None:
    assert unseal(seal(text)) is not None


@given(st.text(st.characters(codec="utf-8"), min_size=1), st.data())
def test_a_damaged_seal_is_none(text: str, data: st.DataObject) -> None:
    sealed = seal(text)
    at = data.draw(st.integers(22, len(sealed) - 4))
    damaged = sealed[:at] + ("B" if sealed[at] == "A" else "A") + sealed[at + 1 :]
    assert unseal(damaged) is None


@pytest.mark.parametrize("foreign", [None, 7, "", "EqQBCgIYAhIM", "specgate-reasoning-v1:", "specgate-reasoning-v1:é"])
def test_what_others_signed_is_none(foreign: object) -> None:
    assert unseal(foreign) is None
