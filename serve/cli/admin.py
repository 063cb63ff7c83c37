"""Commands that ask the admin API of a running gateway: `specgate quarantine`, `shadow`, `usage` and `audit`."""

import csv
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer
from rich.text import Text

from serve.admin.audit import verify
from serve.cli.output import FOUND, Json, console, print_json, print_rows
from serve.config.gateway import DEFAULT_ADMIN_PORT
from serve.errors import ConfigError
from serve.limits.book import dimensions, instant, read
from serve.limits.usage import USAGE_COLUMNS

LOCAL = f"http://127.0.0.1:{DEFAULT_ADMIN_PORT}"  # where `specgate serve` puts it
_TIMEOUT_S = 10.0

Url = Annotated[
    str,
    typer.Option(
        "--url", "-u", envvar="SPECGATE_ADMIN_URL",
        help="Base URL of the admin API; its key is read from SPECGATE_KEY.",
    ),
]  # fmt: skip

quarantine_app = typer.Typer(help="List, set, lift or pin quarantines in a running gateway.", no_args_is_help=True)

Model = Annotated[str, typer.Argument(help="The model's name in the configuration.")]
Pool = Annotated[str, typer.Argument(help="One of its pools.")]
Class = Annotated[str, typer.Argument(metavar="CLASS", help="Request class, such as tools_auto or json_schema+strict.")]
Reason = Annotated[str, typer.Option("--reason", help="The reason, for the next operator.")]
Speculative = Annotated[
    bool | None,
    typer.Option("--speculative/--no-speculative", help="For pools that can do both; by default their main mode."),
]
By = Annotated[str, typer.Option("--by", help="Comma-separated: tenant, key, model, pool, speculative, day, hour.")]
Since = Annotated[str, typer.Option("--since", help="The first hour, such as 2026-11-01 or 2026-11-01T08:00; UTC.")]
Until = Annotated[str, typer.Option("--until", help="The first hour that no longer counts.")]
StateDir = Annotated[
    str | None, typer.Option("--state-dir", help="Read this `access.state_dir` instead of asking the gateway.")
]
audit_app = typer.Typer(help="Check the audit log, or list its newest lines.", no_args_is_help=True)

Log = Annotated[Path, typer.Argument(metavar="PATH", help="The folder `admin.audit_dir`, or one file of it.")]
Expect = Annotated[str, typer.Option(help="A hash printed by an earlier check; its line must still be there.")]
KeyFile = Annotated[
    Path | None, typer.Option(help="The key that seals the lines, `admin.audit_key_file`; also detects a missing end.")
]
Follows = Annotated[str, typer.Option(help="Hash of the last archived line, which the first one here follows.")]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="How many lines.")]


def ask(method: str, url: str, path: str, body: Any = None) -> Any:
    """Returns what the admin API answers, decoded from JSON. The path has its query; a body other than None is sent as
    JSON.

    Raises:
        ConfigError: Nobody answers there, or it is no admin API, or it refuses; the message says why.
    """
    import httpx  # only here, as a gateway that starts needs no such client

    headers = key_headers()
    try:
        response = httpx.request(method, f"{url.rstrip('/')}{path}", json=body, headers=headers, timeout=_TIMEOUT_S)
        content = response.json()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"no admin API answers at {url}: {error}; set its address with --url") from error
    except ValueError as error:
        message = f"{url} answered {response.status_code} without JSON, so it is not the admin API"
        raise ConfigError(message) from error
    if response.status_code == httpx.codes.UNAUTHORIZED and not headers:
        raise ConfigError(f"the admin API at {url} asks for a key: set SPECGATE_KEY to one")
    if response.status_code != httpx.codes.OK:
        raise ConfigError(_message(content) or f"{url} answered {response.status_code}")
    return content


def key_headers() -> dict[str, str]:
    """Returns the header with the caller's key, which is in SPECGATE_KEY; none without one.

    Raises:
        ConfigError: What is there can't be a key.
    """
    key = os.environ.get("SPECGATE_KEY", "").strip()
    if not (key.isascii() and key.isprintable()):  # what HTTP says of such a header repeats it, key and all
        raise ConfigError("SPECGATE_KEY holds characters that are in no key")
    return {"authorization": f"Bearer {key}"} if key else {}


def _message(content: Any) -> str:
    """Returns the message of an error; none if it has another form, since anything may answer at an address."""
    error = content.get("error") if isinstance(content, dict) else None
    return str(error.get("message", "")) if isinstance(error, dict) else ""


@quarantine_app.command("list")
def list_cells(url: Url = LOCAL, as_json: Json = False) -> None:
    """List every counted pool and request class: clean rate, bounds and status."""
    _show_cells(_cells("GET", url), as_json)


def _command(action: str, description: str) -> Callable[..., None]:
    """Returns a command that applies `action` to one pool and request class."""

    def command(
        model: Model,
        pool: Pool,
        request_class: Class,
        reason: Reason,
        speculative: Speculative = None,
        url: Url = LOCAL,
        as_json: Json = False,
    ) -> None:
        cell = {"model": model, "pool": pool, "request_class": request_class, "speculative": speculative}
        _show_cells(_cells("POST", url, {"action": action, "reason": reason, **cell}), as_json)

    command.__doc__ = description
    return command


_ACTIONS = {
    "set": ("quarantine", "Quarantine a pool for a request class until an operator lifts it."),
    "lift": ("lift", "Release a pool for a request class; its counts start over."),
    "pin": ("pin", "Keep a pool in service for a request class until an operator lifts the pin."),
}
for _name, (_action, _description) in _ACTIONS.items():
    quarantine_app.command(_name)(_command(_action, _description))


def _cells(method: str, url: str, body: Any = None) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = ask(method, url, "/admin/v1/quarantine", body)["data"]
    return cells


def _show_cells(cells: list[dict[str, Any]], as_json: bool) -> None:
    columns = ("model", "pool", "speculation", "class", "status", "answers", "clean", "bad rate, bounds", "why")
    none = "no counts yet: no answer with tools or JSON has been checked"
    print_rows(cells, as_json, columns, _cell_row, none)


def _cell_row(cell: dict[str, Any]) -> Sequence[str | Text]:
    clean = "" if cell["clean_rate"] is None else f"{cell['clean_rate']:.1%}"
    bounds = f"{cell['bad_rate_at_least']:.1%} to {cell['bad_rate_at_most']:.1%}" if cell["answers"] else ""
    speculation = "on" if cell["speculative"] else "off"
    place = (cell["model"], cell["pool"], speculation, cell["request_class"])
    return (*place, _status(cell), str(cell["answers"]), clean, bounds, cell["why"])


def _status(cell: dict[str, Any]) -> Text:
    if cell["status"] == "quarantined":
        return Text("out by operator" if cell["held"] else "out", "red")
    if cell["held"]:
        return Text("pinned by operator", "cyan")
    return Text("reference") if cell["reference"] else Text("in", "green")


def shadow(url: Url = LOCAL, as_json: Json = False) -> None:
    """Show how candidate pools answer copies of requests; exit code 1 if one is to be rejected."""
    rows: list[dict[str, Any]] = ask("GET", url, "/admin/v1/shadow")["data"]
    columns = ("model", "candidate", "class", "verdict", "pairs", "bad: its, ours, both", "difference", "time")
    none = "no pairs yet: a model needs `shadow: {pool: NAME}` and requests with tools or JSON"
    print_rows(rows, as_json, columns, _verdict_row, none)
    if any(row["verdict"] == "reject" for row in rows):
        raise typer.Exit(FOUND)


def _verdict_row(row: dict[str, Any]) -> Sequence[str]:
    bad = f"{row['candidate_bad']}, {row['served_bad']}, {row['both_bad']}"
    bounds = (
        ""
        if row["difference"] is None
        else f"{row['difference']:+.2%} ({row['at_least']:+.2%} to {row['at_most']:+.2%})"
    )
    mean_s = row["candidate_mean_s"]
    time = "" if mean_s is None else f"its {mean_s:.2f} s, ours {row['served_mean_s']:.2f} s"
    subject = (row["model"], row["pool"], row["request_class"] or "all")
    verdict = f"{row['verdict']}: {row['why']}" if row["why"] else row["verdict"]
    return (*subject, verdict, str(row["pairs"]), bad, bounds, time)


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
    columns = (*names, *USAGE_COLUMNS)
    if as_csv and not as_json:
        writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        print_rows(rows, as_json, columns, lambda row: (str(row[column]) for column in columns))


@audit_app.command("verify")
def check(
    path: Log, expect: Expect = "", key_file: KeyFile = None, follows: Follows = "", as_json: Json = False
) -> None:
    """Check that no line was changed, added or removed; exit code 1 if one was."""
    checked = verify(path, expect, key_file=key_file, follows=follows)
    if as_json:
        print_json({"lines": checked.lines, "last": checked.last, "faults": list(checked.faults)})
    else:
        for fault in checked.faults:
            console().print(fault, style="red")
        console().print(f"{checked.lines} lines, {len(checked.faults)} faults; hash of the last line: {checked.last}")
        if checked.is_sealed and key_file is None:
            console().print("The lines are sealed: only with --key-file is it certain that none is missing at the end.")
    if checked.faults:
        raise typer.Exit(FOUND)


@audit_app.command("list")
def list_lines(url: Url = LOCAL, limit: Limit = 20, as_json: Json = False) -> None:
    """List the newest lines that a running admin API has written."""
    lines = ask("GET", url, f"/admin/v1/audit?limit={limit}")["data"]
    names = ("time", "key", "tenant", "source", "action", "object", "reason")
    print_rows(lines, as_json, names, lambda line: (str(line[name]) for name in names))
