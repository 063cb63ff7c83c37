"""A replica whose tokenizer does not see the markers does not start."""

import pytest

from serve.engine.vllm.markers import MARKERS, check_markers
from serve.errors import ConfigError


class Tokenizer:
    """Just the two calls that the check makes."""

    def __init__(self, vocabulary: dict[str, int], splits: bool = False) -> None:
        self._vocabulary, self._splits = vocabulary, splits

    def get_vocab(self) -> dict[str, int]:
        return self._vocabulary

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1, 2] if self._splits else [self._vocabulary[text]]


def vocabulary(grammar: str) -> dict[str, int]:
    return {marker: 100 + i for i, marker in enumerate(MARKERS[grammar])}


@pytest.mark.parametrize("grammar", MARKERS)
def test_a_tokenizer_with_every_marker_passes(grammar: str) -> None:
    check_markers(Tokenizer(vocabulary(grammar)), grammar, vocabulary(grammar))


@pytest.mark.parametrize("grammar", [grammar for grammar, markers in MARKERS.items() if markers])
def test_a_missing_marker_is_named(grammar: str) -> None:
    marker = MARKERS[grammar][0]
    known = {name: i for name, i in vocabulary(grammar).items() if name != marker}
    with pytest.raises(ConfigError, match="is not a token"):
        check_markers(Tokenizer(known), grammar, {})


def test_a_marker_with_another_id_than_promised_is_named() -> None:
    with pytest.raises(ConfigError, match="the id 100, the pool's config says 163595"):
        check_markers(Tokenizer(vocabulary("kimi_k2")), "kimi_k2", {"<|tool_calls_section_begin|>": 163595})


def test_a_marker_that_is_split_is_named() -> None:
    with pytest.raises(ConfigError, match="splits the marker"):
        check_markers(Tokenizer(vocabulary("hermes"), splits=True), "hermes", {})
