"""Lines about requests: which have one, and how many warnings there are where none has."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from logging.handlers import MemoryHandler
from typing import Any

import pytest
from ray._common.formatters import JSONFormatter
from ray.serve._private.logging_utils import ServeFormatter

from serve.config.telemetry import TelemetryConfig
from serve.telemetry import request_log
from serve.telemetry.request_log import RequestLog, keep_writing, log_error, log_fault

FIELDS: dict[str, Any] = {
    "request_id": "r1", "path": "/v1/chat/completions", "status": 200, "duration_ms": 12, "model": "m", "pool": "fast",
    "faults": [],
}  # fmt: skip


class Minutes:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self._due: list[Callable[[], None]] = []

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        assert delay_s == 60
        self._due.append(call)

    def minute_over(self) -> None:
        due, self._due = self._due, []
        for call in due:
            call()


def made(share: float | None, draw: float = 0.5, warnings: int = 2) -> tuple[RequestLog, Minutes]:
    minutes = Minutes()
    config = TelemetryConfig(log_requests=share, warnings_per_minute=warnings)
    return RequestLog(config, lambda: draw, minutes.later), minutes


@pytest.mark.parametrize(
    ("share", "status", "faults", "wanted"),
    [
        (0.0, 200, [], False),
        (0.0, 404, [], False),
        (0.0, 502, [], True),
        (0.0, 200, ["fast: truncated"], True),
        (0.49, 200, [], False),
        (0.51, 200, [], True),
        (1.0, 401, [], True),
    ],
)
def test_a_share_of_the_requests_has_a_line_and_whatever_failed_or_was_rerun(
    share: float, status: int, faults: list[str], wanted: bool
) -> None:
    assert made(share)[0].wants(status, faults) is wanted


def test_a_line_has_its_fields_and_a_message_for_people(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log, _ = made(1.0)
    log.ended(FIELDS)
    log.ended({**FIELDS, "faults": ["fast: truncated"]})
    log.ended({**FIELDS, "status": 404, "model": "", "pool": ""})
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "POST /v1/chat/completions 200 in 12 ms, m/fast"),
        ("WARNING", "POST /v1/chat/completions 200 in 12 ms, m/fast, fast: truncated"),
        ("INFO", "POST /v1/chat/completions 404 in 12 ms, no model"),
    ]
    assert FIELDS.items() <= vars(caplog.records[0]).items()


def test_ray_serve_writes_the_id_in_text_and_every_field_as_json(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    made(1.0)[0].ended(FIELDS)
    (record,) = caplog.records
    reply = "POST /v1/chat/completions 200 in 12 ms, m/fast"
    assert ServeFormatter("specgate_Gateway", "replica").format(record).endswith(f" r1 -- {reply}")
    assert {**FIELDS, "message": reply}.items() <= json.loads(JSONFormatter().format(record)).items()


def test_warnings_of_one_pool_and_kind_are_limited_and_the_rest_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    log, minutes = made(None)
    for number in range(5):
        log.add_fault([], f"r{number}", ("m", "fast"), "truncated", "in choice 0")
    log.add_fault([], "r9", ("m", "safe"), "truncated", "in choice 0")
    assert [vars(record)["request_id"] for record in caplog.records] == ["r0", "r1", "r9"]
    caplog.clear()
    minutes.minute_over()
    assert [(record.getMessage(), vars(record)["suppressed"]) for record in caplog.records] == [
        ("m/fast: truncated: 3 more warnings within a minute", 3)
    ]
    caplog.clear()
    log.add_fault([], "r10", ("m", "fast"), "truncated", "in choice 0")
    minutes.minute_over()
    assert len(caplog.records) == 1, "a new minute has warnings of its own, and nothing was left out"


def test_at_the_end_what_was_left_out_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    log, minutes = made(None, warnings=1)
    for _ in range(3):
        log.add_fault([], "r", ("m", "fast"), "truncated", "")
    caplog.clear()
    log.close()
    minutes.minute_over()
    assert [vars(record)["suppressed"] for record in caplog.records] == [2]


def test_where_requests_have_lines_their_faults_are_in_these_alone(caplog: pytest.LogCaptureFixture) -> None:
    log, _ = made(0.0)
    faults: list[str] = []
    log.add_fault(faults, "r", ("m", "fast"), "truncated", "in choice 0")
    assert faults == ["fast: truncated"]
    assert not caplog.records


@pytest.mark.parametrize(("share", "lines"), [(None, 1), (0.0, 0)])
def test_a_warning_alone_gives_a_request_no_line_and_is_silent_where_requests_have_lines(
    share: float | None, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    log, _ = made(share)
    log.warn("r", ("m", "fast, safe"), "overloaded", "No slot within 15 s.")
    assert [record.getMessage() for record in caplog.records] == ["m/fast, safe: No slot within 15 s."] * lines


def test_a_fault_of_our_own_says_where_and_what_but_not_its_text(caplog: pytest.LogCaptureFixture) -> None:
    said = "secret"
    try:
        raise KeyError(said)
    except KeyError:
        log_fault(logging.getLogger("t"), "the guard failed", "r1")
    (record,) = caplog.records
    assert record.getMessage().startswith("the guard failed: KeyError\n")
    assert "test_request_log.py" in record.getMessage()
    assert vars(record)["request_id"] == "r1"
    assert "raise KeyError(said)" in record.getMessage(), "the source line, which is ours"
    assert record.exc_info is None
    assert "secret" not in caplog.text


def test_an_error_that_others_led_to_is_logged_without_their_text_too(caplog: pytest.LogCaptureFixture) -> None:
    said = "secret"
    try:
        try:
            raise ValueError(said)
        except ValueError as error:
            raise RuntimeError(said) from error
    except RuntimeError as error:
        failed = error
    log_error(logging.getLogger("t"), "a task failed", failed)
    assert "a task failed: RuntimeError\n" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("kind", [asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_a_request_from_outside_is_no_fault(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def handle() -> None:
        try:
            raise kind
        except BaseException:  # noqa: BLE001
            log_fault(logging.getLogger("t"), "the guard failed")
            pytest.fail("the handler went on")

    with pytest.raises(kind):
        handle()
    assert not caplog.records


class Written(logging.Handler):
    """Tells when a line has arrived."""

    def __init__(self) -> None:
        super().__init__()
        self.line = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.line.set()


@pytest.fixture
def buffered() -> Iterator[tuple[logging.Logger, Written]]:
    """Ray Serve's logger as a replica has it: lines are kept back."""
    written = Written()
    logger, handler = logging.getLogger("ray.serve"), MemoryHandler(1000, logging.ERROR, written)
    logger.addHandler(handler)
    yield logger, written
    logger.removeHandler(handler)


async def test_lines_that_ray_serve_keeps_back_are_written_all_the_same(
    buffered: tuple[logging.Logger, Written], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger, written = buffered
    monkeypatch.setattr(request_log, "_WRITTEN_EVERY_S", 0.01)
    logger.warning("kept back")
    assert not written.line.is_set()
    writing = asyncio.create_task(keep_writing())
    async with asyncio.timeout(10):
        await written.line.wait()
    written.line.clear()
    logger.warning("later")
    async with asyncio.timeout(10):
        await written.line.wait()
    writing.cancel()
    with suppress(asyncio.CancelledError):
        await writing
