"""What a client makes of the bytes that came."""

import pytest

from lab.conform.client import Reply

DONE = b"data: [DONE]\n\n"
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n'


def reply(body: bytes, status: int = 200, complete: bool = True) -> Reply:
    return Reply(status, (("content-type", "x"), ("retry-after", "7")), body, complete, "", 0.0)


@pytest.mark.parametrize("cr", [b"", b"\r"])
def test_text_is_put_together_from_the_chunks_whatever_the_line_ends(cr: bytes) -> None:
    body = (b": ping\n\n" + CHUNK % b"a" + CHUNK % b"b" + DONE).replace(b"\n", cr + b"\n")
    assert reply(body).text == "ab"
    assert reply(body).done


def test_a_whole_answer_has_its_text_in_the_message() -> None:
    assert reply(b'{"choices":[{"message":{"content":"a"}}]}').text == "a"


@pytest.mark.parametrize(
    "failed",
    [
        reply(b"", 503),
        reply(CHUNK % b"a", complete=False),
        reply(CHUNK % b"a" + b'data: {"error":{"message":"died"}}\n\n'),
        reply(b'{"error":{"message":"died"}}'),
        Reply(0, (), b"", False, "refused", 0.0),
    ],
)
def test_every_sign_of_an_error_is_seen(failed: Reply) -> None:
    assert failed.failed


def test_a_whole_stream_is_no_failure() -> None:
    assert not reply(CHUNK % b"a" + DONE).failed
    assert not reply(b'{"choices":[],"error":null}').failed


def test_events_have_names_and_objects() -> None:
    body = b'event: ping\ndata: {"type":\ndata: "ping"}\n\n: comment\n\ndata:7\n\n' + DONE
    assert reply(body).events() == [("ping", {"type": "ping"}), ("", None)]


def test_headers_are_found_by_name() -> None:
    assert reply(b"").header("retry-after") == "7"
    assert reply(b"").header("x") is None


def test_a_reply_tells_itself_in_few_words() -> None:
    assert reply(b'{"error":{"message":"busy"}}', 429).summary() == "HTTP 429, error 'busy'"
    assert reply(b"x", complete=False).summary() == "HTTP 200, then the connection broke"
    assert Reply(0, (), b"", False, "refused", 0.0).summary() == "no answer: refused"
