"""What people reported of tool calls, ids and schemas that broke their clients, as the gateway's clients meet it."""

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.engines import Engine
from support.field import (
    APIS,
    PATHS,
    Api,
    FieldCase,
    Form,
    body_of,
    faults,
    field_cases,
    field_config,
    scripted,
    turn_of,
)
from support.field_files import FieldFile, field_files, file_engine, is_served
from support.stack import running

from lab.conform.client import Reply, send
from serve.guard.attempt_result import AttemptResult

# Cases that people keep beside the project, in a format of their own.
BESIDE = Path(__file__).parents[3] / "shared" / "field_cases"
HEADERS = {"content-type": "application/json", "anthropic-version": "2023-06-01"}


class Lab:
    """A gateway with one scripted engine behind every pool.

    Attributes:
        engine: The engine.
        noted: What the guard found in the first answer to the last request.
    """

    def __init__(self, url: str, engine: Engine, script: list[Mapping[str, Any]], results: list[AttemptResult]) -> None:
        self.engine = engine
        self._url = url
        self._script = script
        self._results = results

    async def ask(self, path: str, body: Any, answers: Sequence[Mapping[str, Any]], **headers: str) -> Reply:
        """Sends a request that engines answer so."""
        self._script[:] = answers
        self.engine.requests.clear()
        self._results.clear()
        async with aiohttp.ClientSession() as session:
            data = json.dumps(body).encode()
            return await send(session, "POST", self._url + path, data, HEADERS | headers, timeout_s=30)

    @property
    def noted(self) -> list[str]:
        return [str(defect.outcome) for defect in self._results[0].verdict.defects] if self._results else []


@asynccontextmanager
async def running_lab(make: Callable[[], tuple[Engine, list[Mapping[str, Any]]]]) -> AsyncIterator[Lab]:
    engine, script = make()
    results: list[AttemptResult] = []
    config = field_config()
    pools = {(model, pool): engine for model in config["models"] for pool in ("speculative", "standard")}
    async with running(config, pools, sink=results.append) as stack:
        yield Lab(stack.url, engine, script, results)


@pytest.fixture(scope="module")
async def lab() -> AsyncIterator[Lab]:
    async with running_lab(scripted) as lab:
        yield lab


@pytest.fixture(scope="module")
async def lab_of_files() -> AsyncIterator[Lab]:
    async with running_lab(file_engine) as lab:
        yield lab


RUNS = [pytest.param(case, *run, id="-".join((case.id, *run))) for case in field_cases() for run in case.runs()]


@pytest.mark.parametrize(("case", "api", "form"), RUNS)
async def test_what_broke_others_is_served_or_named(lab: Lab, case: FieldCase, api: Api, form: Form) -> None:
    reply = await lab.ask(PATHS[api], body_of(case, api, form), case.upstream)
    assert faults(case, reply, turn_of(api, reply), lab.engine, lab.noted) == [], case.source


FILES = field_files(BESIDE)


@pytest.mark.skipif(not FILES, reason=f"no cases in {BESIDE.name} beside the project")
@pytest.mark.parametrize("case", FILES, ids=lambda case: f"{case.name}-{case.grammar}")
async def test_cases_beside_the_project_are_served(lab_of_files: Lab, case: FieldFile) -> None:
    body = {**case.body, "model": case.grammar} if isinstance(case.body, dict) else case.body
    reply = await lab_of_files.ask(case.path, body, case.upstream, **case.headers)
    api = next((api for api in APIS if case.path.startswith(PATHS[api])), "chat")
    turn = turn_of(api, reply)
    assert is_served(case, turn) == case.served, f"{turn.summary()}; expected: {case.expected}"
