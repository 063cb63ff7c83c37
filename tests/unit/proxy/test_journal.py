"""The last requests of a replica, found by their id."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import INVALID_SPAN, NonRecordingSpan, SpanContext

from serve.errors import ModelNotFoundError
from serve.proxy.exchange import Exchange
from serve.proxy.journal import CLIENT_LEFT, Journal


async def _send(_: object) -> None:
    """Sends nothing."""


def exchange(request_id: str, status: int = 200, error: str = "") -> Exchange:
    made = Exchange("/v1/chat/completions", {}, _send, request_id, INVALID_SPAN)
    made.status, made.error = status, error
    return made


@given(st.lists(st.sampled_from([200, 404, 429, CLIENT_LEFT, 502]), min_size=1, max_size=30))
def test_every_request_is_found_and_those_that_failed_are_listed_newest_first(statuses: list[int]) -> None:
    journal = Journal()
    for number, status in enumerate(statuses):
        journal.add(exchange(f"r{number}", status), "/v1/chat/completions")
    assert [found.status for n in range(len(statuses)) if (found := journal.find(f"r{n}"))] == statuses
    failed = [f"r{n}" for n, status in enumerate(statuses) if status >= 400 and status != CLIENT_LEFT]
    assert [each.request_id for each in journal.failures(100)] == failed[::-1]


def test_the_newest_of_equal_ids_is_found_and_an_unknown_one_is_not() -> None:
    journal = Journal()
    journal.add(exchange("same", 502, "engine_error"), "/v1/messages")
    journal.add(exchange("same"), "/v1/messages")
    found = journal.find("same")
    assert found is not None
    assert (found.status, found.error) == (200, "")
    assert journal.find("other") is None


@pytest.mark.parametrize("id_of_ours", ["made", "sent"])
def test_who_takes_the_id_that_another_request_was_given_does_not_hide_that_request(id_of_ours: str) -> None:
    journal, theirs = Journal(), exchange(id_of_ours, 502, "engine_error")
    theirs.attribution.engine_id = "made"
    journal.add(theirs, "/v1/messages")
    taken = exchange("made")
    taken.attribution.engine_id = "another"
    journal.add(taken, "/v1/messages")
    found = journal.find("made")
    assert found is not None
    assert found.status == 502


def test_an_engines_refusal_is_told_from_ours() -> None:
    assert Journal().add(exchange("r", 400), "/v1/completions").cause == "engine"
    assert Journal().add(exchange("r", 400, "invalid_request"), "/v1/completions").cause == "invalid_request"
    assert Journal().add(exchange("r", CLIENT_LEFT), "/v1/completions").cause == ""


def test_it_keeps_no_more_than_its_share() -> None:
    journal = Journal()
    for number in range(2500):
        made = exchange(f"r{number}", 404, "model_not_found")
        made.asked = f"name-{number}"
        journal.add(made, "/v1/chat/completions")
    assert journal.find("r0") is None
    assert journal.find("r2499") is not None
    assert len(journal.unknown_models()) == 50
    assert "name-2499" in journal.unknown_models()


async def test_the_name_that_was_asked_for_is_kept() -> None:
    made = exchange("r")
    await made.refuse(ModelNotFoundError.unknown("gpt-9" * 100, ["m"]))
    journal = Journal()
    journal.add(made, "/v1/chat/completions")
    (ended,) = journal.failures(1)
    assert (ended.status, ended.error, ended.asked) == (404, "model_not_found", ("gpt-9" * 100)[:100])
    assert ended.to_dict()["model"] == ended.asked, "for the dashboard"
    assert ended.asked not in repr(ended.log_fields()), "the log has nothing that a client wrote"


def test_a_request_that_was_not_accepted_is_no_tenants() -> None:
    ended = Journal().add(exchange("r", 401, "invalid_api_key"), "/v1/completions")
    assert (ended.key, ended.tenant) == ("", "")


def test_the_line_in_the_log_has_the_record_in_whole_milliseconds_and_a_trace_if_there_is_one() -> None:
    made = exchange("r")
    made.attribution.waited_s = 0.3104
    made.attribution.engine = "http://10.0.0.5:8000"
    fields = Journal().add(made, "/v1/completions").log_fields()
    assert (fields["request_id"], fields["status"], fields["waited_ms"], fields["faults"]) == ("r", 200, 310, [])
    assert fields["engine"] == "http://10.0.0.5:8000", "one of a pool's many may be the one that fails"
    assert "trace_id" not in fields
    made.span = NonRecordingSpan(SpanContext(0xABC, 1, is_remote=False))
    assert Journal().add(made, "/v1/completions").log_fields()["trace_id"] == f"{0xABC:032x}"
