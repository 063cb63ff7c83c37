"""HTTP to the admin API of a running gateway."""

import os
from typing import Annotated, Any

import typer

from serve.config.admin import DEFAULT_PORT
from serve.errors import ConfigError

LOCAL = f"http://127.0.0.1:{DEFAULT_PORT}"  # where `specgate serve` puts it
_TIMEOUT_S = 10.0

Url = Annotated[
    str,
    typer.Option(
        "--url", "-u", envvar="SPECGATE_ADMIN_URL",
        help="Base URL of the admin API; its key is read from SPECGATE_KEY.",
    ),
]  # fmt: skip


def ask(method: str, url: str, path: str, body: Any = None) -> Any:
    """Returns what the admin API answers, decoded from JSON. The path has its query; a body other than None is sent as
    JSON.

    Raises:
        ConfigError: Nobody answers there, or it is no admin API, or it refuses; the message says why.
    """
    import httpx  # only here, as a gateway that starts needs no such client

    key = os.environ.get("SPECGATE_KEY", "").strip()
    if not (key.isascii() and key.isprintable()):  # what HTTP says of such a header repeats it, key and all
        raise ConfigError("SPECGATE_KEY holds characters that are in no key")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        response = httpx.request(method, f"{url.rstrip('/')}{path}", json=body, headers=headers, timeout=_TIMEOUT_S)
        content = response.json()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"no admin API answers at {url}: {error}; set its address with --url") from error
    except ValueError as error:
        message = f"{url} answered {response.status_code} without JSON, so it is not the admin API"
        raise ConfigError(message) from error
    if response.status_code == httpx.codes.UNAUTHORIZED and not key:
        raise ConfigError(f"the admin API at {url} asks for a key: set SPECGATE_KEY to one")
    if response.status_code != httpx.codes.OK:
        raise ConfigError(_message(content) or f"{url} answered {response.status_code}")
    return content


def _message(content: Any) -> str:
    """Returns the message of an error; none if it has another form, since anything may answer at an address."""
    error = content.get("error") if isinstance(content, dict) else None
    return str(error.get("message", "")) if isinstance(error, dict) else ""
