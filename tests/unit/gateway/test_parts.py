"""Each optional feature is on as configured, or off as a null object that can stand in for it."""

import asyncio
import inspect
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clock import settle

from policies import Policy
from serve.access.live import LiveAccess, OpenAccess
from serve.access.principal import ANONYMOUS
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig
from serve.errors import ConfigError, InvalidApiKeyError
from serve.gateway.parts import (
    OFF,
    Part,
    access_of,
    announcements,
    limits_of,
    load_of,
    quarantine_of,
    running,
    shared_load,
    transcripts_of,
)
from serve.guard.transcript import NullTranscript, NullTranscripts, Transcript, Transcripts
from serve.limits.accounts import Accounts, NullAccounts
from serve.limits.answer_meter import Meter, NullMeter
from serve.limits.charge import Charge, NullCharge
from serve.load.live_load import LiveLoad, NullLoad, NullSent, Sent
from serve.telemetry.metrics import Metrics

POOL = {"kind": "remote", "url": "http://192.0.2.1:8000"}
MODEL = {"family": "qwen3", "grammar": "hermes", "pools": {"p": POOL}}
NULLS = [
    (NullAccounts, Accounts), (NullCharge, Charge), (NullMeter, Meter), (NullLoad, LiveLoad), (NullSent, Sent),
    (NullTranscript, Transcript), (NullTranscripts, Transcripts), (OpenAccess, LiveAccess),
]  # fmt: skip


def configured(**settings: Any) -> tuple[GatewayConfig, Policy]:
    config = GatewayConfig.parse({"models": {"m": MODEL}, **settings})
    return config, compile_for(config)


def shown(metrics: Metrics) -> set[str]:
    return {metric.name for metric in metrics.declared}


def paths(routes: Any) -> set[str]:
    return {route.path for route in routes.routes}


def methods(kind: type) -> Iterator[tuple[str, list[str]]]:
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_"):
            yield name, list(inspect.signature(method).parameters)


@pytest.mark.parametrize(("null", "live"), NULLS)
def test_a_null_object_takes_what_the_live_one_takes(null: type, live: type) -> None:
    there = dict(methods(live))
    for name, parameters in methods(null):
        assert parameters == there[name], name


def test_without_quarantine_the_policy_decides_as_it_is() -> None:
    metrics = Metrics()
    config, policy = configured(quarantine={"enabled": False})
    quarantine = quarantine_of(config, policy, metrics)
    assert quarantine.live.policy is policy
    assert (list(quarantine.cells()), list(quarantine.changes()), quarantine.part) == ([], [], OFF)
    assert not shown(metrics)


def test_quarantine_shows_its_cells_and_takes_orders() -> None:
    metrics = Metrics()
    quarantine = quarantine_of(*configured(quarantine={"enabled": True}), metrics)
    assert paths(quarantine.part.routes) == {"/admin/v1/quarantine"}
    assert shown(metrics) == {"specgate_detector_age_seconds"}


def test_without_load_nothing_is_counted_and_it_can_not_be_switched_on() -> None:
    metrics = Metrics()
    load = load_of(*configured(), 1, metrics)
    assert not load.learns
    assert not shown(metrics)
    load.switch("off")
    with pytest.raises(ConfigError, match="only at the start"):
        load.switch("observe")


@pytest.mark.parametrize(("mode", "routes"), [("observe", False), ("route", True)])
def test_load_orders_candidates_only_where_it_is_to_route(mode: str, routes: bool) -> None:
    metrics = Metrics()
    load = load_of(*configured(policy={"load": mode}), 1, metrics)
    assert isinstance(load, LiveLoad)
    assert load.routes is routes
    assert "specgate_load_requests" in shown(metrics)
    load.switch("off")
    assert not load.routes


@pytest.mark.parametrize(
    ("settings", "shares"),
    [
        ({}, False),
        ({"policy": {"load": "observe"}}, True),
        ({"limits": {"reserved_slots": {"interactive": 0.5}}}, True),
    ],
)
def test_replicas_share_figures_only_where_there_are_some(settings: dict[str, Any], shares: bool) -> None:
    config, policy = configured(**settings)
    part = shared_load(config, load_of(config, policy, 1, Metrics()), {})
    assert (part is not OFF) is shares


def test_without_limits_nobody_has_a_standing_or_a_route_of_usage() -> None:
    metrics = Metrics()
    accounts, part = limits_of(configured()[0], 1, metrics)
    assert list(accounts.standings()) == []
    assert part is OFF
    assert not shown(metrics)


def test_limits_count_usage_and_show_it() -> None:
    metrics = Metrics()
    accounts, part = limits_of(configured(rate_limits={"enabled": True})[0], 1, metrics)
    assert isinstance(accounts, Accounts)
    assert paths(part.routes) == {"/admin/v1/usage"}
    assert "specgate_limits_used_total" in shown(metrics)


async def test_without_access_control_everybody_may_ask() -> None:
    access, part = access_of(configured()[0], None, Metrics())
    assert access.authenticate({}) is ANONYMOUS
    await access.refresh()
    await part.close()


async def test_with_access_control_nobody_may_ask_without_a_key(tmp_path: Path) -> None:
    config, _ = configured(access={"mode": "required", "state_dir": str(tmp_path)})
    access, part = access_of(config, None, Metrics())
    await access.refresh()
    with pytest.raises(InvalidApiKeyError):
        access.authenticate({})
    await part.close()


@pytest.mark.parametrize("keeps", [True, False])
def test_texts_are_kept_only_where_an_operator_asks(keeps: bool) -> None:
    transcripts = transcripts_of(configured(admin={"rerun_content": keeps})[0])
    transcript = transcripts.begin("r1", "e1")
    transcript.attempt().whole(b"broken")
    transcript.attempt().whole(b"good")
    transcript.client.whole(b"good")
    assert isinstance(transcripts, Transcripts if keeps else NullTranscripts)
    assert transcripts.get("r1") is None, "it has not ended"


def test_outside_ray_nothing_is_announced() -> None:
    def app() -> Any:
        raise AssertionError("nobody asks for it")

    assert announcements(None, app) is OFF


def test_where_nobody_pays_one_answer_in_eight_is_measured_and_the_first_is_one_of_them() -> None:
    charge = NullCharge()
    measured = [isinstance(charge.attempt("p", True), Meter) for _ in range(17)]
    assert [number for number, each in enumerate(measured) if each] == [0, 8, 16]


class Feature:
    """A feature that notes what is done with it.

    Args:
        name: In the notes.
        notes: Of all features.
        fails: `run` and `close` raise.
    """

    def __init__(self, name: str, notes: list[str], *, fails: bool = False) -> None:
        self.part = Part(run=self.run, close=self.close)
        self._name, self._notes, self._fails = name, notes, fails

    async def run(self) -> None:
        self._notes.append(f"{self._name} runs")
        if self._fails:
            raise ValueError(f"{self._name} is broken")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # the end of a report
            self._notes.append(f"{self._name} has ended")

    async def close(self) -> None:
        self._notes.append(f"{self._name} is closed")
        if self._fails:
            raise ValueError(f"{self._name} does not close")


async def test_all_parts_run_and_are_closed_the_last_one_first_once_none_runs() -> None:
    notes: list[str] = []
    async with running([Feature("a", notes).part, OFF, Feature("b", notes).part]):
        await asyncio.sleep(0)
        assert notes == ["a runs", "b runs"]
    assert notes[2:] == ["a has ended", "b has ended", "b is closed", "a is closed"]


async def test_a_part_that_fails_is_logged_and_keeps_no_other_from_running_and_closing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    notes: list[str] = []
    parts = [Feature("a", notes).part, Feature("b", notes, fails=True).part, Feature("c", notes).part]

    async def serve() -> None:
        async with running(parts):
            await settle()
            assert notes == ["a runs", "b runs", "c runs"]

    with caplog.at_level(logging.ERROR), pytest.raises(ValueError, match="b does not close"):
        await serve()
    assert notes[-3:] == ["c is closed", "b is closed", "a is closed"]
    assert "a background task of this replica has ended" in caplog.text


async def test_a_part_that_fails_begins_again_ever_later_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.gateway.parts.AGAIN_S", 0.001)
    begun, works, failed = 0, asyncio.Event(), []

    async def run() -> None:
        nonlocal begun
        begun += 1
        if begun <= 5:
            raise ExceptionGroup("several", [ValueError("broken")])
        works.set()
        await asyncio.Event().wait()

    async with running([Part("load", run=run), OFF], failed.append):
        await asyncio.wait_for(works.wait(), 10)
    assert failed == ["load"] * 5


async def test_parts_are_closed_when_serving_fails() -> None:
    notes: list[str] = []

    async def serve() -> None:
        async with running([Feature("a", notes).part]):
            await settle()
            raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        await serve()
    assert notes[-1] == "a is closed"


async def test_a_part_that_does_not_end_holds_up_no_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.gateway.parts.STOP_S", 0.01)
    released, closed = asyncio.Event(), []

    async def run() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await released.wait()

    async def close() -> None:
        closed.append(True)

    async with running([Part(run=run, close=close)]):
        await asyncio.sleep(0)
    assert closed
    released.set()


async def test_a_part_that_is_off_has_no_routes_and_nothing_to_do() -> None:
    assert not OFF.routes.routes
    await OFF.run()
    await OFF.close()
