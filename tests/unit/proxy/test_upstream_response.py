"""What an engine's response is."""

from types import SimpleNamespace

import pytest

from serve.proxy.upstream import UpstreamResponse


@pytest.mark.parametrize(
    ("status", "kind", "is_stream"),
    [
        (200, "text/event-stream", True),
        (200, "Text/Event-Stream; charset=utf-8", True),
        (200, "application/json", False),
        (400, "text/event-stream", False),
        (503, "text/event-stream", False),
    ],
)
def test_an_error_is_no_stream_whatever_its_type(status: int, kind: str, is_stream: bool) -> None:
    connection = SimpleNamespace(status=status, headers={"content-type": kind})
    assert UpstreamResponse(connection, b"").is_stream is is_stream  # type: ignore[arg-type]
