"""Shared by all tests: Ray's flags are read when Ray is imported, so they are set before any test module is."""

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `support`, which importlib mode does not put on the path

from serve.local import cluster, free_port, prepare_environment

prepare_environment()


@pytest.fixture(scope="session")
def gateway_url() -> Iterator[str]:
    """One Ray cluster for the session: the laptop's real engines, and simulated ones to be maltreated."""
    from support.session import session_config

    with cluster(session_config(), free_port(), lambda line: print(line, flush=True)) as url:
        yield url


@pytest.fixture
async def client(gateway_url: str) -> AsyncIterator[object]:
    """The real OpenAI client against the session's gateway."""
    import openai

    async with openai.AsyncOpenAI(base_url=f"{gateway_url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client
