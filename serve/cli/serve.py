"""`specgate serve`: runs the whole gateway on this machine."""

import importlib.util
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from policies.facts import METHODS, UNKNOWN
from serve import VERSION
from serve.cli.keys import first_key
from serve.cli.output import console
from serve.config.access import AccessConfig, AccessMode, open_gateway
from serve.config.compiled_policy import read_advisories
from serve.config.gateway import GatewayConfig
from serve.config.lint import contradictions, missing_folders, unknown_options
from serve.errors import ConfigError
from serve.http1.listener import url_of
from serve.launch.alone import log_to_stderr, needs_ray, run_alone, serve_alone
from serve.launch.local import Progress, cluster, prepared_environment, serve_until
from serve.launch.ports import claim_admin_port, require_free
from serve.launch.supervisor import supervise

LAPTOP = Path(__file__).parents[2] / "deploy" / "laptop.yaml"

Config = Annotated[Path, typer.Option(help="A Serve config, or just the gateway's part of one.")]
AcceptHazards = Annotated[bool, typer.Option("--accept-hazards", help="Start even if facts contradict each other.")]
WithRay = Annotated[
    bool | None,
    typer.Option(
        "--ray/--no-ray",
        help="Run in a Ray cluster, or in this process alone. [default: alone if all pools are remote and there is one "
        "gateway replica]",
    ),
]
Port = Annotated[int, typer.Option(envvar="SPECGATE_PORT", min=1, max=65535, help="Port of the gateway.")]
AdminPort = Annotated[
    int | None,
    typer.Option(
        envvar="SPECGATE_ADMIN_PORT", min=1, max=65535, help="Port of the admin API. [default: 8001, or the next]"
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Also print the replicas' logs.")]


@dataclass(frozen=True, slots=True)
class Serving:
    """The operator's choices for serving; each is an option."""

    port: Port = 8000
    host: Annotated[str, typer.Option(envvar="SPECGATE_HOST", help="Address to listen on; 0.0.0.0 or :: for all.")] = (
        "127.0.0.1"
    )
    admin_port: AdminPort = None
    access: Annotated[AccessMode | None, typer.Option(help="Overrides `access.mode`: whether clients need a key.")] = (
        None
    )
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", help="Folder of the keys. [default: ~/.local/state/specgate]")
    ] = None
    verbose: Verbose = False
    stop_with_parent: Annotated[bool, typer.Option(help="Also stop when the parent process dies.")] = False


def with_serving(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of `Serving`, in place of its parameter `serving`."""
    hints = get_type_hints(Serving, include_extras=True)
    options = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name])
        for each in fields(Serving)
    ]

    def run(**given: Any) -> None:
        serving = Serving(**{each.name: given.pop(each.name, each.default) for each in options})
        command(**given, serving=serving)

    own = inspect.signature(command, eval_str=True).parameters.values()
    kept = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own if each.name != "serving"]
    run.__signature__ = inspect.Signature([*kept, *options])  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


@with_serving
def serve(
    serving: Serving, config: Config = LAPTOP, accept_hazards: AcceptHazards = False, ray: WithRay = None
) -> None:
    """Start the gateway and all pools on this machine, and run until Ctrl-C."""
    if config == LAPTOP and not LAPTOP.exists():
        raise ConfigError(
            "say which configuration: --config FILE; or, for engines that run already, `specgate front URL`"
        )
    loaded = GatewayConfig.load(config)
    _refuse_unstartable(loaded, config)
    if not accept_hazards:
        _refuse_contradictions(loaded, config)
    if not _wants_ray(loaded, config, ray):
        run_here(loaded, config, serving)
        return
    parsed = with_options(loaded, serving)
    port, host = serving.port, serving.host
    stop = threading.Event()
    with prepared_environment():  # around both processes: whichever ends last, nothing is left behind
        code = supervise(stop, with_parent=serving.stop_with_parent)
        if code is not None:
            raise typer.Exit(code)
        _tell_of_access(parsed.access, host)
        _print(f"specgate {VERSION}, {config}")
        _tell_of_advisories(parsed)
        with cluster(parsed, port, clocked(), serving.verbose, host, stop):
            if not stop.is_set():
                models = ", ".join(parsed.models)
                _print(f"specgate listens on {url_of(host, port)}; models: {models}. Press Ctrl-C to stop.")
                _print(f"Look at it: {parsed.admin.url} (the admin API)")
            serve_until(stop)


def run_here(config: GatewayConfig, path: Path | None, serving: Serving) -> None:
    """Serves remote pools in this process, until Ctrl-C. Its file, if there is one, is read again at SIGHUP."""
    require_free(serving.port)
    parsed = with_options(config, serving)
    log_to_stderr(serving.verbose)
    _print(f"specgate {VERSION}" + (f", {path}" if path else ""))
    _tell_of_access(parsed.access, serving.host)
    _tell_of_advisories(parsed)
    if path is not None:
        _tell_of_unknown_methods(parsed, path)
    run_alone(
        lambda orders: serve_alone(parsed, serving.host, serving.port, path, _print, orders, config),
        serving.stop_with_parent,
    )


def _wants_ray(config: GatewayConfig, path: Path, asked: bool | None) -> bool:
    """Returns True if a configuration is for a Ray cluster.

    Raises:
        ConfigError: It needs one that is not wanted, or Ray is not installed.
    """
    reason = needs_ray(config)
    if asked is False and reason is not None:
        raise ConfigError(f"{path} can't run without Ray: it has {reason}")
    wants = reason is not None if asked is None else asked
    if wants and not _is_installed("ray"):
        why = f"{path} has {reason}" if reason else "--ray asks for it"
        raise ConfigError(f"Ray is not installed, and {why}; in a checkout: pip install '.[ray]'")
    return wants


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _tell_of_access(access: AccessConfig, host: str) -> None:
    """Shows the first key, once, and warns of a gateway that anybody may use."""
    if (token := first_key(access)) is not None:
        _print("First API key, with every right, shown only now:")
        _print(token)
    if openness := open_gateway(access, host):
        _print(f"warning: {openness}")


def _tell_of_advisories(config: GatewayConfig) -> None:
    """Warns of the operator's advisories that can't be read: they count as matched, whatever they would say."""
    if config.policy.advisories:
        for each in read_advisories(config.policy):
            if each.problem:
                _print(f"warning: nothing speculates, because {each.id}.yaml can't be read: {each.problem}")


def _tell_of_unknown_methods(config: GatewayConfig, path: Path) -> None:
    """Warns of engines that may draft in any way, as far as anybody has said: they get hardly a tool call."""
    for each in config.pool_facts():
        if each.kind == "remote" and each.method == UNKNOWN:
            said = config.models[each.model].pools[each.pool].facts.get("method")
            close = get_close_matches(str(said), METHODS, n=1)
            what = f"no method is called {said!r}" if said not in (None, UNKNOWN) else "its method is not known"
            hint = f"did you mean `{close[0]}`?" if close else f"`specgate front --config {path}` asks the engine"
            _print(f"warning: {each.model}/{each.pool}: {what}, so that tool calls and JSON hardly go there; {hint}")


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


def with_options(config: GatewayConfig, serving: Serving) -> GatewayConfig:
    """Returns the configuration with what the command line changes of it."""
    return with_access(with_admin_port(config, serving.port, serving.admin_port), serving.access, serving.state_dir)


def with_access(config: GatewayConfig, mode: AccessMode | None, state_dir: Path | None) -> GatewayConfig:
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
        if admin_port == port:
            raise ConfigError(f"the gateway and its admin API can't both have port {port}: change --admin-port")
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
        console().print(line)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
