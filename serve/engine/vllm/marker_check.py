"""Checks a replica makes before it says that it is ready: its tokenizer must see what the parsers look for."""

from collections.abc import Mapping
from typing import Any

from serve.errors import ConfigError

# Tokens that a model of each format writes as one id. A tokenizer that splits them was converted or patched wrongly,
# and then no parser and no grammar would ever see a call (facts: transformers 5 shifts Kimi's special ids by 1 to 3).
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
    """Raise `ConfigError` unless every marker of the grammar is one token, with the id that the pool's config states.

    Args:
        tokenizer: What vLLM serves the model with.
        grammar: The model's tool-call format.
        expected: Marker text to token id, from the pool's `markers`; may name more than the grammar's own.
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
        wanted = expected.get(marker)
        if wanted is not None and vocabulary[marker] != wanted:
            raise ConfigError(
                f"the tokenizer gives {marker!r} the id {vocabulary[marker]}, the pool's config says {wanted}. "
                "The model was trained on one of them; a conversion may have shifted the special ids."
            )
