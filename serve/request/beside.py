"""Long work beside the event loop, such that no step of it holds up the loop."""

import asyncio
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
# From here on a body is read beside the event loop: that may take longer than other requests should wait.
LONG_BODY_BYTES = 256 * 1024
PIECE_BYTES = 1024 * 1024  # copied at once: a thread would cost more


async def beside(is_long: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Returns what a function returns; in a thread if it takes long."""
    return await asyncio.to_thread(work, *args, **kwargs) if is_long else work(*args, **kwargs)


def joined(parts: Iterable[bytes | memoryview]) -> bytes:
    """Returns parts as one, as `bytes.join` does.

    That lets other threads run while it copies a long result, but only if all parts are `bytes` themselves. So views of
    many bytes are copied in pieces first.
    """
    pieces: list[bytes] = []
    for part in parts:
        if type(part) is bytes:
            pieces.append(part)
        else:
            view = memoryview(part)
            pieces += [bytes(view[start : start + PIECE_BYTES]) for start in range(0, len(view), PIECE_BYTES)]
    return b"".join(pieces)
