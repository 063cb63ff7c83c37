"""`specgate shadow`: the verdict on the candidate pools of a running gateway."""

from collections.abc import Sequence
from typing import Any

import typer

from serve.cli.admin_api import LOCAL, Url, ask
from serve.cli.output import FOUND, Json, console, print_json, print_table


def shadow(url: Url = LOCAL, as_json: Json = False) -> None:
    """Show how candidate pools answer copies of requests; exit code 1 if one is to be rejected."""
    rows: list[dict[str, Any]] = ask("GET", url, "/admin/v1/shadow")["data"]
    if as_json:
        print_json(rows)
    elif not rows:
        console().print("no pairs yet: a model needs `shadow: {pool: NAME}` and requests with tools or JSON")
    else:
        columns = ("model", "candidate", "class", "verdict", "pairs", "bad: its, ours, both", "difference", "time")
        print_table(columns, map(_row, rows))
    if any(row["verdict"] == "reject" for row in rows):
        raise typer.Exit(FOUND)


def _row(row: dict[str, Any]) -> Sequence[str]:
    bad = f"{row['candidate_bad']}, {row['served_bad']}, {row['both_bad']}"
    bounds = f"{row['difference']:+.2%} ({row['at_least']:+.2%} to {row['at_most']:+.2%})"
    time = f"its {row['candidate_mean_s']:.2f} s, ours {row['served_mean_s']:.2f} s"
    return (
        row["model"],
        row["pool"],
        row["request_class"] or "all",
        row["verdict"],
        str(row["pairs"]),
        bad,
        bounds,
        time,
    )
