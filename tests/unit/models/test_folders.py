"""The committed model folders are complete, small, and agree with their tokenizers."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from models.vocabulary import BASE_SIZE, QWEN_SPECIAL

ROOT = Path(__file__).parents[3] / "models"
TARGETS = ("tiny-kimi", "tiny-qwen")
FOLDERS = (*TARGETS, "tiny-kimi-eagle3", "tiny-qwen-draft")


def _config(folder: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((ROOT / folder / "config.json").read_text("utf-8"))
    return loaded


def _tensors(folder: str) -> dict[str, Any]:
    with (ROOT / folder / "model.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(length))
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


@pytest.mark.parametrize("folder", FOLDERS)
def test_weights_are_bf16_and_under_ten_megabytes(folder: str) -> None:
    assert (ROOT / folder / "model.safetensors").stat().st_size < 10_000_000
    assert {entry["dtype"] for entry in _tensors(folder).values()} == {"BF16"}


@pytest.mark.parametrize("folder", [*TARGETS, "tiny-qwen-draft"])
def test_the_embedding_has_a_row_for_every_id(folder: str) -> None:
    config = _config(folder)
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert _tensors(folder)["model.embed_tokens.weight"]["shape"] == [config["vocab_size"], config["hidden_size"]]


def test_the_draft_model_speaks_its_targets_vocabulary() -> None:
    assert _config("tiny-qwen-draft")["vocab_size"] == _config("tiny-qwen")["vocab_size"]


def test_the_eagle_head_fits_its_target() -> None:
    head, target = _config("tiny-kimi-eagle3"), _config("tiny-kimi")
    assert head["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (head["vocab_size"], head["hidden_size"]) == (target["vocab_size"], target["hidden_size"])
    layers = head["eagle_aux_hidden_state_layer_ids"]
    assert len(set(layers)) == 3
    assert max(layers) <= target["num_hidden_layers"]


def test_qwens_markers_are_single_tokens() -> None:
    tokenizer = Tokenizer.from_file(str(ROOT / "tiny-qwen" / "tokenizer.json"))
    for offset, name in enumerate(QWEN_SPECIAL):
        assert tokenizer.encode(name, add_special_tokens=False).ids == [BASE_SIZE + offset]
    text = '<tool_call>\n{"城市": "🙂"}\n</tool_call>'
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=True) == text
