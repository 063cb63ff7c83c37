"""vLLM runs an engine in a process of its own, which must not outlive the replica that started it."""

import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.local import LocalGateway, local_gateway, until

from serve.config.gateway import GatewayConfig
from serve.launch import ports

pytestmark = pytest.mark.engine
LAPTOP = Path(__file__).parents[2] / "deploy" / "laptop.yaml"


def settings() -> dict[str, Any]:
    """The laptop's tiny-qwen with its standard pool alone."""
    qwen: dict[str, Any] = GatewayConfig.load(LAPTOP).models["tiny-qwen"].model_dump(mode="json")
    return {**qwen, "pools": {"standard": qwen["pools"]["standard"]}}


def replica(gateway: LocalGateway) -> psutil.Process:
    (found,) = [each for each in gateway.processes() if "ServeReplica:specgate:tiny-qwen" in " ".join(each.cmdline())]
    return found


def test_an_engine_dies_with_a_replica_that_is_killed_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with local_gateway(tmp_path, "tiny-qwen", ports.free_port(), settings=settings()) as gateway:
        gateway.until_ready()
        killed = replica(gateway)
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
