"""Spellings of a field that mean it."""

import json

import pytest

from lab.attacks.fields import escaped, spellings


@pytest.mark.parametrize("name", ["model", "kv_transfer_params"])
def test_an_escaped_name_is_the_same_name_without_a_letter_of_it(name: str) -> None:
    assert json.loads(f'"{escaped(name)}"') == name
    assert not any(letter in escaped(name) for letter in name.replace("u", ""))


def test_every_spelling_gives_the_field_its_value() -> None:
    for member in spellings("priority", "7").values():
        assert json.loads(f"{{{member}}}")["priority"] == 7
