"""`specgate serve` and `specgate demo`: run the whole gateway on this machine."""

import asyncio
import os
import sys
import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from serve.cli.output import FOUND, Json, console, print_json
from serve.config.gateway import GatewayConfig
from serve.launch.local import Progress, cluster, prepared_environment
from serve.launch.supervisor import supervise

LAPTOP = Path(__file__).parents[2] / "deploy" / "laptop.yaml"

Config = Annotated[Path, typer.Option(help="A Serve config, or just the gateway's part of one.")]
Port = Annotated[int, typer.Option(envvar="SPECGATE_PORT", min=1, max=65535, help="Port of the gateway.")]
Host = Annotated[str, typer.Option(envvar="SPECGATE_HOST", help="Address to listen on; 0.0.0.0 for all.")]
StopWithParent = Annotated[bool, typer.Option(help="Stop also when the process that started this one dies.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Also print the replicas' logs.")]


def serve(
    config: Config = LAPTOP,
    port: Port = 8000,
    host: Host = "127.0.0.1",
    verbose: Verbose = False,
    stop_with_parent: StopWithParent = False,
) -> None:
    """Start Ray, the gateway and all pools on this machine, and run until Ctrl-C."""
    parsed = GatewayConfig.load(config)
    stop = threading.Event()
    with prepared_environment():  # around both processes: whichever ends last, nothing is left behind
        code = supervise(stop, with_parent=stop_with_parent)
        if code is not None:
            raise typer.Exit(code)
        with cluster(parsed, port, _clocked(), verbose, host, stop):
            if not stop.is_set():
                models = ", ".join(parsed.models)
                _print(f"specgate listens on http://{host}:{port}; models: {models}. Press Ctrl-C to stop.")
            stop.wait()


def demo(config: Config = LAPTOP, port: Port = 8000, verbose: Verbose = False, as_json: Json = False) -> None:
    """Start everything on this machine, send example requests with the OpenAI SDK, and show the results.

    The last lines replay the incident that started this project, on simulated engines.
    """
    from serve.tools import demo as examples  # imports the OpenAI SDK, which takes about a second

    parsed = GatewayConfig.load(config)
    started = time.monotonic()
    say: Progress = (lambda _: None) if as_json else _clocked()
    with prepared_environment(), cluster(parsed, port, say, verbose) as url:
        report = asyncio.run(examples.run(url, list(parsed.models), say))
    say("the incident that started it all")
    incident = asyncio.run(examples.run_incident())
    if as_json:
        print_json(report.to_dict())
    else:
        console().print(report.table())
        for name, model in parsed.models.items():
            for pool, settings in model.pools.items():
                if settings.proven:
                    classes = ", ".join(settings.proven)
                    console().print(f"{name}/{pool} drafts {classes}: proven right on it, says {config.name}.")
        console().print("\n".join(incident.lines()), markup=False)
        console().print(f"{report.right} of {len(report.rows)} right, {time.monotonic() - started:.0f} s in total.")
        console().print(examples.TRY_NEXT.format(url=f"http://127.0.0.1:{port}"), markup=False)
    if report.right < len(report.rows) or not incident.healed:
        raise typer.Exit(FOUND)


def _clocked() -> Progress:
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
