"""A Serve config on its way to a running cluster: read, checked, sent, and watched until it runs."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from serve.config import layers
from serve.config.gateway import GatewayConfig, args_of
from serve.errors import ConfigError
from serve.launch.applications import apart
from serve.launch.local import cause_of

_CONNECT_TIMEOUT_S = 60.0
_POLL_S = 1.0
_MORE = "The log of the replica, in Ray's dashboard or under session_latest/logs/serve on its node, has the rest."


def use_token() -> None:
    """Answer a cluster that asks for Ray's token, if there is one here. Ray reads the mode when it is imported.

    A Ray cluster asks for a token once there is a token on its head; Ray's client by itself sends none.
    """
    known = any(map(os.environ.get, ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")))
    if known or (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def serve_document(path: str | Path) -> dict[str, Any]:
    """A Serve config file with everything that it extends, checked as far as that can be done without a cluster.

    Raises:
        ConfigError: Ray Serve would reject it, or would silently ignore a part of it.
    """
    document = layers.read(path)
    if "applications" not in document:
        raise ConfigError(f"{path} is the gateway's part alone; a Serve config has it as `args` of its application")
    GatewayConfig.parse(args_of(document, path), path)
    _check_serve_keys(document, path)
    return document


def _check_serve_keys(document: Mapping[str, Any], path: str | Path) -> None:
    """Ray Serve accepts any key and ignores those that it doesn't know: a typing error would pass unnoticed."""
    from pydantic import ValidationError
    from ray.serve.schema import HTTPOptionsSchema, LoggingConfig, ServeApplicationSchema, ServeDeploySchema

    (application,) = document["applications"]
    parts = (
        ("", document, ServeDeploySchema),
        ("http_options.", document.get("http_options") or {}, HTTPOptionsSchema),
        ("logging_config.", document.get("logging_config") or {}, LoggingConfig),
        ("applications.0.", application, ServeApplicationSchema),
    )
    for place, part, schema in parts:
        for key in part:
            if key not in schema.model_fields:
                raise ConfigError(f"{path}: Ray Serve knows no {place}{key}")
    try:
        ServeDeploySchema.model_validate(document)
    except ValidationError as error:
        lines = (f"  {'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise ConfigError(f"Ray Serve rejects {path}:\n" + "\n".join(lines)) from error


def submit(document: Mapping[str, Any], address: str, say: Callable[[str], None]) -> None:
    """Send the document to the cluster whose dashboard is at `address`; see `apart` for what Ray replaces.

    Raises:
        ConfigError: Nothing answers there within a minute, or Ray rejects the document.
    """
    client = _client(address, say)
    try:
        for line in _kept_options(document, client.get_serve_details()):
            say(line)
        client.deploy_applications(apart(document))
    except RuntimeError as error:  # what Ray's client raises for an answer other than 200
        raise ConfigError(f"the cluster at {address} rejects the config: {error}") from error
    except OSError as error:  # what the HTTP library raises
        raise ConfigError(f"the cluster at {address} broke off; is its head busy? Deploy again: {error}") from error


def _kept_options(document: Mapping[str, Any], details: Mapping[str, Any]) -> Iterator[str]:
    """What the document says of HTTP in vain: Serve, once it runs, keeps what it was started with."""
    running = details.get("http_options") or {}
    for name, wanted in (document.get("http_options") or {}).items():
        if name in running and running[name] != wanted:
            yield (
                f"http_options.{name} stays {running[name]}, not {wanted}: Ray Serve reads it when it starts. "
                "`serve shutdown` before the next `specgate deploy` ends everything that is served, and starts it anew."
            )


def wait_until_running(address: str, timeout_s: float, say: Callable[[str], None]) -> None:
    """Report each deployment as it becomes healthy, and what it waits for; return when all applications run.

    Raises:
        ConfigError: A deployment failed (its own error), or not all are up within `timeout_s` seconds.
    """
    from serve.app import ROOT

    client, started, seen, told = _client(address, say), time.monotonic(), set[str](), dict[str, str]()
    while True:
        applications = _applications(client, address)
        deployments = {
            name: each
            for application in applications.values()
            for name, each in application.get("deployments", {}).items()
            if name != ROOT
        }
        for name, each in deployments.items():
            if each["status"] == "HEALTHY" and name not in seen:
                seen.add(name)
                say(f"{name} is up after {time.monotonic() - started:.0f} s")
        states = {name: application["status"] for name, application in applications.items()}
        if set(states.values()) == {"RUNNING"}:
            return
        waiting = {name: each for name, each in deployments.items() if each["status"] != "HEALTHY"}
        if failed := {name for name, status in states.items() if status in ("DEPLOY_FAILED", "UNHEALTHY")}:
            texts = [f"{name}: {cause_of(each['message'])}" for name, each in waiting.items() if each.get("message")]
            texts = texts or [f"{name}: {applications[name]['message'] or states[name]}" for name in sorted(failed)]
            raise ConfigError("\n".join((*texts, _MORE)))
        for name, each in waiting.items():
            if (message := each.get("message")) and message != told.get(name):
                told[name] = message
                say(f"{name}: {cause_of(message)}")
        if time.monotonic() - started > timeout_s:
            names = ", ".join(waiting) or "the applications"
            raise ConfigError(f"not up within {timeout_s:.0f} s: {names}; `serve status` tells what each waits for")
        time.sleep(_POLL_S)


def _applications(client: Any, address: str) -> dict[str, Any]:
    """How they are doing; empty while the head does not answer, which is no reason to give up waiting."""
    try:
        applications: dict[str, Any] = client.get_serve_details().get("applications", {})
    except OSError:
        return {}
    except RuntimeError as error:
        raise ConfigError(f"the cluster at {address} no longer tells how it is doing: {error}") from error
    return applications


def _client(address: str, say: Callable[[str], None]) -> Any:
    """Ray's own client; the dashboard may still be starting, so refusals are tried again for a minute."""
    from ray.dashboard.modules.serve.sdk import ServeSubmissionClient
    from ray.exceptions import AuthenticationError

    deadline, told = time.monotonic() + _CONNECT_TIMEOUT_S, False
    while True:
        try:
            return ServeSubmissionClient(address)
        except ConnectionError as error:
            if not told:
                say(f"no Ray dashboard answers at {address} yet; trying for {_CONNECT_TIMEOUT_S:.0f} s")
                told = True
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"no Ray dashboard answers at {address}. On the head it is http://127.0.0.1:8265; from elsewhere "
                    "`ray dashboard cluster.yaml` makes a tunnel."
                ) from error
            time.sleep(_POLL_S)
        except (ValueError, RuntimeError, AuthenticationError) as error:
            raise ConfigError(str(error)) from error
