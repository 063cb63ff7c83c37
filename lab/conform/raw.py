"""Bytes to and from a gateway without an HTTP client, which would not send what an attacker sends."""

import asyncio
import re
from urllib.parse import urlsplit

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})[ \r]")
_FIRST_S = 3.0
_QUIET_S = 0.5


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Opens a connection to the host and port of a URL."""
    host = urlsplit(url)
    return await asyncio.open_connection(host.hostname or "", host.port or 80)


async def exchange(url: str, sent: bytes, first_s: float = _FIRST_S, quiet_s: float = _QUIET_S) -> bytes:
    """Sends bytes on a connection of their own and returns everything that comes back.

    Args:
        url: The gateway.
        sent: One or more requests, or what looks like them.
        first_s: Longest wait for the first byte of a response.
        quiet_s: Silence after which the response counts as complete.
    """
    reader, writer = await connect(url)
    answer = b""
    try:
        writer.write(sent)
        while part := await asyncio.wait_for(reader.read(2**16), quiet_s if answer else first_s):
            answer += part
    except (TimeoutError, OSError):
        pass  # a reset is a way to refuse, and so is silence
    finally:
        writer.close()
    return answer


def statuses(answer: bytes) -> list[int]:
    """Returns the statuses of the responses among the bytes of a connection."""
    return [int(status) for status in _STATUS.findall(answer)]


def head(url: str, headers: dict[str, str], lines: str = "", path: str = "/v1/chat/completions") -> bytes:
    """Returns the head of a POST request.

    Args:
        url: The gateway; gives the Host header.
        headers: Headers without Host and without any length.
        lines: More header lines, exactly as they are to be sent, without the last line end.
        path: The request target.
    """
    usual = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    end = "\r\n\r\n" if lines else "\r\n"
    return f"POST {path} HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\n{usual}{lines}{end}".encode("latin-1")
