"""Runs a Ray cluster and the whole gateway on one machine: for `specgate serve`, `specgate demo` and the tests."""

import logging
import os
import re
import secrets
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from serve.config.gateway import GatewayConfig
from serve.errors import ConfigError
from serve.launch.haproxy import write_launcher
from serve.launch.ports import claim_block, require_free
from serve.launch.stand_in import standing_in

Progress = Callable[[str], None]

_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit): ", re.MULTILINE)  # the first line after a traceback
_START_TIMEOUT_S = 900.0
_STOP_TIMEOUT_S = 60.0
_SILENT_S = 30.0  # then whoever waits is told for what
_LOOK_S = 0.2
_NEEDED = frozenset({"raylet", "gcs_server"})


@contextmanager
def prepared_environment() -> Iterator[None]:
    """Sets the variables that Ray reads when it is imported; enter it before anything imports Ray.

    The folder that it makes for HAProxy's files, engines' sockets and Ray's token is gone at the end.
    """
    folder = tempfile.mkdtemp(prefix="specgate-")
    try:
        for name, value in node_environment(folder).items():
            os.environ.setdefault(name, value)
        # Whatever the caller's environment says of other clusters does not hold for this one.
        os.environ |= own_cluster(Path(folder))
        os.environ.pop("RAY_AUTH_TOKEN", None)  # it would go before the file
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # Ray's processes would compile Ray from source at every start
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def own_cluster(folder: Path) -> dict[str, str]:
    """Returns the environment of a Ray cluster that is this machine's alone (docs/adr/0028).

    Ray listens on the loopback address only, and whoever wants to join or ask it needs the cluster's own token. The
    token is in a file of the folder that only its owner can read.
    """
    token = folder / "ray-token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32), encoding="ascii")
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        # Despite its name it says, on every system, whether Ray takes the machine's address or the loopback address.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }


def node_environment(folder: str) -> dict[str, str]:
    """Returns the environment that Ray's processes on this machine need from their start.

    HAProxy with the throughput flags relays a stream for a thirtieth of the CPU of Ray Serve's default proxy
    (docs/adr/0002). It starts through our wrapper (docs/adr/0024), retries a request whose gateway replica died before
    responding, and lets streams of up to an hour finish when replicas change (docs/explanation/failures.md).

    Its files are in a folder of its own, as are the sockets of vLLM's processes: engines that are killed leave theirs
    behind, and this folder is gone with the gateway. All ports are of a block that no other gateway on this machine
    has: until HAProxy learns that a replica is gone, or while there is none yet, it sends requests to whoever has the
    port. The folder's path must be short, because some of the files are Unix sockets.

    Raises:
        ConfigError: There is no free block of ports.
    """
    metrics, stats, http_fallback, grpc_fallback, autoscaler, dashboard, *replicas = claim_block()
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # Ray's 5 s are too short while engines load on few cores
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(write_launcher(Path(folder))),
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
        "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": "65536",
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": f"{folder}/haproxy.cfg",
        "RAY_SERVE_HAPROXY_SOCKET_PATH": f"{folder}/admin.sock",
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": f"{folder}/metrics.sock",
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": folder,
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": f"{folder}/server-state",
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(http_fallback),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(grpc_fallback),
        "AUTOSCALER_METRIC_PORT": str(autoscaler),
        "DASHBOARD_METRIC_PORT": str(dashboard),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(replicas[0]),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(replicas[-1]),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "SPECGATE_ENGINE_HOST": "127.0.0.1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_RPC_BASE_PATH": folder,
    }


@contextmanager
def cluster(
    config: GatewayConfig,
    port: int,
    say: Progress,
    log_to_driver: bool = False,
    host: str = "127.0.0.1",
    stop: threading.Event | None = None,
) -> Iterator[str]:
    """Runs the gateway and its pools: yields the base URL once every pool is up, and stops everything at the end.
    Engines stay on 127.0.0.1, whatever the host. Once `stop` is set, nobody waits for the pools any more.

    Raises:
        ConfigError: The port is taken, or Ray or a deployment could not start; the message has its own error.
    """
    require_free(port)
    import ray
    from ray import serve as ray_serve
    from ray.serve.config import HTTPOptions

    from serve.app import build

    if not log_to_driver:
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
    say("starting Ray")
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        context = ray.init(
            address="local",  # never a cluster that somebody else has started here
            num_cpus=max(os.cpu_count() or 1, 4),
            object_store_memory=256 * 2**20,
            include_dashboard=False,
            log_to_driver=log_to_driver,
            logging_level="warning",
            _node_ip_address="127.0.0.1",
            runtime_env={
                "worker_process_setup_hook": "serve.launch.ports.keep_on_loopback",
                **_interpreter(sys.executable),
            },
        )
    except Exception as error:  # Ray has no narrower one for a node that took more than its 30 s
        ray.shutdown()
        raise ConfigError(f"Ray did not start, which takes longer on a busy machine; try again: {error}") from error
    signal.signal(signal.SIGTERM, on_sigterm)  # Ray has put its own in place, which ends the process at once
    haproxy_files = Path(os.environ["RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"]).parent
    with standing_in(haproxy_files, os.environ["RAY_SERVE_HAPROXY_BINARY_PATH"]) as take_over:
        try:
            ray_serve.start(http_options=HTTPOptions(host=host, port=port), proxy_location="HeadOnly")
            ray_serve.run_many(
                [ray_serve.RunTarget(target=build(config), name="specgate", route_prefix="/")],
                wait_for_applications_running=False,
            )
            # Not `session_latest`: that link is the newest cluster's on this machine.
            logs, stopping = Path(context.address_info["session_dir"]) / "logs", stop or threading.Event()
            if not while_alive(_ray_lives, lambda: _wait_until_running(say, logs / "serve", stopping)):
                raise _died(" while the pools came up")
            yield f"http://127.0.0.1:{port}"
            say("streams under way finish first; Ctrl-C again stops at once")
            while_alive(_ray_lives, lambda: _drain(config))
            take_over()
        finally:
            say("stopping")
            if not while_alive(_ray_lives, _stop_serve):
                say("Ray has died: what was under way is lost")
            ray.shutdown()


def _interpreter(path: str) -> dict[str, str]:
    """Returns the environment of workers whose interpreter's path has blanks, which Ray hands to a shell as it is."""
    quoted = shlex.quote(path)
    return {} if quoted == path else {"py_executable": quoted}


def serve_until(stop: threading.Event) -> None:
    """Returns once `stop` is set.

    Raises:
        ConfigError: Ray has died.
    """
    if not while_alive(_ray_lives, stop.wait):
        raise _died()


def while_alive(lives: Callable[[], bool], ask: Callable[[], object]) -> bool:
    """Asks Ray something, and waits for it while Ray lives, which never answers otherwise. Returns False if it was
    waited for in vain.

    Raises:
        Exception: Whatever `ask` raises.
    """
    failed: list[BaseException] = []

    def run() -> None:
        try:
            ask()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            failed.append(error)

    asking = threading.Thread(target=run, name="ask-ray", daemon=True)
    asking.start()
    while asking.is_alive() and lives():
        asking.join(_LOOK_S)
    for error in failed:
        raise error
    return not asking.is_alive()


def _ray_lives() -> bool:
    """Returns False if a process without which Ray does nothing has ended: its raylet, or its control service."""
    from ray._private import worker

    return _NEEDED.isdisjoint(kind for kind, _ in worker._global_node.dead_processes())


def _died(when: str = "") -> ConfigError:
    from ray._private import worker

    return ConfigError(f"Ray has died{when}; its logs are under {worker._global_node.get_logs_dir_path()}")


def _drain(config: GatewayConfig) -> None:
    """Lets streams under way finish, at most for as long as the deployments' own limits say.

    Ray Serve's shutdown kills HAProxy first, and every stream with it; an application that is deleted drains.
    """
    from ray import serve as ray_serve
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    pools = [pool for model in config.models.values() for pool in model.pools.values()]
    limits = [config.graceful_shutdown_timeout_s, *(pool.graceful_shutdown_timeout_s for pool in pools)]
    deadline_s = time.monotonic() + max(limits) + _STOP_TIMEOUT_S
    with suppress(RayError, RayServeException):  # without a controller there is none to wait for
        ray_serve.delete("specgate", _blocking=False)
        while "specgate" in ray_serve.status().applications and time.monotonic() < deadline_s:
            time.sleep(0.1)


def _stop_serve() -> None:
    """Does what `serve.shutdown` does, without waiting in a call that fails when the controller ends."""
    import ray
    from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

    deadline_s = time.monotonic() + _STOP_TIMEOUT_S
    try:
        ray.get(ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE).graceful_shutdown.remote(False))
        while time.monotonic() < deadline_s:
            ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
            time.sleep(0.1)
    except (ValueError, ray.exceptions.RayActorError):
        return  # the controller is gone


def _wait_until_running(say: Progress, logs: Path, stop: threading.Event) -> None:
    """Reports every deployment as it comes up; returns when all are, or `stop` is set."""
    from ray import serve as ray_serve

    started_s = told_s = time.monotonic()
    seen: set[str] = set()
    while not stop.is_set():
        application = ray_serve.status().applications["specgate"]
        for name, deployment in application.deployments.items():
            if deployment.status == "HEALTHY" and name not in seen:
                seen.add(name)
                told_s = time.monotonic()
                say(f"{name} is up after {told_s - started_s:.0f} s")
        if application.status == "RUNNING":
            return
        if application.status in ("DEPLOY_FAILED", "UNHEALTHY"):
            failed = {name: d.message for name, d in application.deployments.items() if d.status != "HEALTHY"}
            causes = (f"{name}: {cause_of(message)}" for name, message in failed.items() if message)
            raise ConfigError("\n".join((*causes, f"The replicas' logs are under {logs}")))
        if time.monotonic() - told_s > _SILENT_S:
            told_s = time.monotonic()
            say(f"loading {', '.join(sorted(application.deployments.keys() - seen))}")
        if time.monotonic() - started_s > _START_TIMEOUT_S:
            raise ConfigError(f"not every pool came up within {_START_TIMEOUT_S:.0f} s; see {logs}")
        stop.wait(0.5)


def cause_of(message: str) -> str:
    """Returns the error at the end of Ray Serve's message about a deployment: our own text, or another with its type.

    The traceback before it is a screen of Ray Serve's and vLLM's internals; the replica's log has it.
    """
    _, ours, cause = message.rpartition(f"{ConfigError.__module__}.{ConfigError.__qualname__}: ")
    if ours:
        return cause.strip()
    *_, last = [0, *(match.start() for match in _ERROR.finditer(message))]
    return message[last:].strip()
