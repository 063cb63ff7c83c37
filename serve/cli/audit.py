"""`specgate audit`: checks the audit log of the admin API, and lists its newest lines."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from serve.admin.audit import verify
from serve.cli.admin_api import LOCAL, Url, ask
from serve.cli.output import FOUND, Json, console, print_json, print_table

app = typer.Typer(help="Check the audit log, or list its newest lines.", no_args_is_help=True)

Log = Annotated[Path, typer.Argument(metavar="PATH", help="The folder `admin.audit_dir`, or one file of it.")]
Expect = Annotated[str, typer.Option(help="A hash printed by an earlier check; its line must still be there.")]
KeyFile = Annotated[
    Path | None, typer.Option(help="The key that seals the lines, `admin.audit_key_file`; also detects a missing end.")
]
Follows = Annotated[str, typer.Option(help="Hash of the last archived line, which the first one here follows.")]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="How many lines.")]


@app.command("verify")
def check(
    path: Log, expect: Expect = "", key_file: KeyFile = None, follows: Follows = "", as_json: Json = False
) -> None:
    """Check that no line was changed, added or removed; exit code 1 if one was."""
    checked = verify(path, expect, key_file=key_file, follows=follows)
    if as_json:
        print_json({"lines": checked.lines, "last": checked.last, "faults": list(checked.faults)})
    else:
        for fault in checked.faults:
            console().print(fault, markup=False, style="red")
        console().print(f"{checked.lines} lines, {len(checked.faults)} faults; hash of the last line: {checked.last}")
        if checked.is_sealed and key_file is None:
            console().print("The lines are sealed: only with --key-file is it certain that none is missing at the end.")
    if checked.faults:
        raise typer.Exit(FOUND)


@app.command("list")
def list_lines(url: Url = LOCAL, limit: Limit = 20, as_json: Json = False) -> None:
    """List the newest lines that a running admin API has written."""
    lines = ask("GET", url, f"/admin/v1/audit?limit={limit}")["data"]
    if as_json:
        print_json(lines)
        return
    names = ("time", "key", "tenant", "source", "action", "object", "reason")
    print_table(names, ((escape(str(line[name])) for name in names) for line in lines))
