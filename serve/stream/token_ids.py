"""The ids of an answer's tokens, taken out of its bytes before anybody reads them: the client did not ask for them.

They differ from frame to frame, so that frames which hold them could not be told by their beginning and their end.
"""

import re
from typing import cast

import msgspec

from serve.stream.line import Stage

# Within a JSON string the quotes would be escaped: text of a model can't imitate the members. What separates a member
# from the next goes with it: the comma before it or, where it is the first, the one behind it.
_MEMBER = re.compile(rb'(,\s*)?"(prompt_)?token_ids"\s*:\s*(?:null|\[([-0-9,\s]*+)\])(?(1)|\s*,?\s*)')
_NAME_END = b'token_ids"'
_BYTES_OF_ID = 8  # at most, with its comma, in any vocabulary

_decode = msgspec.json.Decoder(list[int]).decode


class TokenIds(Stage):
    """Keeps the ids of one answer with one choice.

    Args:
        prompt_bytes: Of the request: its prompt has at most as many tokens, and their ids come in one frame.

    Attributes:
        allowance_bytes: A frame may be longer by so much as long as the ids are in it.
    """

    def __init__(self, prompt_bytes: int = 0) -> None:
        self.allowance_bytes = prompt_bytes * _BYTES_OF_ID
        self._prompt = b""
        self._written: list[bytes] = []

    @property
    def prompt(self) -> list[int]:
        """The ids of the prompt; empty if the engine has not sent them."""
        return _ids((self._prompt,))

    @property
    def written(self) -> list[int]:
        """The ids of what has arrived of the answer."""
        return _ids(self._written)

    def edit(self, raw: bytes) -> bytes:
        """Returns a frame without its ids."""
        name = raw.find(_NAME_END)
        if name < 0:
            return raw
        begin, end = name + len(_NAME_END), raw.find(b"]", name)
        if raw[name - 2 : name] == b',"' and raw[begin : begin + 2] == b":[" and raw.find(_NAME_END, end) < 0:
            ids = raw[begin + 2 : end]  # as vLLM writes them, which is as nearly always
            if ids.isdigit() or ids.replace(b",", b"").isdigit():
                self._written.append(ids)
                return raw[: name - 2] + raw[end + 1 :]
        return _MEMBER.sub(self._take, raw)

    def whole(self, body: bytes) -> bytes:
        """Returns an answer that does not stream without its ids."""
        return self.edit(body)

    def _take(self, member: re.Match[bytes]) -> bytes:
        ids = cast("bytes | None", member[3])
        if ids is not None and not ids.isspace() and ids:
            if member[2] is None:
                self._written.append(ids)
            else:
                self._prompt = ids
        return b""


def _ids(parts: list[bytes] | tuple[bytes, ...]) -> list[int]:
    """Returns ids that came in parts; none if they are no list of numbers: a foreign engine may send anything."""
    try:
        return _decode(b"[" + b",".join(part for part in parts if part) + b"]")
    except msgspec.MsgspecError:
        return []
