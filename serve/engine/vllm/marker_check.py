"""Checks before a replica reports ready that its tokenizer has the markers that the parsers look for."""

from collections.abc import Mapping
from typing import Any

from serve.errors import ConfigError
from serve.parsing import GRAMMARS
from serve.parsing.prose import Prose

# The end of a turn is one token, too, where the grammar does not read it.
_TURN_ENDS = dict.fromkeys(("kimi_k2", "qwen3_coder", "hermes"), ("<|im_end|>",))


def _markers(grammar: type[Prose]) -> tuple[str, ...]:
    return tuple(text for text in grammar.token_ids.values() if text not in grammar.thinking_tags)


# Markers that are a single token in models of each format. A tokenizer that splits them was converted wrongly, and no
# parser or grammar would ever see a call. (transformers 5, for example, shifts Kimi's special ids by 1 to 3.) Models
# that do not think may lack the tags of reasoning.
MARKERS: Mapping[str, tuple[str, ...]] = {
    name: (*_markers(grammar), *_TURN_ENDS.get(name, ())) for name, grammar in GRAMMARS.items()
}


def check_markers(tokenizer: Any, grammar: str, expected: Mapping[str, int]) -> None:
    """Check that every marker of the grammar is one token, with the id that the pool's config states. The config may
    state ids of markers beyond the grammar's own.

    Raises:
        ConfigError: A marker is missing, is split, or has another id.
    """
    vocabulary: Mapping[str, int] = tokenizer.get_vocab()
    for marker in dict.fromkeys((*MARKERS.get(grammar, ()), *expected)):
        if marker not in vocabulary:
            raise ConfigError(
                f"{marker!r} is not a token of this model's tokenizer, so {grammar} tool calls can't be read. "
                "Check the model folder, the `grammar` of the model and, for Kimi, `tokenizer-mode: specgate_kimi`."
            )
        encoded = tokenizer.encode(marker, add_special_tokens=False)
        if list(encoded) != [vocabulary[marker]] and grammar != "kimi_k2":
            raise ConfigError(f"the tokenizer splits the marker {marker!r} into {list(encoded)}; it must be one token")
        expected_id = expected.get(marker)
        if expected_id is not None and vocabulary[marker] != expected_id:
            raise ConfigError(
                f"the tokenizer gives {marker!r} the id {vocabulary[marker]}, the pool's config says {expected_id}. "
                "The model was trained on one of them; a conversion may have shifted the special ids."
            )
