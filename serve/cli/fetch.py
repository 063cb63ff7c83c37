"""`specgate fetch`: checks that the models of this node's engines are present and complete, or downloads them."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from serve.cli.output import FOUND, Json, print_json, print_table
from serve.config.gateway import GatewayConfig
from serve.launch import weights
from serve.tools.doctor import first_of


def fetch(
    config: Annotated[Path, typer.Option("--config", "-c", help="A Serve config, or the gateway's part alone.")],
    download: Annotated[bool, typer.Option("--download", help="Download what is missing from the model hub.")] = False,
    as_json: Json = False,
) -> None:
    """Check the model folders of a configuration on this node; exit code 1 if one is incomplete.

    It finds within a second what an engine would only report after minutes.
    """
    parsed = GatewayConfig.load(config)
    if download:
        for folder in weights.folders(parsed):
            if folder.missing:
                weights.download(folder)
    folders = weights.folders(parsed)
    if as_json:
        print_json([asdict(folder) for folder in folders])
    else:
        print_table(("folder", "GB", "missing", "used by", "hub"), map(_row, folders))
    if any(folder.missing for folder in folders):
        raise typer.Exit(FOUND)


def _row(folder: weights.Folder) -> Sequence[str]:
    missing = f"[red]{first_of(folder.missing, 3)}[/]" if folder.missing else "[green]nothing[/]"
    return folder.path, f"{folder.gigabytes:.1f}", missing, ", ".join(folder.used_by), folder.hub or ""
