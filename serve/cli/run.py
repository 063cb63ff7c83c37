"""`specgate serve`: runs the whole gateway on this machine."""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from serve import VERSION
from serve.cli.key_service import first_key
from serve.cli.output import console
from serve.config.access import AccessConfig, AccessMode
from serve.config.contradictions import contradictions
from serve.config.early import missing_folders, unknown_options
from serve.config.exposure import open_gateway
from serve.config.gateway import GatewayConfig
from serve.errors import ConfigError
from serve.launch.local import Progress, cluster, prepared_environment
from serve.launch.ports import claim_admin_port, require_free
from serve.launch.supervisor import supervise

LAPTOP = Path(__file__).parents[2] / "deploy" / "laptop.yaml"

Config = Annotated[Path, typer.Option(help="A Serve config, or just the gateway's part of one.")]
Port = Annotated[int, typer.Option(envvar="SPECGATE_PORT", min=1, max=65535, help="Port of the gateway.")]
AdminPort = Annotated[
    int | None,
    typer.Option(
        envvar="SPECGATE_ADMIN_PORT", min=1, max=65535, help="Port of the admin API. [default: 8001, or the next]"
    ),
]
Host = Annotated[str, typer.Option(envvar="SPECGATE_HOST", help="Address to listen on; 0.0.0.0 for all.")]
Access = Annotated[
    AccessMode | None, typer.Option(help="Whether clients need a key, in place of the configuration's `access.mode`.")
]
KeysDir = Annotated[
    Path | None, typer.Option("--state-dir", help="Folder of the keys. [default: ~/.local/state/specgate]")
]
StopWithParent = Annotated[bool, typer.Option(help="Stop also when the process that started this one dies.")]
AcceptHazards = Annotated[bool, typer.Option("--accept-hazards", help="Start even if facts contradict each other.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Also print the replicas' logs.")]


def serve(
    config: Config = LAPTOP,
    port: Port = 8000,
    host: Host = "127.0.0.1",
    admin_port: AdminPort = None,
    access: Access = None,
    state_dir: KeysDir = None,
    verbose: Verbose = False,
    stop_with_parent: StopWithParent = False,
    accept_hazards: AcceptHazards = False,
) -> None:
    """Start Ray, the gateway and all pools on this machine, and run until Ctrl-C."""
    loaded = GatewayConfig.load(config)
    _refuse_unstartable(loaded, config)
    if not accept_hazards:
        _refuse_contradictions(loaded, config)
    parsed = _with_access(with_admin_port(loaded, port, admin_port), access, state_dir)
    stop = threading.Event()
    with prepared_environment():  # around both processes: whichever ends last, nothing is left behind
        code = supervise(stop, with_parent=stop_with_parent)
        if code is not None:
            raise typer.Exit(code)
        if (token := first_key(parsed.access)) is not None:
            _print("First API key, with every right, shown only now:")
            _print(token)
        if openness := open_gateway(parsed.access, host):
            _print(f"warning: {openness}")
        _print(f"specgate {VERSION}, {config}")
        with cluster(parsed, port, clocked(), verbose, host, stop):
            if not stop.is_set():
                models = ", ".join(parsed.models)
                _print(f"specgate listens on http://{host}:{port}; models: {models}. Press Ctrl-C to stop.")
                _print(f"Look at it: {parsed.admin.url} (the admin API)")
            stop.wait()


def _refuse_contradictions(parsed: GatewayConfig, config: Path) -> None:
    wrong = [f"  {model}/{pool}: {text}" for model, pool, text in contradictions(parsed)]
    if wrong:
        raise ConfigError(
            "\n".join((f"{config} has facts that contradict each other:", *wrong))
            + "\n--accept-hazards starts it anyway."
        )


def _refuse_unstartable(parsed: GatewayConfig, config: Path) -> None:
    wrong = [f"  {model}/{pool}: {text}" for model, pool, text in (*unknown_options(parsed), *missing_folders(parsed))]
    if wrong:
        cure = f"\n`specgate fetch --config {config}` lists the folders; with --download it fills them."
        message = "\n".join((f"{config} has engines that can't start:", *wrong))
        raise ConfigError(message + (cure if "the folder of" in message else ""))


def _with_access(config: GatewayConfig, mode: AccessMode | None, state_dir: Path | None) -> GatewayConfig:
    """Returns the configuration with another mode of access, and with a place for keys if there is none."""
    settings = config.access.model_dump()
    if mode is not None:
        settings["mode"] = mode
    if state_dir is not None:
        settings["state_dir"] = str(state_dir.absolute())
    if settings["mode"] == "required" and not any(settings[source] for source in ("file", "state_dir", "oidc")):
        settings["state_dir"] = str(Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "specgate")
    return config.model_copy(update={"access": AccessConfig.model_validate(settings)})


def with_admin_port(config: GatewayConfig, port: int, admin_port: int | None) -> GatewayConfig:
    """Returns the configuration with a port of the admin API that this gateway alone has."""
    if admin_port is not None:
        require_free(admin_port, "SPECGATE_ADMIN_PORT")
        chosen = admin_port
    else:
        chosen = claim_admin_port(config.admin.port, port)
    return config.model_copy(update={"admin": config.admin.model_copy(update={"port": chosen})})


def clocked() -> Progress:
    """Returns a printer of progress that prefixes the elapsed time."""
    started = time.monotonic()
    return lambda line: _print(f"{time.monotonic() - started:6.1f} s  {line}")


def _print(line: str) -> None:
    """Prints a line; if nobody can read it any more, as after a terminal was closed, this is the last one."""
    try:
        console().print(line, markup=False)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
