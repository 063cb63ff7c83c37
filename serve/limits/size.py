"""The size of a request, read off its body without a tokenizer."""

import re
from collections.abc import Iterator

import msgspec
from msgspec import Raw

from policies import RequestFeatures
from serve.limits.estimate import Size
from serve.request.completion import MALFORMED, NONE, CompletionRequest

_DATA_URL = b'"data:'
_whole = msgspec.json.Decoder(int, strict=False)  # made once: that takes longer than it takes to decode
_NAMED = b'_url"'
_NAME = re.compile(rb'(?:(?<=")|(?<="input_))(?:image|video|audio)_url"\s*:')
_KIND_BYTES = len(b"image")  # of all kinds
_WINDOW_BYTES = 1024 * 1024  # searched at once: no other thread runs meanwhile


def size_of(body: bytes, request: CompletionRequest, features: RequestFeatures) -> Size:
    """Returns the size of a chat or text completion.

    Args:
        body: As the client sent it.
        request: The body, parsed.
        features: Of the request.
    """
    text_bytes, images = len(body), 0
    if features.images:
        text_bytes -= sum(_data_urls(body))
        images = max(1, sum(_NAME.match(body, place - _KIND_BYTES) is not None for place in _places(body, _NAMED)))
    prompts = 1 if request.prompt is NONE else _prompts(request.prompt)
    answers = 1
    if request.n is not None or request.best_of is not None:
        answers = max(request.n or 1, request.best_of or 1)
    most, other = request.max_tokens, request.max_completion_tokens
    max_output = None if most is NONE else _whole_number(most)
    if other is not NONE:  # the larger of the two, since engines differ in which of them they obey
        max_output = max((limit for limit in (max_output, _whole_number(other)) if limit is not None), default=None)
    return Size(text_bytes, images, prompts, answers, max_output, features.stream)


def _places(body: bytes, mark: bytes) -> Iterator[int]:
    """Yields where a mark stands: a search for it passes over a picture a hundred times as fast as a pattern does."""
    for start in range(0, len(body), _WINDOW_BYTES):
        end = start + _WINDOW_BYTES + len(mark) - 1
        place = body.find(mark, start, end)
        while place >= 0:
            yield place
            place = body.find(mark, place + len(mark), end)


def _data_urls(body: bytes) -> Iterator[int]:
    """Yields the lengths of the data URLs in a body, with their quotes."""
    for place in _places(body, _DATA_URL):
        end = body.find(b'"', place + len(_DATA_URL))
        if end >= 0:
            yield end + 1 - place


def _prompts(prompt: Raw) -> int:
    """Returns how many prompts a text completion has: a list of texts or of lists of tokens is one for each."""
    if not bytes(prompt).lstrip().startswith(b"["):
        return 1
    try:
        entries = msgspec.json.decode(prompt, type=list[str | int | list[int]])
    except MALFORMED:
        return 1
    return max(1, sum(not isinstance(entry, int) for entry in entries))


def _whole_number(value: Raw) -> int | None:
    """Returns a number of tokens; None if it is none, which is for the engine to refuse."""
    try:
        return max(0, _whole.decode(value))
    except MALFORMED:
        return None
