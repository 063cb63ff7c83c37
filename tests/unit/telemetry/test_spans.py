"""Spans: whose trace they belong to, and that they tell of errors without a word of a request."""

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from serve.errors import EngineError, InvalidRequestError
from serve.telemetry.instruments import Telemetry
from serve.telemetry.spans import inject, without_trace

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CLIENT = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}


class Traced:
    """Telemetry whose spans can be looked at."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self.telemetry = Telemetry({}, self._spans)

    def named(self) -> dict[str, ReadableSpan]:
        self.telemetry.shutdown()
        return {span.name: span for span in self._spans.get_finished_spans()}


def test_a_request_is_a_server_span_with_its_steps_as_children() -> None:
    traced = Traced()
    with traced.telemetry.request("/p", {}), traced.telemetry.step("s", {"a": 1}):
        pass
    spans = traced.named()
    root, step = spans["POST /p"], spans["s"]
    assert root.kind is SpanKind.SERVER
    assert (root.attributes or {})["http.route"] == "/p"
    assert step.parent is not None
    assert step.parent.span_id == root.context.span_id
    assert dict(step.attributes or {}) == {"a": 1}


def test_a_trusted_clients_trace_goes_on_to_the_engine_with_its_state() -> None:
    traced, sent = Traced(), dict(CLIENT)
    with traced.telemetry.request("/p", CLIENT) as span:
        inject(sent)
        own = span.get_span_context().span_id
    assert sent == {"traceparent": f"00-{TRACE}-{own:016x}-01", "tracestate": "vendor=1"}
    root = traced.named()["POST /p"]
    assert f"{root.parent.span_id:016x}" == PARENT if root.parent else False
    assert not root.links


def test_any_other_clients_trace_is_only_linked_and_reaches_no_engine() -> None:
    traced, sent = Traced(), dict(CLIENT)
    with traced.telemetry.request("/p", CLIENT, continued=False):
        inject(sent)
    root = traced.named()["POST /p"]
    assert root.parent is None
    assert [f"{link.context.trace_id:032x}" for link in root.links] == [TRACE]
    assert sent.keys() == {"traceparent"}
    assert TRACE not in sent["traceparent"]
    assert without_trace({**CLIENT, "accept": "*/*"}) == {"accept": "*/*"}


def test_a_client_that_wants_no_samples_gets_none() -> None:
    traced, sent = Traced(), dict(CLIENT)
    with traced.telemetry.request("/p", {"traceparent": f"00-{TRACE}-{PARENT}-00"}):
        inject(sent)
    assert sent["traceparent"].endswith("-00")
    assert traced.named() == {}


@pytest.mark.parametrize("state", ["", "x", f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{PARENT}-01-more"])
def test_a_state_without_a_valid_parent_reaches_no_engine(state: str) -> None:
    traced, sent = Traced(), {"traceparent": state, "tracestate": "vendor=1"}
    with traced.telemetry.request("/p", dict(sent)):
        inject(sent)
    root = traced.named()["POST /p"]
    assert (root.parent, sent.keys()) == (None, {"traceparent"})
    assert f"{root.context.trace_id:032x}" in sent["traceparent"]


def test_an_error_is_told_by_its_kind_and_only_a_servers_fault_is_a_failure() -> None:
    traced = Traced()
    for name, error in (
        ("ours", EngineError("secret")),
        ("theirs", InvalidRequestError("secret")),
        ("bug", KeyError("secret")),
    ):
        with pytest.raises(type(error)), traced.telemetry.step(name):
            raise error
    spans = traced.named()
    reply = {name: ((span.attributes or {})["error.type"], span.status.status_code) for name, span in spans.items()}
    assert reply == {
        "ours": ("engine_error", StatusCode.ERROR),
        "theirs": ("invalid_request", StatusCode.UNSET),
        "bug": ("KeyError", StatusCode.ERROR),
    }
    assert "secret" not in "".join(span.to_json() for span in spans.values())


@pytest.mark.parametrize("baggage", ["no pair", "a=1,no pair", "=" * 10_000])
def test_what_a_client_puts_in_its_baggage_is_in_no_log_and_stays_as_it_is(
    baggage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """OpenTelemetry logs what it can't read of it."""
    traced = Traced()
    headers = {**CLIENT, "baggage": baggage}
    with traced.telemetry.request("/p", headers), traced.telemetry.step("s"):
        inject(headers)
    assert headers["baggage"] == baggage
    assert not caplog.records
