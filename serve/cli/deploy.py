"""`specgate deploy`: checks a Serve config and sends it to a running cluster."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from serve.cli.output import console
from serve.config import yaml_files
from serve.config.access import listening_host, open_gateway
from serve.config.gateway import GatewayConfig, args_of
from serve.errors import ConfigError
from serve.launch import submit
from serve.launch.submit import check_engines, split_applications
from serve.tools.decider import Decider
from serve.tools.doctor import examine, try_store


def deploy(
    config: Annotated[Path, typer.Option("--config", "-c", help="A Serve config; it may extend others.")],
    address: Annotated[
        str, typer.Option(envvar="RAY_DASHBOARD_ADDRESS", help="Address of the cluster's dashboard.")
    ] = "http://127.0.0.1:8265",
    wait: Annotated[bool, typer.Option(help="Wait until every pool is up.")] = True,
    timeout_s: Annotated[float, typer.Option(min=1, help="Longest wait; large models take a while to load.")] = (
        3600.0
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the config for Ray.")] = False,
    accept_hazards: Annotated[bool, typer.Option("--accept-hazards", help="Deploy even if doctor finds hazards.")] = (
        False
    ),
) -> None:
    """Check a configuration as `doctor` does, send it to the cluster, and wait until it serves.

    Ray replaces only the pools that changed, one replica at a time, and lets each replica finish its streams first.
    """
    submit.use_token()
    document = submit.serve_document(config)
    parsed = GatewayConfig.parse(args_of(document, config), config)
    hazards = _hazards(parsed)
    if hazards and not accept_hazards:
        raise ConfigError(
            "\n".join((f"{config} has hazards that nothing covers:", *hazards))
            + f"\n`specgate doctor --config {config}` lists cures; --accept-hazards deploys it anyway."
        )
    if store := try_store(parsed):
        typer.echo(": ".join(store), err=True)  # beside the config for Ray, which may be piped on
    out = console()
    url = address if "://" in address else f"http://{address}"

    def say(line: str) -> None:
        out.print(line, soft_wrap=True)

    if not accept_hazards and not dry_run:
        check_engines(parsed, say)
    if not accept_hazards and (openness := open_gateway(parsed.access, listening_host(document))):
        raise ConfigError(f"{config}: {openness}; --accept-hazards deploys it anyway")
    if dry_run:
        sys.stdout.write(yaml_files.dump(split_applications(document)))
        return
    submit.submit(document, url, say)
    say(f"sent {config} to {url}")
    if wait:
        submit.wait_until_running(url, timeout_s, say)
        say("every pool is up")


def _hazards(config: GatewayConfig) -> list[str]:
    findings = examine(Decider(config))["findings"]
    return [f"  {finding['model']}: {finding['message']}" for finding in findings if finding["level"] == "error"]
