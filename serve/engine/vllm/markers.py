"""The markers of tool calls in a tokenizer: checked before a replica is ready, and read by our parsers in vLLM."""

from __future__ import annotations

import logging
import re
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from serve.errors import ConfigError
from serve.parsing import GRAMMARS, Violation

_log = logging.getLogger("ray.serve.specgate.parsing")
_special_ids: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()  # by tokenizer
_TEXTS = sorted(
    {text for grammar in GRAMMARS.values() for text in (*grammar.lexicon.kinds, *grammar.token_ids.values())}
)
_TURNS = (
    "<|im_start|>", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|user|>", "<|assistant|>",
    "<|observation|>", "<｜User｜>", "<｜Assistant｜>",
)  # fmt: skip
# The end of a turn is one token, too, where the grammar does not read it.
_TURN_ENDS = dict.fromkeys(("kimi_k2", "qwen3_coder", "hermes"), ("<|im_end|>",))


def special_ids(tokenizer: Any) -> Mapping[str, int]:
    """Returns the ids of all markers that are one token of this tokenizer; looked up once per tokenizer."""
    ids = _special_ids.get(tokenizer)
    if ids is None:
        vocabulary = tokenizer.get_vocab()
        ids = {text: vocabulary[text] for text in (*_TEXTS, *_TURNS) if text in vocabulary}
        _special_ids[tokenizer] = ids
    return ids


def marker_ids(tokenizer: Any, grammar: str) -> dict[int, str]:
    """Returns the texts of one grammar's markers, by token id."""
    machine = GRAMMARS[grammar]
    markers = {*machine.lexicon.kinds, *machine.token_ids.values()}
    return {token: text for text, token in special_ids(tokenizer).items() if text in markers}


def token_sequence(tokenizer: Any, grammar: str, tag: str) -> tuple[int, ...]:
    """Returns the tokens that spell a tag; empty where its text may be cut in more than one way. A tag is a marker, or
    markers with a word between them: `<|close|>think<|sep|>`.
    """
    ids = special_ids(tokenizer)
    if tag in ids:
        return (ids[tag],)
    parts = sorted({text for text in GRAMMARS[grammar].token_ids.values() if text in tag}, key=len, reverse=True)
    if not parts or not all(part in ids for part in parts):
        return ()
    pieces = re.split(f"({'|'.join(map(re.escape, parts))})", tag)
    words = (tokenizer.encode(piece, add_special_tokens=False) for piece in pieces[::2])
    sequence = [*next(words)]
    for marker, word in zip(pieces[1::2], words, strict=True):
        sequence += [ids[marker], *word]
    return tuple(sequence)


def class_name(grammar: str) -> str:
    """Returns the name of a plug-in's class without its kind: `Qwen3Coder` for `qwen3_coder`."""
    return "".join(part.capitalize() for part in grammar.split("_"))


def turn_ids(tokenizer: Any) -> frozenset[int]:
    """Returns the tokens that separate the turns of a conversation."""
    ids = special_ids(tokenizer)
    return frozenset(ids[text] for text in _TURNS if text in ids)


def declared(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """Returns the tools of a Chat Completions or Responses request as our parsers expect them."""
    functions = [getattr(tool, "function", tool) for tool in tools]
    return [{"name": function.name, "parameters": function.parameters or {}} for function in functions]


def keep_markers(request: Any) -> Any:
    """Have vLLM keep special tokens in the text, so that markers reach the parsers; returns the request."""
    request.skip_special_tokens = False
    return request


def shows_hidden(request: Any) -> bool:
    """Returns True if a request asks for hidden violations as content, where the gateway's guard looks for them."""
    return bool((getattr(request, "vllm_xargs", None) or {}).get("specgate_violations"))


def log_violations(grammar: str, violations: Iterable[Violation]) -> None:
    """Log what was wrong with an output, without its text."""
    for violation in violations:
        _log.warning(
            "%s: %s at character %d, call %s, %d characters",
            grammar, violation.kind, violation.position, violation.index, len(violation.raw),
        )  # fmt: skip


# Markers that are a single token in models of each format. A tokenizer that splits them was converted wrongly, and no
# parser or grammar would ever see a call. (transformers 5, for example, shifts Kimi's special ids by 1 to 3.) Models
# that do not think may lack the tags of reasoning.
MARKERS: Mapping[str, tuple[str, ...]] = {
    name: (
        *(text for text in grammar.token_ids.values() if text not in grammar.thinking_tags),
        *_TURN_ENDS.get(name, ()),
    )
    for name, grammar in GRAMMARS.items()
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
