"""What both kinds of plug-in need of vLLM's objects: marker ids of a tokenizer, tools of a request, a log."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from serve.parsing import GRAMMARS, Violation

_log = logging.getLogger("ray.serve.specgate.parsing")
_known: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()
_MARKERS = sorted({spelling for grammar in GRAMMARS.values() for spelling in grammar.lexicon.kinds})
_TURNS = ("<|im_start|>", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>")


def special_ids(tokenizer: Any) -> Mapping[str, int]:
    """The ids of all markers that are one token of this tokenizer, looked up once for each tokenizer."""
    found = _known.get(tokenizer)
    if found is None:
        vocabulary = tokenizer.get_vocab()
        found = {text: vocabulary[text] for text in (*_MARKERS, *_TURNS) if text in vocabulary}
        _known[tokenizer] = found
    return found


def marker_ids(tokenizer: Any, grammar: str) -> dict[int, str]:
    """Text by id, of the markers of one grammar."""
    kinds = GRAMMARS[grammar].lexicon.kinds
    return {token: text for text, token in special_ids(tokenizer).items() if text in kinds}


def turn_ids(tokenizer: Any) -> frozenset[int]:
    """Tokens between the turns of a conversation."""
    ids = special_ids(tokenizer)
    return frozenset(ids[text] for text in _TURNS if text in ids)


def declared(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """The tools of a request, Chat Completions' or Responses', as our parsers take them."""
    functions = [getattr(tool, "function", tool) for tool in tools]
    return [{"name": function.name, "parameters": function.parameters or {}} for function in functions]


def shows_hidden(request: Any) -> bool:
    """Whether a request wants hidden violations as content, where the gateway's guard finds them."""
    return bool((getattr(request, "vllm_xargs", None) or {}).get("specgate_violations"))


def log_violations(grammar: str, violations: Iterable[Violation]) -> None:
    """Say what was wrong with an output, without its text."""
    for violation in violations:
        _log.warning(
            "%s: %s at character %d, call %s, %d characters",
            grammar, violation.kind, violation.position, violation.index, len(violation.raw),
        )  # fmt: skip
