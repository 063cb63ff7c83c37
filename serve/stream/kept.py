"""The bytes of a stream, kept for the case that its engine is lost: only then does anybody read them."""

from __future__ import annotations

from serve.stream.reader import FramePattern, pattern_of

BATCH = 512  # parts that are folded at once
_MOST_BYTES = 4 * 1024 * 1024
_QUOTE = ord('"')


class Kept:
    """The bytes of one stream, frames of one text folded to one frame from time to time.

    A frame has some hundred bytes around the few of its text, so that a long answer shrinks to its text.

    Args:
        limit_bytes: Of more than that nothing is kept.

    Attributes:
        parts: The bytes, as they came or folded.
        lost: They were too many.
    """

    def __init__(self, limit_bytes: int = _MOST_BYTES) -> None:
        self.parts: list[bytes] = []
        self.lost = False
        self._most = BATCH
        self._limit_bytes = limit_bytes
        self._settled = 0  # parts that are counted, and not folded any more
        self._bytes = 0

    def add(self, data: bytes) -> None:
        """Keeps bytes of any shape."""
        self.parts.append(data)
        if len(self.parts) > self._most:
            self.fold()

    def fold(self) -> int:
        """Makes one frame of all that came since the last time, if they are frames of one text, each a part.

        Returns:
            After how many further parts it is time again, for those who put them into `parts` themselves.
        """
        like, run = pattern_of(self.parts[-1]), self.parts[self._settled :]
        if like is not None and all(
            [part.startswith(like.prefix) and part.endswith(like.suffix) and like.count(part) for part in run]
        ):
            self.parts[self._settled :] = [_folded(run, like)]
        self._bytes += sum(map(len, self.parts[self._settled :]))
        if self._bytes > self._limit_bytes:
            self.lost = True
        if self.lost:
            self.parts.clear()
        self._settled = len(self.parts)
        self._most = self._settled + BATCH
        return BATCH


def _folded(frames: list[bytes], like: FramePattern) -> bytes:
    """Returns one frame with the texts of several: JSON strings without their quotes can be joined."""
    begin, end = like.begin, -like.end
    texts = b"".join([frame[begin:end] for frame in frames])
    if _QUOTE in texts:  # of the text itself, or parts that hold several frames
        return b"".join(frames).replace(like.suffix + like.prefix, b"")
    return like.prefix + texts + like.suffix
