"""vLLM runs an engine in a process of its own: the replica that started it ends with it, and it with the replica."""

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from support.local import LocalGateway, local_gateway, until

from serve.config.gateway import GatewayConfig
from serve.launch import ports

pytestmark = pytest.mark.engine
LAPTOP = Path(__file__).parents[2] / "deploy" / "laptop.yaml"


def settings() -> dict[str, Any]:
    """The laptop's tiny-qwen with its standard pool alone, of two replicas."""
    qwen: dict[str, Any] = GatewayConfig.load(LAPTOP).models["tiny-qwen"].model_dump(mode="json")
    return {**qwen, "pools": {"standard": {**qwen["pools"]["standard"], "replicas": 2}}}


def replicas(gateway: LocalGateway) -> list[psutil.Process]:
    return [each for each in gateway.processes() if "ServeReplica:specgate:tiny-qwen" in " ".join(each.cmdline())]


def engines(gateway: LocalGateway) -> list[psutil.Process]:
    return [each for each in gateway.processes() if "EngineCore" in each.name() and runs(each)]


async def ask_many(gateway: LocalGateway, clients: int, each: int) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0) as client:

        async def ask() -> None:
            for _ in range(each):
                await client.chat.completions.create(
                    model="tiny-qwen", messages=[{"role": "user", "content": "hi"}], max_tokens=4
                )

        await asyncio.gather(*(ask() for _ in range(clients)))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGateway]:
    folder = tmp_path_factory.mktemp("engines")
    with local_gateway(folder, "tiny-qwen", ports.free_port(), settings=settings()) as gateway:
        gateway.until_ready()
        until(lambda: len(engines(gateway)) == 2, lambda: "one engine did not start")
        yield gateway


async def test_no_request_fails_while_one_of_two_engines_is_dead_and_its_replica_is_replaced(
    gateway: LocalGateway,
) -> None:
    before = replicas(gateway)
    await ask_many(gateway, clients=4, each=10)
    engines(gateway)[0].kill()
    await ask_many(gateway, clients=4, each=60)  # a dead engine fails them in no time, for as long as it is asked
    await asyncio.to_thread(until, lambda: len(engines(gateway)) == 2, lambda: "no engine was started in its place")
    assert len({*replicas(gateway)} & {*before}) == 1


def test_an_engine_dies_with_a_replica_that_is_killed_and_leaves_nothing_behind(gateway: LocalGateway) -> None:
    killed = replicas(gateway)[0]
    engine = [each for each in killed.children(recursive=True) if "EngineCore" in each.name()]
    assert engine
    folder = Path(gateway.environment()["RAY_AUTH_TOKEN_PATH"]).parent
    assert [each for each in folder.iterdir() if each.is_socket() and len(each.name) == len(str(uuid.uuid4()))]
    killed.kill()
    until(lambda: not any(map(runs, engine)), lambda: f"still there: {engine}")
    gateway.process.terminate()
    gateway.until_gone()
    assert not folder.exists(), "the sockets that a killed engine leaves behind"


def runs(process: psutil.Process) -> bool:
    """A zombie, which nobody has reaped yet, does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
