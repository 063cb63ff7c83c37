"""A Prometheus of a test's own, with the rules that ship, and what it answers."""

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from serve.launch.ports import free_port
from support.monitoring import MONITORING

_EVERY = "2s"
_FIRES_WITHIN_S = 120.0
_STOPS_WITHIN_S = 180.0
_UNITS_S = {"s": 1, "m": 60, "h": 3600}

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="no Prometheus here; Debian has a package of that name"
)


class Prometheus:
    """One that runs.

    Args:
        url: Its base URL.
        session: To ask it with.
    """

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session

    async def values(self, expression: str) -> list[float]:
        """Returns the value of each series; none while Prometheus starts."""
        reply = await self._get("query", query=expression)
        return [float(series["value"][1]) for series in reply.get("result", ())]

    async def firing(self) -> list[dict[str, str]]:
        """Returns the labels of each alert that fires, its name among them."""
        reply = await self._get("alerts")
        return [alert["labels"] for alert in reply.get("alerts", ()) if alert["state"] == "firing"]

    async def _get(self, path: str, **query: str) -> dict[str, Any]:
        try:
            async with self._session.get(f"{self._url}/api/v1/{path}", params=query) as response:
                reply: dict[str, Any] = json.loads(await response.read())
        except (aiohttp.ClientConnectionError, json.JSONDecodeError):
            return {}
        return reply["data"]


@asynccontextmanager
async def prometheus(
    folder: Path, targets: Sequence[Mapping[str, Any]], minute_s: float = 60.0
) -> AsyncIterator[Prometheus]:
    """Runs Prometheus, which scrapes and evaluates every two seconds.

    Args:
        folder: For its files.
        targets: As `static_configs` has them.
        minute_s: How long a minute of the rules lasts: windows and the time before an alert fires.
    """
    shipped = yaml.safe_load((MONITORING / "rules.yaml").read_text(encoding="utf-8"))
    rules = {"groups": [{**group, "interval": _EVERY} for group in paced(shipped, minute_s)["groups"]]}
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    config = {
        "global": {"scrape_interval": _EVERY},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "specgate", "static_configs": targets}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    process = await asyncio.create_subprocess_exec(
        "prometheus", f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}", "--log.level=error",
    )  # fmt: skip
    try:
        async with aiohttp.ClientSession() as session:
            yield Prometheus(f"http://{address}", session)
    finally:
        process.terminate()
        await process.wait()


def paced(value: Any, minute_s: float) -> Any:
    """Returns rules whose durations are shorter by as much as the minute; thresholds stay, those in seconds too."""
    if isinstance(value, dict):
        return {key: _shorter(each, minute_s) if key == "for" else paced(each, minute_s) for key, each in value.items()}
    if isinstance(value, list):
        return [paced(each, minute_s) for each in value]
    if isinstance(value, str):
        return re.sub(r"(?<=\[)\w+(?=\])|(?<=offset )\w+", lambda found: _shorter(found[0], minute_s), value)
    return value


def _shorter(duration: str, minute_s: float) -> str:
    seconds = int(duration[:-1]) * _UNITS_S[duration[-1]]
    return f"{round(seconds * minute_s / 60 * 1000)}ms"


async def until_fired(asked: Prometheus, expected: Iterable[tuple[str, Mapping[str, str]]]) -> None:
    """Waits until each alert has fired, although not all at the same time; none may name the model `sound`.

    Args:
        asked: Where.
        expected: By name, labels that it must have.
    """
    missing = list(expected)

    async def all_have() -> bool:
        firing = await asked.firing()
        assert not [alert for alert in firing if alert.get("model") == "sound"]
        for each in list(missing):
            name, labels = each
            if any(alert["alertname"] == name and labels.items() <= alert.items() for alert in firing):
                missing.remove(each)
        return not missing

    await until(all_have, lambda: f"never fired: {missing}", _FIRES_WITHIN_S)


async def until_silent(asked: Prometheus) -> None:
    """Waits until no alert fires in what was scraped."""
    firing: list[dict[str, str]] = []

    async def none_does() -> bool:
        firing[:] = await asked.firing()
        return not firing and bool(await asked.values("up == 1"))

    await until(none_does, lambda: f"still fires: {firing}", _STOPS_WITHIN_S)


async def until(holds: Callable[[], Awaitable[bool]], otherwise: Callable[[], str], timeout_s: float) -> None:
    """Waits until a coroutine function returns True.

    Args:
        holds: The function.
        otherwise: Says what is wrong if it never does.
        timeout_s: The longest wait.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while not await holds():  # noqa: ASYNC110 - nobody tells us
                await asyncio.sleep(0.25)
    except TimeoutError:
        raise AssertionError(otherwise()) from None
