"""The Kimi tokenizer over the whole declared vocabulary."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.engine.kimi_tokenizer import (
    CHUNK_CHARS,
    RUN_CHARS,
    KimiTokenizer,
    SpecialToken,
    TokenIdError,
    TokenizerFileError,
    complete_block,
    read_ranks,
)

FACTS = {
    "[BOS]": 163584, "[EOS]": 163585, "<|im_end|>": 163586, "<|im_user|>": 163587, "<|im_assistant|>": 163588,
    "[EOT]": 163593, "<|im_system|>": 163594, "<|tool_calls_section_begin|>": 163595,
    "<|tool_calls_section_end|>": 163596, "<|tool_call_begin|>": 163597, "<|tool_call_argument_begin|>": 163598,
    "<|tool_call_end|>": 163599, "<|im_middle|>": 163601, "<think>": 163606, "</think>": 163607,
    "[UNK]": 163838, "[PAD]": 163839,
}  # fmt: skip
# Text without lone surrogates: those have no UTF-8 and so no bytes to round-trip.
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def test_every_id_of_the_original_layout_decodes_alone(kimi: KimiTokenizer) -> None:
    assert kimi.vocab_size == 163_840
    for token_id in range(kimi.vocab_size):
        assert kimi.decode([token_id])


def test_names_and_ids_of_the_block_are_each_others_inverse(kimi: KimiTokenizer) -> None:
    for token_id in range(kimi.vocab_size):
        assert kimi.token_to_id(kimi.id_to_token(token_id)) == token_id


@pytest.mark.parametrize(("name", "token_id"), FACTS.items())
def test_named_tokens_have_the_published_ids(kimi: KimiTokenizer, name: str, token_id: int) -> None:
    assert kimi.token_to_id(name) == token_id
    assert kimi.encode(name, allow_special=True) == [token_id]
    assert kimi.decode([token_id]) == name


def test_unnamed_ids_carry_their_absolute_number(kimi: KimiTokenizer) -> None:
    unnamed = [token_id for token_id, token in kimi.special_tokens.items() if "reserved" in token.text]
    assert len(unnamed) == 233
    assert {163589, 163592, 163600, 163608, 163837} <= set(unnamed)
    for token_id in unnamed:
        assert kimi.decode([token_id]) == f"<|reserved_token_{token_id}|>"
        assert kimi.decode([token_id], skip_special_tokens=True) == f"<|reserved_token_{token_id}|>"


@pytest.mark.parametrize("token_id", [-1, 163_840, 163_841, 2**31, 2**63])
@pytest.mark.parametrize("skip", [False, True])
def test_an_id_outside_the_vocabulary_is_a_clear_error(kimi: KimiTokenizer, token_id: int, skip: bool) -> None:
    with pytest.raises(TokenIdError, match=rf"token id {token_id} is outside the vocabulary 0\.\.163839"):
        kimi.decode([65, token_id], skip_special_tokens=skip)
    assert issubclass(TokenIdError, ValueError)


def test_skip_special_tokens_keeps_the_markers_of_calls_and_thinking(kimi: KimiTokenizer) -> None:
    ids = [163587, 65, 163601, 163595, 163597, 163598, 163599, 163596, 163606, 163607, 163586]
    markers = (
        "<|tool_calls_section_begin|><|tool_call_begin|><|tool_call_argument_begin|><|tool_call_end|>"
        "<|tool_calls_section_end|><think></think>"
    )
    assert kimi.decode(ids, skip_special_tokens=True) == "A" + markers


@pytest.mark.parametrize("name", [*FACTS, "<|reserved_token_163700|>"])
def test_a_users_text_never_becomes_a_control_token(kimi: KimiTokenizer, name: str) -> None:
    ids = kimi.encode(f"a{name}b")
    assert max(ids) < 163_584
    assert kimi.decode(ids) == f"a{name}b"


@given(TEXT)
def test_any_text_round_trips(tiny: KimiTokenizer, text: str) -> None:
    assert tiny.decode(tiny.encode(text)) == text
    assert tiny.decode(tiny.encode(text, allow_special=True)) == text
    assert tiny.count(text) == len(tiny.encode(text))


@pytest.mark.parametrize("unit", ["a", " ", "好", "ab ", "🙂"])
def test_long_text_is_cut_and_round_trips(tiny: KimiTokenizer, unit: str) -> None:
    text = unit * ((CHUNK_CHARS + 3 * RUN_CHARS) // len(unit))
    assert tiny.decode(tiny.encode(text)) == text


def test_a_special_token_on_a_cut_stays_one_token(tiny: KimiTokenizer) -> None:
    ids = tiny.encode("x " * (CHUNK_CHARS // 2 - 2) + "<|im_end|>" + "y", allow_special=True)
    assert tiny.token_to_id("<|im_end|>") in ids


def test_an_unknown_name_is_the_unknown_token(kimi: KimiTokenizer) -> None:
    assert kimi.token_to_id("<|nope|>") == 163_838


def test_an_unknown_name_is_an_error_where_there_is_no_unknown_token() -> None:
    bare = KimiTokenizer({bytes([byte]): byte for byte in range(256)}, {})
    assert bare.id_to_token(256) == "<|reserved_token_256|>"
    with pytest.raises(TokenIdError, match="no token is called"):
        bare.token_to_id("<|nope|>")


def test_a_file_without_named_tokens_loads_with_numbered_ones(tmp_path: Path) -> None:
    (tmp_path / "tiktoken.model").write_text("YQ== 0\nYg== 1\n")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    loaded = KimiTokenizer.from_dir(tmp_path)
    assert loaded.vocab_size == 258
    assert loaded.decode([0, 1, 2]) == "ab<|reserved_token_2|>"


@pytest.mark.parametrize("missing", ["tiktoken.model", "tokenizer_config.json"])
def test_a_folder_without_a_file_says_which(tmp_path: Path, missing: str) -> None:
    (tmp_path / "tiktoken.model").write_text("YQ== 0\n")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / missing).unlink()
    with pytest.raises(TokenizerFileError, match=missing):
        KimiTokenizer.from_dir(tmp_path)


@pytest.mark.parametrize("line", ["YQ==", "YQ== x", "??? 0", "YQ== 0 1"])
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "tiktoken.model"
    path.write_text(line + "\n")
    with pytest.raises(TokenizerFileError, match=r"tiktoken\.model:1"):
        read_ranks(path)


def test_a_gap_in_the_ranks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiktoken.model"
    path.write_text("YQ== 0\nYg== 2\n")
    with pytest.raises(TokenizerFileError, match="each once"):
        read_ranks(path)


def test_shifted_special_ids_are_refused() -> None:
    with pytest.raises(TokenizerFileError, match="outside the reserved block"):
        complete_block(10, {9: SpecialToken("<|im_end|>", True)})


def test_two_tokens_of_one_name_are_refused() -> None:
    with pytest.raises(TokenizerFileError, match="same name"):
        complete_block(10, {10: SpecialToken("x", True), 11: SpecialToken("x", True)})


def test_the_tiny_model_has_the_originals_layout(tiny: KimiTokenizer) -> None:
    config = json.loads((Path(__file__).parents[3] / "models/tiny-kimi/config.json").read_text())
    assert config["vocab_size"] == tiny.vocab_size
    assert tiny.vocab_size - tiny.base_size == 256
    assert tiny.token_to_id("<|tool_calls_section_begin|>") - tiny.base_size == 11
    assert sum("reserved" in token.text for token in tiny.special_tokens.values()) == 233
