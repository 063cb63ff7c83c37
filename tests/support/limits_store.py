"""A Valkey or Redis server of the tests' own, on loopback."""

import asyncio
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from serve.config.rate_limits import StoreConfig
from serve.errors import SharedStateError
from serve.limits.store import SCRIPT, RedisStore

PROGRAM = shutil.which("valkey-server") or shutil.which("redis-server")
needs_server = pytest.mark.skipif(PROGRAM is None, reason="needs valkey-server or redis-server (Debian's redis-server)")
VIRTUAL = SCRIPT.replace("redis.call('TIME')", "{redis.call('GET', 'now'), 0}")  # the time is what a test says
assert VIRTUAL != SCRIPT
_START_S = 20.0


class StoreServer:
    """The server; what it knows survives `stop` and `start`, unless `persistent` is false.

    Args:
        folder: For its file.
        options: More of them, as on its command line.
    """

    def __init__(self, folder: Path, *options: str, persistent: bool = True) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = folder / "store.log"
        self.folder = folder
        self.options = [*options, "--appendonly", "yes" if persistent else "no", "--appendfsync", "always"]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def config(self) -> StoreConfig:
        return StoreConfig(url=f"redis://127.0.0.1:{self.port}")

    async def start(self, config: StoreConfig | None = None) -> None:
        assert PROGRAM is not None
        command = [PROGRAM, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder)]
        self._process = subprocess.Popen(  # noqa: ASYNC220  # it goes on beside this
            [*command, "--logfile", str(self.log), *self.options]
        )
        store = RedisStore(config or self.config)
        ends_s = time.monotonic() + _START_S
        while True:
            try:
                await store.describe()
                break
            except SharedStateError:
                assert time.monotonic() < ends_s, self.log.read_text()
                await asyncio.sleep(0.05)
        await store.close()

    def stop(self) -> None:
        """Kills it, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def signal(self, number: int) -> None:
        """Sends it a signal, such as SIGSTOP."""
        assert self._process is not None
        self._process.send_signal(number)

    async def command(self, *words: Any) -> Any:
        """Runs a command there."""
        client: Any = Redis.from_url(self.config.address)
        try:
            return await client.execute_command(*words)
        finally:
            await client.aclose()
