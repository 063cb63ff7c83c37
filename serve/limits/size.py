"""The size of a request, read off its body without a tokenizer."""

import re

import msgspec
from msgspec import Raw

from policies import RequestFeatures
from serve.limits.estimate import Size
from serve.request.completion import MALFORMED, NONE, CompletionRequest

_DATA_URL = re.compile(rb'"data:[^"]*"')
_whole = msgspec.json.Decoder(int, strict=False)  # made once: that takes longer than it takes to decode
_IMAGE = re.compile(rb'"(?:input_)?(?:image|video|audio)_url"\s*:')


def size_of(body: bytes, request: CompletionRequest, features: RequestFeatures) -> Size:
    """Returns the size of a chat or text completion.

    Args:
        body: As the client sent it.
        request: The body, parsed.
        features: Of the request.
    """
    text_bytes, images = len(body), 0
    if features.images:
        text_bytes -= sum(len(url) for url in _DATA_URL.findall(body))
        images = max(1, len(_IMAGE.findall(body)))
    prompts = 1 if request.prompt is NONE else _prompts(request.prompt)
    answers = max(request.n or 1, request.best_of or 1)
    return Size(text_bytes, images, prompts, answers, _max_output(request), features.stream)


def _prompts(prompt: Raw) -> int:
    """Returns how many prompts a text completion has: a list of texts or of lists of tokens is one for each."""
    if not bytes(prompt).lstrip().startswith(b"["):
        return 1
    try:
        entries = msgspec.json.decode(prompt, type=list[str | int | list[int]])
    except MALFORMED:
        return 1
    return max(1, sum(not isinstance(entry, int) for entry in entries))


def _max_output(request: CompletionRequest) -> int | None:
    """Returns the larger of the two limits, since engines differ in which of them they obey."""
    one, other = request.max_tokens, request.max_completion_tokens
    if other is NONE:
        return None if one is NONE else _whole_number(one)
    if one is NONE:
        return _whole_number(other)
    return max((limit for limit in map(_whole_number, (one, other)) if limit is not None), default=None)


def _whole_number(value: Raw) -> int | None:
    """Returns a number of tokens; None if it is none, which is for the engine to refuse."""
    try:
        return max(0, _whole.decode(value))
    except MALFORMED:
        return None
