"""Shared by all tests."""

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import openai
import pytest
import pytest_asyncio
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))  # for `support`, which importlib mode does not put on the path

from support.clock import LoopClock
from support.session import Served, served

# Timing decides no test: a busy machine is no failure.
settings.register_profile("specgate", deadline=None)
settings.load_profile("specgate")


@pytest.fixture(autouse=True, scope="session")
def _no_cpu_time_passes() -> Iterator[None]:
    """Whether a schema is judged depends on the bound of its work alone, not on what a busy machine measured before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("serve.guard.core.schema_cost.thread_time", lambda: 0.0)
        yield


@pytest_asyncio.fixture(loop_scope="function")
async def clock() -> LoopClock:
    """The clock of the test's own event loop; the test is marked with `asyncio(loop_scope="function")`."""
    return LoopClock()


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One gateway for the session, started as a user starts it: the laptop's real engines, and simulated ones."""
    with served(tmp_path_factory.mktemp("serve")) as urls:
        yield urls


@pytest.fixture
def gateway_url(gateway: Served) -> str:
    """The data port of the session's gateway."""
    return gateway.data


@pytest.fixture
def door_url(gateway: Served) -> str:
    """The admin API of the session's gateway."""
    return gateway.admin_api


@pytest.fixture
async def client(gateway_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    """The real OpenAI client against the session's gateway."""
    async with openai.AsyncOpenAI(base_url=f"{gateway_url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client
