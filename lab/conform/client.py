"""The client's side: sends a request and records the response, including how it ended."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp


@dataclass(frozen=True)
class Reply:
    """A response as the client received it.

    Attributes:
        status: HTTP status; 0 if there was no response.
        headers: (lower-case name, value) pairs in their original order.
        body: All bytes received.
        complete: True if the body ended as HTTP demands; False if the connection broke or there was no response.
        detail: The reason for a missing or incomplete response.
        seconds: From the request to the end.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    complete: bool
    detail: str
    seconds: float

    def header(self, name: str) -> str | None:
        """Returns the first value of a header."""
        return next((value for header_name, value in self.headers if header_name == name), None)

    def json(self) -> Any:
        """Returns the body as JSON; None if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    def data(self) -> list[str]:
        """Returns the data of every SSE event, in order."""
        return [data for _, data in self._events()]

    def events(self) -> list[tuple[str, dict[str, Any] | None]]:
        """Returns every SSE event but `[DONE]` as its name and its object; None for data of another kind."""
        return [(name, _object(data)) for name, data in self._events() if data != "[DONE]"]

    def _events(self) -> list[tuple[str, str]]:
        events: list[tuple[str, str]] = []
        for block in self.body.decode("utf-8", "replace").replace("\r\n", "\n").split("\n\n"):
            name = ""
            lines: list[str] = []
            for line in block.split("\n"):
                field, _, value = line.partition(":")
                if field == "data":
                    lines.append(value.removeprefix(" "))
                elif field == "event":
                    name = value.removeprefix(" ")
            if lines:
                events.append((name, "\n".join(lines)))
        return events

    def chunks(self) -> list[dict[str, Any]]:
        """Returns every event that is a JSON object."""
        return [value for value in map(_object, self.data()) if value is not None]

    @property
    def done(self) -> bool:
        """True if the stream had a `[DONE]`."""
        return "[DONE]" in self.data()

    @property
    def error(self) -> Any:
        """The error in a JSON body or in an error frame; None if there is none."""
        whole = self.json()
        objects = [whole] if isinstance(whole, dict) else self.chunks()
        return next((value["error"] for value in objects if value.get("error")), None)

    @property
    def failed(self) -> bool:
        """True if a client that follows the protocol can tell that the response is not a complete answer."""
        return self.status >= 400 or not self.complete or self.error is not None

    @property
    def text(self) -> str:
        """The content of a chat completion, whole or folded from its chunks."""
        parts = [(choice.get("delta") or choice.get("message") or {}).get("content") for choice in self.choices()]
        return "".join(part for part in parts if part)

    @property
    def call(self) -> tuple[str, str]:
        """Name and arguments of the tool call, whole or folded from its chunks."""
        name = arguments = ""
        for choice in self.choices():
            for call in (choice.get("message") or choice.get("delta") or {}).get("tool_calls") or ():
                name += (call.get("function") or {}).get("name") or ""
                arguments += (call.get("function") or {}).get("arguments") or ""
        return name, arguments

    def choices(self) -> list[dict[str, Any]]:
        """Returns every choice of every chunk, or of the whole completion."""
        whole = self.json()
        objects = [whole] if isinstance(whole, dict) else self.chunks()
        return [choice for value in objects for choice in value.get("choices") or () if isinstance(choice, dict)]

    def summary(self) -> str:
        """Returns a few words for the report."""
        if not self.status:
            return f"no answer: {self.detail}"
        end = "" if self.complete else ", then the connection broke"
        error = self.error.get("message", self.error) if isinstance(self.error, dict) else self.error
        return f"HTTP {self.status}{end}" + (f", error {str(error)[:100]!r}" if error is not None else "")


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


async def send(
    session: aiohttp.ClientSession, method: str, url: str, body: Any, headers: Mapping[str, str], timeout_s: float
) -> Reply:
    """Send one request and read the whole response; transport errors become part of the reply.

    Args:
        session: HTTP client.
        method: HTTP method.
        url: Full URL.
        body: Body of the request, in a form that aiohttp accepts.
        headers: Headers of the request.
        timeout_s: Limit for the whole exchange.
    """
    started = time.monotonic()
    status = 0
    detail = ""
    complete = False
    received: tuple[tuple[str, str], ...] = ()
    parts: list[bytes] = []
    try:
        async with session.request(
            method, url, data=body, headers=headers, timeout=aiohttp.ClientTimeout(total=timeout_s)
        ) as response:
            status = response.status
            received = tuple((name.decode().lower(), value.decode("latin-1")) for name, value in response.raw_headers)
            async for part in response.content.iter_any():
                parts.append(part)
            complete = True
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        detail = f"{type(error).__name__} {error}".strip()[:160]
    return Reply(status, received, b"".join(parts), complete, detail, time.monotonic() - started)
