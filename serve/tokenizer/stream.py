"""Decodes a stream of token bytes: only whole characters come out, and none is lost."""

import codecs
from collections.abc import Callable, Iterable


class StreamDecoder:
    """Decodes the tokens of one response as they arrive.

    The text so far is always a prefix of the decoded whole: bytes of an unfinished character wait for the token that
    finishes it. Bytes that can never become a character become U+FFFD, as in the decoded whole.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._truncated = False

    @property
    def truncated(self) -> bool:
        """True after `finish` if the stream ended within a character."""
        return self._truncated

    def feed(self, ids: Iterable[int]) -> str:
        """Returns the characters that these tokens complete.

        Raises:
            TokenIdError: An id is outside the vocabulary; the decoder's state has not changed.
        """
        return self._utf8.decode(b"".join([self._token_bytes(token_id) for token_id in ids]))

    def finish(self) -> str:
        """Ends the stream; returns one U+FFFD if it ended within a character, else nothing."""
        pending, _ = self._utf8.getstate()
        self._truncated = bool(pending)
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest
