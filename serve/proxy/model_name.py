"""A remote engine may serve a model under a name of its own, which clients neither send nor see."""

import json
import re

_MOST_WAITING_BYTES = 1024 * 1024  # of one line: the guard takes no longer frame either


class ModelName:
    """Puts our name of a model in place of the engine's in the bytes of one response.

    Only a member `model` of exactly that value is replaced. The quotes of such a member inside a text are escaped, so
    that the bytes of a text never look like one. A line that has not arrived completely waits for its end: frames are
    lines. One that is longer than any frame goes on in pieces.

    Args:
        served: The engine's name.
        ours: The name in the response to the client.
    """

    def __init__(self, served: str, ours: str) -> None:
        self._pattern = _pattern(served)
        self._ours = rb"\g<1>" + json.dumps(ours).encode().replace(b"\\", rb"\\")
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Returns the lines that are complete now."""
        cut = data.rfind(b"\n") + 1
        if not cut:
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            return b"" if self._waiting_bytes <= _MOST_WAITING_BYTES else self.finish()
        lines = b"".join([*self._waiting, data[:cut]])
        self._waiting = [data[cut:]]
        self._waiting_bytes = len(data) - cut
        return self.whole(lines)

    def finish(self) -> bytes:
        """Returns what is left when the response is over."""
        rest = b"".join(self._waiting)
        self._waiting = []
        self._waiting_bytes = 0
        return self.whole(rest)

    def whole(self, body: bytes) -> bytes:
        """Returns a whole body, or whole lines, with our name."""
        return self._pattern.sub(self._ours, body)


def _pattern(served: str) -> re.Pattern[bytes]:
    """Returns what finds the member however its value is escaped: JSON may escape slashes, and all but ASCII."""
    spellings = {json.dumps(served, ensure_ascii=ascii_only).encode() for ascii_only in (True, False)}
    values = b"|".join(re.escape(value).replace(b"/", rb"\\?/") for value in sorted(spellings))
    return re.compile(rb'("model"\s*:\s*)(?:%s)' % values)
