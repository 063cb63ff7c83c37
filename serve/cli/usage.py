"""`specgate usage`: who has used how much, from a running gateway or from the files of a stopped one."""

import csv
import sys
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from serve.cli.admin_api import LOCAL, Url, ask
from serve.cli.output import Json, print_json, print_table
from serve.limits.book import dimensions, instant, read
from serve.limits.usage import USAGE_COLUMNS

By = Annotated[str, typer.Option("--by", help="Comma-separated: tenant, key, model, pool, speculative, day, hour.")]
Since = Annotated[str, typer.Option("--since", help="The first hour, such as 2026-11-01 or 2026-11-01T08:00; UTC.")]
Until = Annotated[str, typer.Option("--until", help="The first hour that no longer counts.")]
StateDir = Annotated[
    str | None, typer.Option("--state-dir", help="Read this `access.state_dir` instead of asking the gateway.")
]


def usage(
    url: Url = LOCAL,
    by: By = "tenant,model",
    since: Since = "",
    until: Until = "",
    state_dir: StateDir = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV for spreadsheets.")] = False,
    as_json: Json = False,
) -> None:
    """Show the usage of tenants, keys, models and pools: requests and tokens, by the hour at the finest."""
    names = dimensions(by)
    if state_dir is not None:
        rows = read(state_dir, names, instant(since), instant(until))
    else:
        instant(since), instant(until)  # a wrong date is an error before anybody is asked
        query = urlencode({"by": by, "since": since, "until": until})
        rows = ask("GET", url, f"/admin/v1/usage?{query}")["data"]
    if as_json:
        print_json(rows)
    elif as_csv:
        _print_csv((*names, *USAGE_COLUMNS), rows)
    else:
        columns = (*names, *USAGE_COLUMNS)
        print_table(columns, ((str(row[column]) for column in columns) for row in rows))


def _print_csv(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
