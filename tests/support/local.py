"""`specgate serve` with one model, simulated unless a test says otherwise, which a test may stop in any way."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml

from support.marked import MARK, environment_of, marked

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300


class LocalGateway:
    """A gateway with one simulated model, whose streams take about three seconds.

    Attributes:
        url: Its base URL.
        process: What was started: `specgate serve`, or the shell around it.
    """

    def __init__(
        self,
        folder: Path,
        model: str,
        port: int,
        *,
        shell: bool = False,
        terminal: int | None = None,
        settings: Mapping[str, Any] | None = None,
        policy: Mapping[str, Any] | None = None,
        further: Mapping[str, Any] | None = None,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        """Starts it in a session of its own.

        Args:
            folder: For its configuration and its log.
            model: Name of its only model.
            port: Where it listens.
            shell: Start it from a shell that stays its parent, and ask it to stop with that.
            terminal: Descriptor of a terminal, which becomes the session's.
            settings: The model's settings, in place of those of a simulated one.
            policy: The settings of the policy.
            further: The rest of the configuration.
            options: Further options of `specgate serve`.
            environment: Further variables.
            python: The interpreter, by the path that it is to know itself by.
        """
        self.url, self._mark, self._log = f"http://127.0.0.1:{port}", uuid.uuid4().hex, folder / f"{model}.log"
        config = folder / f"{model}.yaml"
        document = {"models": {model: settings or SIMULATED}, "policy": policy or {}, **(further or {})}
        config.write_text(yaml.safe_dump(document, allow_unicode=True))
        command = [python, "-m", "serve.cli", "serve", "--config", str(config), "--port", str(port), *options]
        if shell:
            command = ["sh", "-c", '"$@" --stop-with-parent; exit $?', "sh", *command]
        if terminal is not None:
            command = [sys.executable, "-c", _WITH_TERMINAL, os.ttyname(terminal), *command]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **(environment or {}), MARK: self._mark}, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=terminal or log, stderr=subprocess.STDOUT if terminal is None else log,
            )  # fmt: skip

    def processes(self) -> list[psutil.Process]:
        """All processes of this gateway, whoever their parent is now."""
        return marked(self._mark)

    def environment(self) -> dict[str, str]:
        """The environment that its replicas have."""
        return next(env for env in map(environment_of, self.processes()) if env.get("RAY_AUTH_TOKEN_PATH"))

    def listeners(self) -> set[tuple[str, int]]:
        """Addresses and ports on which its processes listen."""
        return {
            (connection.laddr.ip, connection.laddr.port)
            for process in self.processes()
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }

    def printed(self) -> str:
        """What it has printed so far."""
        return self._log.read_text(errors="replace")

    def until_ready(self) -> None:
        """Waits until all of it is up."""
        until(self._is_ready, lambda: f"the gateway does not start:\n{self._log.read_text(errors='replace')[-3000:]}")

    def until_gone(self) -> None:
        """Waits until none of its processes is left."""
        until(lambda: not self.processes(), lambda: f"still there: {self.processes()}")

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self._log.read_text(errors="replace")[-3000:]
        try:
            with urllib.request.urlopen(f"{self.url}/ready", timeout=10) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return False

    def kill(self) -> None:
        """Ends what a failed test has left."""
        for process in self.processes():
            process.kill()
        self.process.wait()


SIMULATED: dict[str, Any] = {
    "family": "sim",
    "grammar": "qwen3_coder",
    "pools": {
        "standard": {
            "kind": "sim",
            "sim": {"step_ms": 30, "content_tokens": [100, 100]},
            "ray_actor_options": {"num_cpus": 0.1},
            "graceful_shutdown_timeout_s": 60,
        }
    },
}
# Makes a terminal the controlling one of the session that this process leads, then becomes the command.
_WITH_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(os.open(sys.argv[1], os.O_RDWR), termios.TIOCSCTTY, 0)
os.execv(sys.argv[2], sys.argv[2:])
"""


@contextmanager
def local_gateway(folder: Path, model: str, port: int, **how: Any) -> Iterator[LocalGateway]:
    """Starts a gateway; whatever is left of it at the end is killed."""
    gateway = LocalGateway(folder, model, port, **how)
    try:
        yield gateway
    finally:
        gateway.kill()


def until(holds: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    """Waits until something holds; after five minutes, says what else there is."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline_s, otherwise()
        time.sleep(0.2)
