"""The stages that read nothing but bytes: our name of a model for the engine's, and the watch for a stream's end."""

import json
import re
from collections.abc import Sequence

from serve.http1.sse import is_done
from serve.stream.frame import Frame, FrameTemplate
from serve.stream.line import Stage, ignore

# `"error": null` is no error.
_ERROR = re.compile(rb'\{"error" ?: ?[^n ]')


class End(Stage):
    """Withholds what follows an error: vLLM sends `[DONE]` even then, which would make the stream look complete.

    Attributes:
        done: The stream ended as a complete one does.
        failed: The engine sent an error.
    """

    skim = staticmethod(ignore)

    def __init__(self) -> None:
        self.done = False
        self.failed = False

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Returns the frame, or nothing after an error."""
        if self.failed:
            return ()
        raw = frame.raw
        # `rfind` is twice as fast as `in`, for bytes in which quotes and brackets abound.
        if (raw.rfind(b"[DONE]") >= 0 or raw.rfind(b'{"error"') >= 0) and (data := frame.data()) is not None:
            if is_done(data):
                self.done = True
            elif _ERROR.match(data):
                self.failed = True
        return (frame,)


class Rename(Stage):
    """Puts our name of a model in place of the engine's in one response.

    Only a member `model` of exactly that value is replaced. The quotes of such a member inside a text are escaped, so
    that the bytes of a text never look like one.

    Args:
        served: The engine's name.
        ours: The name in the response to the client.
    """

    def __init__(self, served: str, ours: str) -> None:
        self._pattern = _pattern(served)
        self._theirs: FrameTemplate | None = None
        self._mine: FrameTemplate
        self._ours = rb"\g<1>" + json.dumps(ours).encode().replace(b"\\", rb"\\")

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Returns the frame under our name."""
        if (template := frame.template) is not None:
            if template is not self._theirs:
                self._theirs, self._mine = template, self._renamed(template)
            return (Frame(self._mine.around(template.inner(frame.raw)), self._mine, frame.text),)
        renamed = self.whole(frame.raw)
        if renamed == frame.raw:
            return (frame,)
        return (Frame(renamed, learner=frame.learner, sent=frame.raw, whole=frame.whole),)

    def _renamed(self, template: FrameTemplate) -> FrameTemplate:
        return FrameTemplate(self.whole(template.prefix), self.whole(template.suffix), template.place)

    def whole(self, body: bytes) -> bytes:
        """Returns a whole body under our name."""
        return self._pattern.sub(self._ours, body)


def _pattern(served: str) -> re.Pattern[bytes]:
    """Returns what finds the member however its value is escaped: JSON may escape slashes, and all but ASCII."""
    spellings = {json.dumps(served, ensure_ascii=ascii_only).encode() for ascii_only in (True, False)}
    values = b"|".join(re.escape(value).replace(b"/", rb"\\?/") for value in sorted(spellings))
    return re.compile(rb'("model"\s*:\s*)(?:%s)' % values)
