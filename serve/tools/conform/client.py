"""The client's side: what came back of a request, down to how it ended."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp


@dataclass(frozen=True)
class Reply:
    """What a client got.

    Attributes:
        status: HTTP status; 0 if no answer came.
        headers: By lower-case name, in their order.
        body: All bytes that came.
        complete: The body ended as HTTP says it ends; False if the connection broke or nothing came.
        detail: Why there is no answer or no end.
        seconds: From the request to the end.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    complete: bool
    detail: str
    seconds: float

    def header(self, name: str) -> str | None:
        """The first value of a header."""
        return next((value for known, value in self.headers if known == name), None)

    def json(self) -> Any:
        """The body as JSON; None if it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    def data(self) -> list[str]:
        """The data of every SSE event, in order."""
        events: list[str] = []
        for block in self.body.decode("utf-8", "replace").replace("\r\n", "\n").split("\n\n"):
            lines = [line[5:].removeprefix(" ") for line in block.split("\n") if line.startswith("data:")]
            if lines:
                events.append("\n".join(lines))
        return events

    def chunks(self) -> list[dict[str, Any]]:
        """Every event that is a JSON object."""
        found = []
        for text in self.data():
            try:
                value = json.loads(text)
            except ValueError:
                continue
            if isinstance(value, dict):
                found.append(value)
        return found

    @property
    def done(self) -> bool:
        """A `[DONE]` came."""
        return "[DONE]" in self.data()

    @property
    def error(self) -> Any:
        """The error of a JSON body or of an error frame; None if there is none."""
        whole = self.json()
        objects = [whole] if isinstance(whole, dict) else self.chunks()
        return next((each["error"] for each in objects if each.get("error")), None)

    @property
    def failed(self) -> bool:
        """A client that keeps to the protocol can tell that this is no whole answer."""
        return self.status >= 400 or not self.complete or self.error is not None

    @property
    def text(self) -> str:
        """The content of a chat answer, whole or put together from its chunks."""
        parts = [(each.get("delta") or each.get("message") or {}).get("content") for each in self.choices()]
        return "".join(part for part in parts if part)

    @property
    def call(self) -> tuple[str, str]:
        """Name and arguments of the tool call, whole or put together from its chunks."""
        name = arguments = ""
        for choice in self.choices():
            for call in (choice.get("message") or choice.get("delta") or {}).get("tool_calls") or ():
                name += (call.get("function") or {}).get("name") or ""
                arguments += (call.get("function") or {}).get("arguments") or ""
        return name, arguments

    def choices(self) -> list[dict[str, Any]]:
        """Every choice of every chunk, or of the whole answer."""
        whole = self.json()
        objects = [whole] if isinstance(whole, dict) else self.chunks()
        return [choice for each in objects for choice in each.get("choices") or () if isinstance(choice, dict)]

    def summary(self) -> str:
        """A few words for the report."""
        if not self.status:
            return f"no answer: {self.detail}"
        end = "" if self.complete else ", then the connection broke"
        error = self.error.get("message", self.error) if isinstance(self.error, dict) else self.error
        return f"HTTP {self.status}{end}" + (f", error {str(error)[:100]!r}" if error is not None else "")


async def send(
    session: aiohttp.ClientSession, method: str, url: str, body: Any, headers: Mapping[str, str], timeout_s: float
) -> Reply:
    """Send one request and read all of what comes back; errors of the transport are part of the reply."""
    started = time.monotonic()
    status, detail, complete = 0, "", False
    got: tuple[tuple[str, str], ...] = ()
    parts: list[bytes] = []
    try:
        async with session.request(
            method, url, data=body, headers=headers, timeout=aiohttp.ClientTimeout(total=timeout_s)
        ) as response:
            status = response.status
            got = tuple((name.decode().lower(), value.decode("latin-1")) for name, value in response.raw_headers)
            async for part in response.content.iter_any():
                parts.append(part)
            complete = True
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        detail = f"{type(error).__name__} {error}".strip()[:160]
    return Reply(status, got, b"".join(parts), complete, detail, time.monotonic() - started)
