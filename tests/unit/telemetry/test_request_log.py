"""Lines about requests: which have one, and how many warnings there are where none has."""

import ast
import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

import pytest
from ray._common.formatters import JSONFormatter
from ray.serve._private.logging_utils import ServeFormatter

from serve.config.gateway import TelemetryConfig
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


ROOT = Path(__file__).parents[3]
# What runs beside requests and gets none of their words: an exception's text may help there.
BESIDE = {"serve/gateway/parts.py", "serve/gateway/engine_watch.py"}
FOLDERS = ["dialects", "guard", "http1", "parsing", "proxy", "request", "routing", "shadow", "stream", "tokenizer"]
PATH = {"serve/gateway/endpoints.py", "serve/gateway/pipeline.py"}
# They tell errors that hold our own words alone: that no engine is free or answers; Ray's of a replica that is gone.
OWN_WORDS = {"serve/proxy/attempts.py", "serve/routing/request_routers.py"}
TELLING = {"debug", "info", "warning", "error", "critical", "log", "warn", "add_fault", "_add_fault", "log_fault"}


def logs_text(tree: ast.AST) -> bool:
    """Returns whether a module logs an exception with its text, as the standard library does."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any(
        any(keyword.arg == "exc_info" for keyword in call.keywords)
        or (isinstance(call.func, ast.Attribute) and call.func.attr == "exception" and bool(call.args))
        for call in calls
    )


def tells_caught(tree: ast.AST) -> bool:
    """Returns whether a module logs what it has caught, or the message of any error, in a text of its own."""
    caught = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)} - {None}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if getattr(call.func, "attr", getattr(call.func, "id", "")) not in TELLING:
            continue
        said = [node for argument in call.args for node in ast.walk(argument)]
        attributes = [node for node in said if isinstance(node, ast.Attribute)]
        coded = {id(node.value) for node in attributes if node.attr in ("code", "status")}
        if any(node.attr == "message" for node in attributes):
            return True
        if any(isinstance(node, ast.Name) and node.id in caught and id(node) not in coded for node in said):
            return True
    return False


def modules() -> dict[str, ast.Module]:
    paths = [*(ROOT / "serve").rglob("*.py")]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def test_what_serves_requests_logs_exceptions_by_one_helper_which_leaves_out_their_text() -> None:
    assert {name for name, tree in modules().items() if logs_text(tree)} == BESIDE


def test_what_serves_requests_tells_no_message_of_an_error() -> None:
    on_the_path = {name: tree for name, tree in modules().items() if name in PATH or name.split("/")[1] in FOLDERS}
    assert on_the_path.keys() >= PATH | OWN_WORDS
    assert {name for name, tree in on_the_path.items() if tells_caught(tree)} == OWN_WORDS


@pytest.mark.parametrize("call", ['log.exception("failed")', 'log.error("failed", exc_info=True)'])
def test_a_call_that_logs_an_exceptions_text_is_seen(call: str) -> None:
    assert logs_text(ast.parse(call))


@pytest.mark.parametrize("said", ["error", "str(error)", "error.message", "failure.message", 'f"no: {error!r}"'])
def test_a_call_that_tells_an_error_is_seen(said: str) -> None:
    for call in (f'log.info("failed: %s", {said})', f'self._add_fault("failed", {said})', f"log_fault(log, {said})"):
        assert tells_caught(ast.parse(f"try:\n    work()\nexcept Exception as error:\n    {call}"))
    assert not tells_caught(ast.parse('try:\n    work()\nexcept OSError as error:\n    log.info("%s", error.code)'))


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
