"""Checks before a replica reports ready that its tokenizer has the markers that the parsers look for."""

from collections.abc import Mapping
from typing import Any

from serve.errors import ConfigError

# Markers that are a single token in models of each format. A tokenizer that splits them was converted wrongly, and no
# parser or grammar would ever see a call. (transformers 5, for example, shifts Kimi's special ids by 1 to 3.)
MARKERS: Mapping[str, tuple[str, ...]] = {
    "kimi_k2": (
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|im_end|>",
    ),
    "qwen3_coder": ("<tool_call>", "</tool_call>", "<|im_end|>"),
    "hermes": ("<tool_call>", "</tool_call>", "<|im_end|>"),
}


def check_markers(tokenizer: Any, grammar: str, expected: Mapping[str, int]) -> None:
    """Check that every marker of the grammar is one token, with the id that the pool's config states.

    Args:
        tokenizer: The tokenizer that vLLM serves the model with.
        grammar: The model's tool-call format.
        expected: Token ids by marker, from the pool's `markers`; may include markers beyond the grammar's own.

    Raises:
        ConfigError: A marker is missing, is split, or has another id.
    """
    vocabulary: Mapping[str, int] = tokenizer.get_vocab()
    for marker in dict.fromkeys((*MARKERS[grammar], *expected)):
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
