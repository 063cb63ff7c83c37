"""`specgate fetch`: are the models that this node's engines load here, and complete?"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from serve.cli.output import FOUND, Json, console, print_json
from serve.config.gateway import GatewayConfig
from serve.launch import weights


def fetch(
    config: Annotated[Path, typer.Option("--config", "-c", help="A Serve config, or the gateway's part alone.")],
    download: Annotated[bool, typer.Option("--download", help="Fill what is missing from the model hub.")] = False,
    as_json: Json = False,
) -> None:
    """Look for the model folders of a configuration on this node; exit code 1 if one is not complete.

    Run on a node before its engines start, it tells within a second what an engine would tell after minutes.
    """
    parsed = GatewayConfig.load(config)
    if download:
        for folder in weights.folders(parsed):
            if folder.missing:
                weights.download(folder)
    found = weights.folders(parsed)
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        table = Table("folder", "GB", "missing", "used by", "hub")
        for each in found:
            missing = f"[red]{_shortened(each.missing)}[/]" if each.missing else "[green]nothing[/]"
            table.add_row(each.path, f"{each.gigabytes:.1f}", missing, ", ".join(each.used_by), each.hub or "")
        console().print(table)
    if any(each.missing for each in found):
        raise typer.Exit(FOUND)


def _shortened(missing: tuple[str, ...]) -> str:
    return ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
