"""Estimates of what a request will use: by the text that it holds, and by the answers to those before it.

Nobody runs a tokenizer. What a tenant is charged depends on its own answers alone, and stays within the bounds of what
tokenizers and engines do. So nobody can make tokens cheap or dear for others.
"""

from collections.abc import MutableMapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from policies import RequestFeatures
from serve.errors import InvalidRequestError
from serve.http1.turns import PIECE_BYTES
from serve.limits.answer_meter import Meter
from serve.limits.usage import Usage
from serve.request.completion import MALFORMED, NONE, CompletionRequest, allowed_tokens, holds, is_list
from serve.request.long_json import LongJson

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
# backslashes of a text within JSON within JSON.
_BLANK = b" \t\r\n\\"
_MOST_BLANKS = 1  # for each other byte, of a text that teaches how many tokens a byte has
_MOST_UNSURE = 0.05  # of its bytes, in members that some templates leave out
_MESSAGE_BYTES = 30  # of the template, around each message

Group = tuple[str, str, str, str]  # tenant, key, model, request class
Key = TypeVar("Key")
Value = TypeVar("Value")


class RequestSize(Struct, frozen=True, gc=False):
    """A request, as far as its cost goes.

    Attributes:
        text_bytes: Of what becomes a prompt, in UTF-8 and without images and blanks.
        token_ids: Tokens of prompts that are given as such.
        prompts: Prompts that it holds, each with an answer of its own.
        answers: For each prompt.
        max_output: The most tokens of one answer that the request allows; None if it does not say.
        body_bytes: Of all of it.
        unsure_bytes: Of the text, what may cost nothing: it is in members that some templates leave out, or blanks are
            more than half of it.
    """

    text_bytes: int
    token_ids: int = 0
    images: int = 0
    prompts: int = 1
    answers: int = 1
    max_output: int | None = None
    streamed: bool = False
    body_bytes: int = 0
    unsure_bytes: int = 0

    @property
    def teaches(self) -> bool:
        """True if the tokens of its prompt tell how many a byte of text has."""
        return self.text_bytes > 0 and not self.images and self.unsure_bytes <= _MOST_UNSURE * self.text_bytes

    @property
    def most_input(self) -> int:
        """The most tokens of all prompts together: none is shorter than a byte."""
        return self.body_bytes + _TEMPLATE_TOKENS * self.prompts + _MOST_IMAGE_TOKENS * self.images

    @property
    def most_output(self) -> int | None:
        """The most tokens of all answers together; None if the request does not say."""
        return None if self.max_output is None else self.max_output * self.answers * self.prompts


class _Part(Struct, gc=False):
    """The members of a message's part that engines read, according to its type."""

    type: str | None = None
    text: str | None = None
    refusal: Raw = NONE
    thinking: Raw = NONE
    image_url: Raw = NONE
    video_url: Raw = NONE
    audio_url: Raw = NONE
    input_audio: Raw = NONE


class _Message(Struct, gc=False):
    """The members of a message that templates read; what else a client writes there costs nothing."""

    content: str | list[_Part | str] | None = None
    tool_calls: Raw = NONE
    # Not every template reads these, or not in every turn.
    reasoning: Raw = NONE
    reasoning_content: Raw = NONE
    thinking: Raw = NONE
    refusal: Raw = NONE
    function_call: Raw = NONE
    name: Raw = NONE
    tool_call_id: Raw = NONE
    tools: Raw = NONE


class _Function(Struct, gc=False):
    name: str
    arguments: str = ""


class _Call(Struct, gc=False):
    function: _Function


class _Texts(Struct, gc=False):
    """The members of a body that become prompts."""

    messages: list[_Message] | None = None
    tools: Raw = NONE
    functions: Raw = NONE
    documents: Raw = NONE
    chat_template_kwargs: dict[str, Raw] | None = None
    prompt: Raw = NONE
    suffix: Raw = NONE


_texts = msgspec.json.Decoder(_Texts)
_calls = msgspec.json.Decoder(list[_Call])
_prompt_texts = msgspec.json.Decoder(str | list[str])
_UNSURE = attrgetter(*_Message.__struct_fields__[2:])
_ALL_ABSENT = (NONE,) * len(_Message.__struct_fields__[2:])
_MEDIA = attrgetter("image_url", "video_url", "audio_url", "input_audio")
_TEXT_TYPES = frozenset({"text", "input_text", "output_text"})


class _Prompt:
    """What a body holds of prompts.

    Attributes:
        texts: That every template writes.
        sure_bytes: Of JSON that it writes.
        unsure: What it may leave out.
        media: Pictures, films and recordings.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.sure_bytes = self.media = 0
        self.unsure: list[Raw] = []

    def add(self, message: _Message) -> None:
        content = message.content
        if type(content) is str:
            self.texts.append(content)
        elif content:
            for part in content:
                if type(part) is str:
                    self.texts.append(part)
                else:
                    self._add_part(part)  # type: ignore[arg-type]
        if message.tool_calls is not NONE:
            self._add_calls(message.tool_calls)
        if (others := _UNSURE(message)) != _ALL_ABSENT:
            self.unsure += others
        self.sure_bytes += _MESSAGE_BYTES

    def _add_part(self, part: _Part) -> None:
        if part.type in _TEXT_TYPES:
            self.texts.append(part.text or "")
        elif media := sum(each is not NONE for each in _MEDIA(part)):
            self.media += media
        else:
            self.unsure += (part.refusal, part.thinking)
            if part.text is not None:
                self.unsure.append(Raw(msgspec.json.encode(part.text)))

    def _add_calls(self, calls: Raw) -> None:
        try:
            found = _calls.decode(calls)
        except MALFORMED:
            self.unsure.append(calls)
            return
        for call in found:
            self.texts += (call.function.name, _unescaped(call.function.arguments))

    def size(self, long: LongJson | None) -> tuple[int, int]:
        """Returns the bytes of text, and those of them that may cost nothing, given what it was read from if long."""
        sure, blanks = _written(self.texts, long)
        sure += self.sure_bytes
        unsure = sum([_json_bytes(each, long) for each in self.unsure])
        return sure + unsure, sure if blanks > _MOST_BLANKS * sure else unsure


def size_of(body: bytes, request: CompletionRequest, features: RequestFeatures) -> RequestSize:
    """Returns the size of a chat or text completion."""
    prompts, token_ids, media = 1, 0, int(features.images)
    try:
        long = LongJson(body) if len(body) > PIECE_BYTES else None
        texts = _texts.decode(body if long is None else long.short)
    except (*MALFORMED, InvalidRequestError):  # of a type that engines refuse, or of countless texts
        text_bytes = unsure_bytes = _without_blanks(body)
    else:
        prompt = _Prompt()
        for message in texts.messages or ():
            prompt.add(message)
        if texts.tools is not NONE:
            prompt.sure_bytes += _json_bytes(texts.tools, long)
        prompt.unsure += (texts.functions, texts.documents, texts.suffix, *_arguments(texts))
        if texts.prompt is not NONE:
            prompts, token_ids, written = _prompts(texts.prompt)
            if written is None:
                prompt.unsure.append(texts.prompt)
            else:
                prompt.texts += written
        text_bytes, unsure_bytes = prompt.size(long)
        if texts.messages and texts.prompt is not NONE:  # of which an engine reads one
            unsure_bytes = text_bytes
        media = max(media, prompt.media)
    answers = max(request.n or 1, request.best_of or 1, request.n_cmpl or 1)
    most = allowed_tokens(request)
    return RequestSize(text_bytes, token_ids, media, prompts, answers, most, features.stream, len(body), unsure_bytes)


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
        """Returns the tokens in a part of a stream, with what is kept of an earlier one."""
        ratio = self._chunks.get((group[0], group[2], meter.pool, meter.speculative))
        tokens = round(meter.chunks * _CHUNK.first if ratio is None else ratio.of(meter.chunks))
        tokens += meter.kept_tokens
        return tokens if (most := size.most_output) is None else min(tokens, most)

    def learn(self, group: Group, size: RequestSize, usage: Usage, meter: Meter) -> None:
        tenant, _, model, _ = group
        if size.teaches:
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


def _arguments(texts: _Texts) -> list[Raw]:
    """Returns the texts among a template's arguments, which some templates write."""
    return [value for value in (texts.chat_template_kwargs or {}).values() if bytes(memoryview(value)[:1]) == b'"']


def _written(texts: list[str], long: LongJson | None) -> tuple[int, int]:
    """Returns the bytes of texts, as prompts have them, and how many blanks there are beside."""
    kept = every = 0
    for piece in ("".join(texts),) if long is None else chain.from_iterable(map(long.pieces, texts)):
        written = piece.encode()
        kept += len(written.translate(None, _BLANK))
        every += len(written)
    return kept, every - kept


def _unescaped(arguments: str) -> str:
    """Returns a call's arguments as a template writes them, which reads them; as they are if they are long or no JSON.

    A result of a call stays as it is: to a template it is a text, in which a model sees every escape.
    """
    if "\\" not in arguments or len(arguments) > PIECE_BYTES or "\\u" not in arguments:
        return arguments
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments)).decode()
    except MALFORMED:
        return arguments


def _json_bytes(value: Raw, long: LongJson | None) -> int:
    """Returns the bytes of JSON as a template writes it: in UTF-8, whichever escapes the client chose. Of JSON that is
    longer than `PIECE_BYTES` the escapes count as they are, since reading all of it would hold everybody up.
    """
    if value is NONE:
        return 0
    text = bytes(value) if long is None else long.filled(bytes(value))
    if b"\\" in text and len(text) <= PIECE_BYTES and b"\\u" in text:
        text = msgspec.json.encode(msgspec.json.decode(text))
    return _without_blanks(text)


def _without_blanks(text: bytes) -> int:
    if len(text) <= PIECE_BYTES:
        return len(text.translate(None, _BLANK))
    starts = range(0, len(text), PIECE_BYTES)
    return sum([len(text[start : start + PIECE_BYTES].translate(None, _BLANK)) for start in starts])


def _prompts(prompt: Raw) -> tuple[int, int, Sequence[str] | None]:
    """Returns how many prompts a text completion has, their tokens if they are given as ids, and else their texts.

    A list of texts or of lists of ids has one prompt for each. What engines refuse has no texts.
    """
    text = bytes(prompt)
    if not is_list(prompt) or holds(text, b'"'):
        try:
            written = _prompt_texts.decode(prompt)
        except MALFORMED:
            return 1, 0, None
        return (1, 0, (written,)) if isinstance(written, str) else (max(1, len(written)), 0, written)
    lists, ids = _count(text, b"[") - 1, _count(text, b",") + 1  # no list of ids is empty
    return max(1, lists), ids, ()


def _count(text: bytes, mark: bytes) -> int:
    return sum([text.count(mark, start, start + PIECE_BYTES) for start in range(0, len(text), PIECE_BYTES)])
