"""Reading tokenizer files: whatever does not fit together is refused with the file's name."""

import json
from pathlib import Path

import pytest

from serve.tokenizer import KimiTokenizer, SpecialToken
from serve.tokenizer.layout import TokenizerFileError, complete_block, read_ranks


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
