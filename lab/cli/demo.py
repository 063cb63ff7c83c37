"""`specgate demo`: everything on this machine, asked and answered once."""

import asyncio
import time

import typer

from serve.cli.output import FOUND, Json, console, print_json
from serve.cli.serve import LAPTOP, AdminPort, Config, Port, Verbose, clocked, with_admin_port
from serve.config.gateway import GatewayConfig
from serve.launch.local import Progress, cluster, prepared_environment


def demo(
    config: Config = LAPTOP,
    port: Port = 8000,
    admin_port: AdminPort = None,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Start everything on this machine, send example requests, and show the results.

    The last lines replay the incident that started this project, on simulated engines.
    """
    parsed = with_admin_port(GatewayConfig.load(config), port, admin_port)
    started = time.monotonic()
    say: Progress = (lambda _: None) if as_json else clocked()
    with prepared_environment():
        from lab import demo as examples  # imports Ray, which reads its environment at that moment

        with cluster(parsed, port, say, verbose) as url:
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
        console().print("\n".join(incident.lines()))
        console().print(f"{report.right} of {len(report.rows)} right, {time.monotonic() - started:.0f} s in total.")
        console().print(examples.TRY_NEXT.format(url=f"http://127.0.0.1:{port}", admin_api=parsed.admin.url))
    if report.right < len(report.rows) or not incident.healed:
        raise typer.Exit(FOUND)
