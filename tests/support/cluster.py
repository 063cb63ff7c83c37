"""A Ray cluster of a test's own: nodes as `ray start` makes them, a gateway as `specgate deploy` does."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from serve.launch.local import node_environment
from serve.launch.ports import free_port

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
START_TIMEOUT_S = 240


class Cluster:
    """Nodes on this machine, each a raylet; `running` makes one.

    Attributes:
        url: The gateway's base URL.
        admin_api: That of its admin API.
        dashboard: That of Ray's dashboard.
        files: Ray's folder, with the logs of everything that runs here.
        config: The gateway config that was deployed last.
        head: The head node.
    """

    head: psutil.Process

    def __init__(self, folder: Path, held: ExitStack, **environment: str) -> None:
        self.config: Mapping[str, Any] = {}
        self._folder, self._held = folder, held
        # Ray puts Unix sockets there, whose paths are at most 107 characters long.
        self._short = held.enter_context(tempfile.TemporaryDirectory(prefix="sg", ignore_cleanup_errors=True))
        self._gcs, self._dashboard, self._http, self._admin_api, self._client = (free_port() for _ in range(5))
        self._nodes: list[psutil.Process] = []
        self._environment = {
            **os.environ, **node_environment(self._short), "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0",
            "PATH": f"{BIN}:{os.environ['PATH']}", **environment,
        }  # fmt: skip
        self.url, self.admin_api = f"http://127.0.0.1:{self._http}", f"http://127.0.0.1:{self._admin_api}"
        self.dashboard = f"http://127.0.0.1:{self._dashboard}"
        self.files = Path(self._short)

    def start_head(self, *, again: bool = False) -> None:
        """Starts the head node; again, with the same ports, it must not see the other nodes' processes beside it."""
        head = ["--head", f"--port={self._gcs}", f"--dashboard-port={self._dashboard}", f"--temp-dir={self._short}"]
        head += [f"--ray-client-server-port={self._client}", "--dashboard-host=127.0.0.1", "--num-cpus=8"]
        self.head = self._start(*head, within=("unshare", "-pf", "--mount-proc") if again else ())
        self._until(lambda: self._get("/api/version") is not None, "the dashboard does not answer", self.head)

    def add_worker(self, cpus: int = 0) -> psutil.Process:
        """Another node, for what asks for `worker` alone; killing it with `kill_node` is what a power cut would be.

        Returns when it has joined: of two nodes that join from one address at the same time, Ray may lose one.
        """
        log = self._folder / f"node-{len(self._nodes)}.log"
        node = self._start(f"--address=127.0.0.1:{self._gcs}", f"--num-cpus={cpus}", '--resources={"worker": 1}')
        self._until(lambda: "Ray runtime started" in log.read_text(errors="replace"), "the node does not join", node)
        return node

    def _start(self, *arguments: str, within: Sequence[str] = ()) -> psutil.Process:
        log = self._held.enter_context((self._folder / f"node-{len(self._nodes)}.log").open("wb"))
        fixed = ["--block", "--node-ip-address=127.0.0.1", f"--object-store-memory={100 * 2**20}"]
        process = subprocess.Popen(
            [*within, BIN / "ray", "start", *fixed, *arguments],
            env=self._environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        self._held.callback(process.wait)
        self._nodes.append(psutil.Process(process.pid))
        self._held.callback(kill_node, self._nodes[-1])
        return self._nodes[-1]

    async def deploy(self, args: Mapping[str, Any]) -> None:
        """Send a gateway config as an operator does; returns when all of it runs."""
        args = {
            **args,
            "admin": {**args.get("admin", {}), "port": self._admin_api},
        }  # other tests of this machine have an admin API too
        application = {"name": "specgate", "route_prefix": "/", "import_path": "serve.app:build", "args": args}
        document = {
            "proxy_location": "HeadOnly",
            "http_options": {"host": "127.0.0.1", "port": self._http},
            "applications": [application],
        }
        file = self._folder / "serve.yaml"
        file.write_text(yaml.safe_dump(document))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "serve.cli", "deploy", "--config", str(file), "--accept-hazards",
            "--address", f"http://127.0.0.1:{self._dashboard}", "--timeout-s", str(START_TIMEOUT_S),
            cwd=ROOT, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        self.config = args

    def replicas(self, deployment: str) -> list[psutil.Process]:
        """The processes of a deployment's running replicas: `Gateway`, or `model--pool`."""
        applications = (self._get("/api/serve/applications/") or {"applications": {}})["applications"].values()
        found = (each["deployments"].get(deployment, {"replicas": []}) for each in applications)
        pids = [each["pid"] for one in found for each in one["replicas"] if each["state"] == "RUNNING"]
        return [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]  # Ray takes a while to notice a death

    def processes(self, title: str) -> list[psutil.Process]:
        """Those of this cluster that Ray gave a title."""
        found = []
        for node in self._nodes:
            with suppress(psutil.NoSuchProcess):  # it has ended, or does so now
                found += [each for each in node.children(recursive=True) if _has_title(each, title)]
        return found

    async def until_replicas(self, deployment: str, count: int) -> list[psutil.Process]:
        """Wait until so many replicas of a deployment run."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while len(running := self.replicas(deployment)) != count:
            assert time.monotonic() < deadline, f"{deployment}: {len(running)} replicas run, not {count}"
            await asyncio.sleep(0.5)
        return running

    def _get(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._dashboard}{path}", timeout=10) as response:
                return json.load(response)
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return None

    def _until(self, holds: Any, otherwise: str, node: psutil.Process) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not holds():
            reply = "\n".join(log.read_text(errors="replace")[-2000:] for log in self._folder.glob("node-*.log"))
            assert time.monotonic() < deadline, f"{otherwise}:\n{reply}"
            assert psutil.pid_exists(node.pid), reply
            assert node.status() != psutil.STATUS_ZOMBIE, reply
            time.sleep(0.25)


@contextmanager
def running(folder: Path, **environment: str) -> Iterator[Cluster]:
    """A head node; all nodes are gone at the end, and nothing of any other cluster of this machine."""
    with ExitStack() as held:
        cluster = Cluster(folder, held, **environment)
        cluster.start_head()
        yield cluster


def _has_title(process: psutil.Process, title: str) -> bool:
    try:
        return title in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def kill_node(node: psutil.Process) -> None:
    """End a node and all that runs on it, at once and without a word."""
    try:
        processes = [node, *node.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
