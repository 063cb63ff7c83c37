"""Helpers of both kinds of parser plug-in: a tokenizer's marker ids, a request's tools, and the log."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from serve.parsing import GRAMMARS, Violation

_log = logging.getLogger("ray.serve.specgate.parsing")
_special_ids: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()  # by tokenizer
_MARKERS = sorted({spelling for grammar in GRAMMARS.values() for spelling in grammar.lexicon.kinds})
_TURNS = ("<|im_start|>", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>")


def special_ids(tokenizer: Any) -> Mapping[str, int]:
    """Returns the ids of all markers that are one token of this tokenizer; looked up once per tokenizer."""
    ids = _special_ids.get(tokenizer)
    if ids is None:
        vocabulary = tokenizer.get_vocab()
        ids = {text: vocabulary[text] for text in (*_MARKERS, *_TURNS) if text in vocabulary}
        _special_ids[tokenizer] = ids
    return ids


def marker_ids(tokenizer: Any, grammar: str) -> dict[int, str]:
    """Returns the texts of one grammar's markers, by token id."""
    kinds = GRAMMARS[grammar].lexicon.kinds
    return {token: text for text, token in special_ids(tokenizer).items() if text in kinds}


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
