"""Long JSON, read without its long texts.

A decoder lets no other thread run from the first byte to the last: 20 ms for a picture of 30 MB, which it only passes
over, and more for as many numbers. Of an honest body of many megabytes nearly all is in a few long texts. So those are
looked at piece by piece and left out, what remains is decoded, and they are put back into the values that hold them.
"""

import re
import secrets
from collections.abc import Iterator
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Raw, Struct

from serve.errors import InvalidRequestError
from serve.http1.turns import PIECE_BYTES, joined

T = TypeVar("T")

# Of the densest JSON, a decoder passes over that much in 15 ms.
MOST_AT_ONCE_BYTES = 8 * 1024 * 1024
_LONG_TEXT_BYTES = 1024
_MOST_TEXTS = 150_000  # each is looked at for a microsecond, and may become an object
_QUOTE = b'"'
_MARK_BYTES = 24
_NUMBER_BYTES = 8
_PIECE_CHARACTERS = PIECE_BYTES // 4
_STAND_IN_BYTES = _MARK_BYTES + _NUMBER_BYTES
_LONGEST_ESCAPE = 12  # a pair of surrogates
_LONGEST_CHARACTER = 4
_WITHIN_TEXT = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_ESCAPED_BYTES = 64 * 1024
_FEW_BYTES = 16
_PLACE = re.compile(r" \(byte \d+\)")  # in the decoder's words: of what was left, so that it would mislead
_skipped = msgspec.json.Decoder(Raw)
_text = msgspec.json.Decoder(str)


def decode(decoder: "msgspec.json.Decoder[T]", text: bytes | Raw) -> T:
    """Returns what a decoder makes of JSON, however long that is; no step of it takes long.

    `decoder` is one of structs, lists, dictionaries, texts and `Raw`.

    Raises:
        msgspec.DecodeError: It is not JSON, or of another type.
        InvalidRequestError: More than `MOST_AT_ONCE_BYTES` of it are not in long texts.
    """
    size_bytes = len(text) if isinstance(text, bytes) else len(memoryview(text))
    if size_bytes <= MOST_AT_ONCE_BYTES:
        return decoder.decode(text)
    return LongJson(text if isinstance(text, bytes) else joined((memoryview(text),))).decode(decoder)


def encode(value: Any) -> bytes:
    """Returns the JSON of what was decoded from long JSON; no step of it takes long.

    No text but the long ones may be longer than `MOST_AT_ONCE_BYTES` altogether.
    """
    texts: list[str] = []
    mark = _new_mark()
    first, *others = msgspec.json.encode(_without_long_texts(value, mark, texts)).split(mark.encode())
    parts = [first]
    for other in others:
        text = texts[int(other[:_NUMBER_BYTES])]
        starts = range(0, len(text), _PIECE_CHARACTERS)
        parts += [msgspec.json.encode(text[start : start + _PIECE_CHARACTERS])[1:-1] for start in starts]
        parts.append(other[_NUMBER_BYTES:])
    return joined(parts)


def _new_mark() -> str:
    """Returns the beginning of what stands for a text, which nobody can have put into one."""
    return secrets.token_hex(_MARK_BYTES // 2)


def _without_long_texts(value: Any, mark: str, texts: list[str]) -> Any:
    """Returns a value with something short in place of each long text, which is added to `texts`."""
    if isinstance(value, str) and len(value) > _LONG_TEXT_BYTES:
        texts.append(value)
        return f"{mark}{len(texts) - 1:0{_NUMBER_BYTES}}"
    if isinstance(value, dict):
        return {name: _without_long_texts(member, mark, texts) for name, member in value.items()}
    return [_without_long_texts(each, mark, texts) for each in value] if isinstance(value, list) else value


class LongJson:
    """JSON, with something short in place of each long text.

    Attributes:
        short: What is left of it.

    Raises:
        msgspec.DecodeError: A long text is malformed.
        InvalidRequestError: More than `MOST_AT_ONCE_BYTES` are left, or there are too many texts.
    """

    def __init__(self, whole: bytes) -> None:
        self._whole = whole
        self._mark = _new_mark()
        self._mark_bytes = self._mark.encode()
        self._texts: list[tuple[int, int]] = []
        parts: list[bytes] = []
        end = left = 0
        for number, place in enumerate(texts_of(whole)):
            if number >= _MOST_TEXTS:
                raise InvalidRequestError(f"The body has more than {_MOST_TEXTS} texts.", code="over_limit")
            if place[1] - place[0] <= _LONG_TEXT_BYTES:
                if place[1] - end + left > MOST_AT_ONCE_BYTES:
                    break
                continue
            left += place[0] - end + _STAND_IN_BYTES
            if left > MOST_AT_ONCE_BYTES:
                break
            for _ in pieces_of_text(whole, *place):
                pass  # what is malformed raises
            parts += (whole[end : place[0]], self._mark_bytes, b"%08d" % len(self._texts))
            self._texts.append(place)
            end = place[1]
        if left + len(whole) - end > MOST_AT_ONCE_BYTES:
            raise InvalidRequestError(
                f"The body has more than {MOST_AT_ONCE_BYTES} bytes beside its long texts, in numbers, names and short "
                "texts. Send fewer of them; a prompt of so many tokens is shorter as a text.",
                code="over_limit",
            )
        self.short = b"".join((*parts, whole[end:]))

    def decode(self, decoder: "msgspec.json.Decoder[T]") -> T:
        """Returns what a decoder makes of the whole; see the function of that name."""
        try:
            value = decoder.decode(self.short)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError as error:
            raise msgspec.DecodeError(_PLACE.sub("", str(error))) from error
        return cast("T", self._restored(value))

    def filled(self, part: bytes) -> bytes:
        """Returns a part of what is left, or what was made of it, with the long texts in their places."""
        first, *others = part.split(self._mark_bytes)
        pieces: list[bytes | memoryview] = [first]
        whole = memoryview(self._whole)
        for other in others:
            start, end = self._texts[int(other[:_NUMBER_BYTES])]
            pieces += (whole[start:end], other[_NUMBER_BYTES:])
        return joined(pieces)

    def _restored(self, value: Any) -> Any:
        """Returns a decoded value with the long texts in it; containers are changed in place."""
        if isinstance(value, Raw):
            part = bytes(value)
            return Raw(self.filled(part)) if self._mark_bytes in part else value
        if isinstance(value, str):
            return "".join(self.pieces(value)) if value.startswith(self._mark) else value
        if isinstance(value, Struct):
            for name in value.__struct_fields__:
                before = getattr(value, name)
                after = self._restored(before)
                if after is not before:
                    setattr(value, name, after)
        elif isinstance(value, list):
            value[:] = map(self._restored, value)
        elif isinstance(value, dict):
            members = [(self._restored(name), self._restored(member)) for name, member in value.items()]
            value.clear()
            value.update(members)
        return value

    def pieces(self, text: str) -> Iterator[str]:
        """Yields a decoded text of what is left piece by piece; of one that stands for a long text, that one's."""
        if not text.startswith(self._mark):
            yield text
            return
        start, end = self._texts[int(text[_MARK_BYTES:])]
        for piece in pieces_of_text(self._whole, start, end):
            yield _text.decode(piece)


def texts_of(whole: bytes) -> Iterator[tuple[int, int]]:
    """Yields where the texts of JSON begin and end, quotes not included."""
    quotes = _quotes(whole)
    for opening in quotes:
        closing = next(quotes, None)
        if closing is not None:
            yield opening + 1, closing


def _quotes(whole: bytes) -> Iterator[int]:
    """Yields the places of quotes that begin or end a text."""
    at = 0
    while at < len(whole):
        quote = whole.find(_QUOTE, at, at + PIECE_BYTES)
        if quote < 0:
            at += PIECE_BYTES
        elif is_escaped(whole, quote):  # there are more of them near by
            at = _WITHIN_TEXT.match(whole, quote + 1, quote + _ESCAPED_BYTES).end()  # type: ignore[union-attr]
        else:
            yield quote
            at = quote + 1


def is_escaped(body: bytes, place: int) -> bool:
    """Returns whether a backslash or quote at a place is escaped by the backslashes before it."""
    size = _FEW_BYTES
    while True:
        before = body[max(0, place - size) : place]
        rest = before.rstrip(b"\\")
        if rest or size >= place:
            return (len(before) - len(rest)) % 2 == 1
        size *= _FEW_BYTES


def pieces_of_text(whole: bytes, start: int, end: int) -> Iterator[bytes]:
    """Yields a text in pieces, each of them JSON that has been read. `start` is behind its opening quote.

    Raises:
        msgspec.DecodeError: It is malformed.
    """
    while start < end:
        piece = _first_piece(whole, start, end)
        yield piece
        start += len(piece) - 2


def _first_piece(whole: bytes, start: int, end: int) -> bytes:
    last = min(start + PIECE_BYTES, end)
    fault = msgspec.DecodeError("a text is not UTF-8")
    # One of these is within neither an escape nor a character.
    for cut in [end] if last == end else range(last, last - _LONGEST_ESCAPE - _LONGEST_CHARACTER, -1):
        if whole[cut] & 0b1100_0000 == 0b1000_0000:
            continue
        piece = b'"%b"' % whole[start:cut]
        try:
            _skipped.decode(piece)
        except msgspec.DecodeError as error:
            fault = error
        else:
            return piece
    raise msgspec.DecodeError(_PLACE.sub("", str(fault))) from fault
