"""The form of a token: found by scanners, mistyped ones told apart, and nothing of it stored."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.access.key_text import checksum, claimed_id, digest, is_token, new_id, new_token, token_in, without_secrets

TOKEN = "sgk_0123456789_" + "a" * 43


def test_a_token_has_its_id_a_secret_of_256_bits_and_a_checksum() -> None:
    key_id = new_id()
    token = new_token(key_id)
    assert re.fullmatch(rf"sgk_{key_id}_[0-9A-Za-z]{{43}}_[0-9A-Za-z]{{6}}", token)
    assert claimed_id(token) == key_id
    assert is_token(token)


def test_two_tokens_of_one_key_differ() -> None:
    assert new_token("0123456789") != new_token("0123456789")


@given(st.integers(0, len(TOKEN) - 1), st.sampled_from("0Zz_-"))
def test_a_mistyped_character_is_noticed_without_any_key(place: int, character: str) -> None:
    token = f"{TOKEN}_{checksum(TOKEN)}"
    typed = token[:place] + character + token[place + 1 :]
    assert is_token(typed) == (typed == token)


@given(st.text())
def test_any_text_has_a_digest_and_claims_an_id_or_none(text: str) -> None:
    assert len(digest(text)) == 32
    assert len(claimed_id(text)) <= 10


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ({"authorization": "Bearer abc"}, "abc"),
        ({"authorization": "bearer  abc "}, "abc"),
        ({"x-api-key": "abc"}, "abc"),
        ({"authorization": "Bearer abc", "x-api-key": "def"}, "abc"),
        ({"authorization": "Basic abc", "x-api-key": "def"}, "def"),
        ({"authorization": "Basic abc"}, None),
        ({"authorization": "Bearer"}, None),
        ({"authorization": "Bearer "}, None),
        ({"authorization": "Bearer ", "x-api-key": "def"}, "def"),
        ({"authorization": ""}, None),
        ({}, None),
    ],
)
def test_a_token_is_taken_from_either_header(headers: dict[str, str], token: str | None) -> None:
    assert token_in(headers) == token


@pytest.mark.parametrize("cut", [0, 6, 7, 20, 49])
def test_a_text_keeps_the_ids_of_its_tokens_and_no_secret(cut: int) -> None:
    token = new_token("benchBENCH")
    text = without_secrets(f"DELETE /admin/v1/keys/{token[: len(token) - cut]} and sgk_other")
    assert text == "DELETE /admin/v1/keys/sgk_benchBENCH_... and sgk_other"
