"""Sampling parameters that decide which engines can serve a request."""

import math
import re

from msgspec import Raw

from serve.request.completion import NONE, CompletionRequest

_SAMPLING_EPS = 1e-5  # vLLM's: a temperature below it is 0, and so is a min_p up to it
_EMPTY = re.compile(rb"null|\{\s*\}")


def is_unspeculable(request: CompletionRequest) -> bool:
    """Returns True if vLLM refuses the sampling parameters as soon as its engine has a drafter."""
    if request.logit_bias is not NONE and not _EMPTY.fullmatch(request.logit_bias):
        return True
    if request.min_p is NONE or _number(request.min_p, 0.0) <= _SAMPLING_EPS:
        return False
    return _number(request.temperature, 1.0) >= _SAMPLING_EPS  # greedy sampling ignores min_p


def has_penalties(request: CompletionRequest) -> bool:
    """Returns True if the request asks for a penalty other than the neutral one."""
    return (
        (request.frequency_penalty is not NONE and _number(request.frequency_penalty, 0.0) != 0.0)
        or (request.presence_penalty is not NONE and _number(request.presence_penalty, 0.0) != 0.0)
        or (request.repetition_penalty is not NONE and _number(request.repetition_penalty, 1.0) != 1.0)
    )


def _number(raw: Raw, default: float) -> float:
    """Returns a number as engines read it, in quotes too; what is none counts as a value that matters."""
    if raw is NONE or bytes(raw) == b"null":
        return default
    try:
        return float(bytes(raw).strip(b'"'))
    except ValueError:
        return math.inf
