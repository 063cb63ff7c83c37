"""The root of the command line; every command is one line below."""

import os
from typing import Annotated

import typer

from serve import VERSION
from serve.cli.admin import audit_app, quarantine_app, shadow, usage
from serve.cli.advisories import app as advisories
from serve.cli.connect import connect
from serve.cli.deploy import deploy
from serve.cli.doctor import doctor
from serve.cli.explain import explain
from serve.cli.fetch import fetch
from serve.cli.front import front
from serve.cli.keys import keys_app, tenants_app
from serve.cli.output import Commands, add_command
from serve.cli.replay import replay
from serve.cli.serve import serve
from serve.cli.up import up

_HERE = "127.0.0.1,localhost,::1"

app = typer.Typer(
    cls=Commands,
    name="specgate",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"specgate {VERSION}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Speculative decoding where it is safe, with tools to explain, test and compare its decisions."""
    direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if direct != "*" and _HERE not in direct:  # nothing here is behind a proxy, and keys are none of its business
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(filter(None, (direct, _HERE)))


app.command("front")(front)
app.command("serve")(serve)
add_command(app, "demo")
app.command("connect")(connect)
app.command("up")(up)
app.command("deploy")(deploy)
app.command("fetch")(fetch)
app.command("doctor")(doctor)
app.command("explain")(explain)
app.command("replay")(replay)
add_command(app, "plan")
add_command(app, "probe")
add_command(app, "qualify")
add_command(app, "conform")
app.command("usage")(usage)
app.command("shadow")(shadow)
app.add_typer(advisories, name="advisories")
app.add_typer(quarantine_app, name="quarantine")
app.add_typer(audit_app, name="audit")
app.add_typer(keys_app, name="keys")
app.add_typer(tenants_app, name="tenants")
