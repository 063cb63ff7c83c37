"""Estimates of what a request will use: by the text that it holds, and by the answers to those before it.

Nobody runs a tokenizer. What a tenant is charged depends on its own answers alone, and stays within the bounds of what
tokenizers and engines do. So nobody can make tokens cheap or dear for others.
"""

from collections.abc import Iterator, MutableMapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import astuple

from policies import RequestFeatures
from serve.limits.answer_meter import Meter
from serve.limits.usage import Usage
from serve.request.completion import MALFORMED, NONE, CompletionRequest, is_list, whole_number
from serve.request.long_json import decode

_FIRST_OUTPUT = 512.0
_QUANTILE = 0.75
_STEP = 0.1  # of the estimate, by which an answer moves it
_FEW_CHUNKS = 32  # an answer of no more says little: the chunks with its role and its end hold no token
_MOST_ENTRIES = 20_000
_FORGET = 0.05
# That no tokenizer and no model exceeds.
_TEMPLATE_TOKENS = 32_768
_MOST_IMAGE_TOKENS = 65_536

# Of JSON and of an indented text, blanks are not what costs: tokenizers have tokens for many of them. Nor do the
# backslashes of a text that is escaped.
_BLANK = b" \t\r\n\\"
_WINDOW_BYTES = 1024 * 1024  # looked at at once: no other thread runs meanwhile

Group = tuple[str, str, str, str]  # tenant, key, model, request class
Key = TypeVar("Key")
Value = TypeVar("Value")


class RequestSize(Struct, frozen=True, gc=False):
    """A request, as far as its cost goes.

    Attributes:
        text_bytes: Of what becomes a prompt, without images and blanks.
        token_ids: Tokens of prompts that are given as such.
        prompts: Prompts that it holds, each with an answer of its own.
        answers: For each prompt.
        max_output: The most tokens of one answer that the request allows; None if it does not say.
        body_bytes: Of all of it.
    """

    text_bytes: int
    token_ids: int = 0
    images: int = 0
    prompts: int = 1
    answers: int = 1
    max_output: int | None = None
    streamed: bool = False
    body_bytes: int = 0

    @property
    def most_input(self) -> int:
        """The most tokens of all prompts together: none is shorter than a byte."""
        return self.body_bytes + _TEMPLATE_TOKENS * self.prompts + _MOST_IMAGE_TOKENS * self.images

    @property
    def most_output(self) -> int | None:
        """The most tokens of all answers together; None if the request does not say."""
        return None if self.max_output is None else self.max_output * self.answers * self.prompts


class _Message(Struct, gc=False, omit_defaults=True):
    """The members of a message that templates read; what else a client writes there costs nothing."""

    role: Raw = NONE
    content: Raw = NONE
    reasoning: Raw = NONE
    reasoning_content: Raw = NONE
    thinking: Raw = NONE
    refusal: Raw = NONE
    tool_calls: Raw = NONE
    function_call: Raw = NONE
    name: Raw = NONE
    tool_call_id: Raw = NONE
    tools: Raw = NONE


class _Texts(Struct, gc=False):
    """The members of a body that become prompts."""

    messages: list[_Message] | None = None
    tools: Raw = NONE
    functions: Raw = NONE
    documents: Raw = NONE
    prompt: Raw = NONE
    suffix: Raw = NONE


class _Part(Struct, gc=False):
    """Content of a message's part that is no text."""

    image_url: Raw = NONE
    video_url: Raw = NONE
    audio_url: Raw = NONE
    input_audio: Raw = NONE


_parts = msgspec.json.Decoder(list[_Part | str])
_texts = msgspec.json.Decoder(_Texts)


def size_of(body: bytes, request: CompletionRequest, features: RequestFeatures) -> RequestSize:
    """Returns the size of a chat or text completion."""
    texts = decode(_texts, body)
    text_bytes, images = _message_bytes(texts.messages or (), len(body)), 0
    if texts.tools is not NONE:
        text_bytes += _text_bytes(texts.tools)
    for text in (texts.functions, texts.documents, texts.suffix):
        if text is not NONE:
            text_bytes += _text_bytes(text)
    if features.images:
        lists = (message.content for message in request.messages or () if is_list(message.content))
        media = [each for content in lists for each in _media(content)]
        text_bytes -= sum(map(_text_bytes, media))
        images = max(1, len(media))
    prompts, token_ids = 1, 0
    if texts.prompt is not NONE:
        prompts, token_ids = _prompts(texts.prompt)
        if not token_ids:
            text_bytes += _text_bytes(texts.prompt)
    answers = 1
    if request.n is not None or request.best_of is not None:
        answers = max(request.n or 1, request.best_of or 1)
    most, other = request.max_tokens, request.max_completion_tokens
    max_output = None if most is NONE else whole_number(most)
    if other is not NONE:  # the larger of the two, since engines differ in which of them they obey
        max_output = max((limit for limit in (max_output, whole_number(other)) if limit is not None), default=None)
    return RequestSize(text_bytes, token_ids, images, prompts, answers, max_output, features.stream, len(body))


class _Ratio(Struct, gc=False):
    """Tokens for each of some units, over what was seen last; a large sample weighs more than a small one."""

    tokens: float
    units: float

    def learn(self, tokens: float, units: int, least: float, most: float) -> None:
        """Adds a sample, as far as it is within bounds."""
        bounded = min(max(tokens, least * units), most * units)
        self.tokens += bounded - _FORGET * self.tokens
        self.units += units - _FORGET * self.units

    def of(self, units: int) -> float:
        return units * self.tokens / self.units


class _Bounds(Struct, frozen=True):
    """The expectation of tokens before any answer.

    Attributes:
        first: Tokens of a unit.
        units: How many of them that first value weighs as much as.
        least: The fewest tokens of a unit that are believed.
        most: The most.
    """

    first: float
    units: float
    least: float
    most: float


_TEXT = _Bounds(0.3, 2000.0, 0.125, 1.0)  # tokens of a byte of text
_CHUNK = _Bounds(1.0, 100.0, 0.25, 32.0)  # tokens of a chunk of a stream; more than one with drafts


class Estimates:
    """Estimates for all models, tenants and keys. Strict ones are of all the output that a request may have, not what
    it will probably have.
    """

    def __init__(self, strict: bool, tokens_per_image: int) -> None:
        self._strict = strict
        self._tokens_per_image = tokens_per_image
        self._texts: dict[tuple[str, str], _Ratio] = {}
        self._chunks: dict[tuple[str, str, str, bool], _Ratio] = {}
        self._outputs: dict[Group, float] = {}

    def of(self, group: Group, size: RequestSize, cap: int) -> tuple[int, int]:
        """Returns the tokens of the prompts, and those of all answers. The cap is the most that the model writes,
        whatever the request says.
        """
        ratio = self._texts.get((group[0], group[2]))
        tokens = int(size.text_bytes * _TEXT.first if ratio is None else ratio.of(size.text_bytes)) + 1 + size.token_ids
        if size.images:
            tokens += size.images * self._tokens_per_image
        most = cap
        if size.max_output is not None and size.max_output < most:
            most = size.max_output
        if not self._strict and (usual := int(self._outputs.get(group, _FIRST_OUTPUT)) + 1) < most:
            most = usual
        return tokens, most * size.answers * size.prompts

    def written(self, group: Group, size: RequestSize, meter: Meter) -> int:
        """Returns the tokens in a part of a stream."""
        ratio = self._chunks.get((group[0], group[2], meter.pool, meter.speculative))
        tokens = round(meter.chunks * _CHUNK.first if ratio is None else ratio.of(meter.chunks))
        return tokens if (most := size.most_output) is None else min(tokens, most)

    def learn(self, group: Group, size: RequestSize, usage: Usage, meter: Meter) -> None:
        tenant, _, model, _ = group
        if size.text_bytes and not size.images:
            _learn(self._texts, (tenant, model), usage.input - size.token_ids, size.text_bytes, _TEXT)
        if meter.chunks > _FEW_CHUNKS and not meter.kept_tokens:  # of what was kept there are no chunks
            stream = (tenant, model, meter.pool, meter.speculative)
            _learn(self._chunks, stream, usage.output, meter.chunks, _CHUNK)
        output = usage.output / (size.answers * size.prompts)
        known = self._outputs.get(group)
        if known is None:
            _remember(self._outputs, group, output)
            return
        # Up by more than down, so that it rests where a quarter is above.
        step = _STEP * (known if known > 1 else 1.0)
        self._outputs[group] = known + step * _QUANTILE if output > known else known - step * (1 - _QUANTILE)


def _learn(ratios: MutableMapping[Key, _Ratio], key: Key, tokens: int, units: int, bounds: _Bounds) -> None:
    ratio = ratios.get(key)
    if ratio is None:
        ratio = _remember(ratios, key, _Ratio(bounds.first * bounds.units, bounds.units))
    ratio.learn(tokens, units, bounds.least, bounds.most)


def _remember(table: MutableMapping[Key, Value], key: Key, value: Value) -> Value:
    """Puts an entry into a table, of which the oldest goes if there are too many."""
    if len(table) >= _MOST_ENTRIES:
        del table[next(iter(table))]
    table[key] = value
    return value


def _text_bytes(value: Raw) -> int:
    """Returns the bytes of a member without blanks; 0 for one that is not there."""
    if value is NONE:
        return 0
    text = bytes(value)
    if len(text) <= _WINDOW_BYTES:
        return len(text.translate(None, _BLANK))
    windows = range(0, len(text), _WINDOW_BYTES)
    return sum(len(text[start : start + _WINDOW_BYTES].translate(None, _BLANK)) for start in windows)


def _message_bytes(messages: Sequence[_Message], body_bytes: int) -> int:
    """Returns the bytes of messages without blanks, as far as templates read them."""
    if not messages:
        return 0
    if body_bytes <= _WINDOW_BYTES:
        return _text_bytes(Raw(msgspec.json.encode(messages)))
    return sum([_text_bytes(member) for message in messages for member in astuple(message) if member is not NONE])


def _media(content: Raw) -> Iterator[Raw]:
    """Yields the pictures, recordings and films of a message."""
    try:
        parts = decode(_parts, content)
    except MALFORMED:
        return  # it is for the engine to refuse
    for part in parts:
        if not isinstance(part, str):
            yield from (each for each in astuple(part) if each is not NONE)


def _prompts(prompt: Raw) -> tuple[int, int]:
    """Returns how many prompts a text completion has, and their tokens if they are given as ids.

    A list of texts or of lists of ids has one prompt for each.
    """
    if not bytes(prompt).lstrip().startswith(b"["):
        return 1, 0
    try:
        entries = msgspec.json.decode(prompt, type=list[str | int | list[int]])
    except MALFORMED:
        return 1, 0
    ids = sum(1 if isinstance(entry, int) else len(entry) for entry in entries if not isinstance(entry, str))
    if ids and any(isinstance(entry, str) for entry in entries):
        ids = 0  # a mixture, which engines refuse
    return max(1, sum(not isinstance(entry, int) for entry in entries)), ids
