"""Deploys a Serve config to a running cluster: reads and checks it, splits it into applications, one for the gateway
and one for each pool that runs in the cluster, sends it, and waits until it runs.
"""

import importlib
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serve.config import yaml_files
from serve.config.gateway import GatewayConfig, args_of
from serve.config.pool import HOSTED
from serve.engine.kinds import kind_of
from serve.errors import ConfigError
from serve.launch.local import cause_of

if TYPE_CHECKING:
    from serve.app import PoolArgs

_CONNECT_TIMEOUT_S = 60.0
_POLL_S = 1.0
_MORE = "For details see the replica's log, in Ray's dashboard or under session_latest/logs/serve on its node."
# Fields that only the gateway reads: promoting a canary must not restart its engines.
_POLICY_OF_MODEL = {"version": True, "quantization": True, "hybrid": True, "guard": True}
_POLICY_OF_POOL = {"proven": True, "canary_share": True, "facts": True}
_SHARED_KEYS = ("runtime_env", "logging_config")


def use_token() -> None:
    """Makes Ray's client send a token, if there is one here. Call it before Ray is imported.

    A Ray cluster requires a token once there is one on its head; by default, Ray's client sends none.
    """
    in_environment = any(map(os.environ.get, ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")))
    if in_environment or (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def serve_document(path: str | Path) -> dict[str, Any]:
    """Reads a Serve config file with everything that it extends, and checks what can be checked without a cluster.

    Raises:
        ConfigError: Ray Serve would reject it, or would silently ignore a part of it.
    """
    document = yaml_files.read(path)
    if "applications" not in document:
        raise ConfigError(f"{path} is the gateway's part alone; a Serve config has it as an application's `args`")
    config = GatewayConfig.parse(args_of(document, path), path)
    _check_serve_keys(document, path)
    _check_update(document, config, path)
    return document


def _check_serve_keys(document: Mapping[str, Any], path: str | Path) -> None:
    """Rejects unknown keys: Ray Serve ignores them, so that a typing error would pass unnoticed."""
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
                raise ConfigError(f"{path}: Ray Serve has no key {place}{key}")
    try:
        ServeDeploySchema.model_validate(document)
    except ValidationError as error:
        lines = (f"  {'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
        raise ConfigError(f"Ray Serve rejects {path}:\n" + "\n".join(lines)) from error


def check_engines(config: GatewayConfig, say: Callable[[str], None]) -> None:
    """Checks pools by their engines' own rules: the simulated engine's settings, or vLLM's command line where vLLM is
    installed.

    Raises:
        ConfigError: An engine would not start with its settings.
    """
    kinds = [*HOSTED]
    if any(config.each_pool("vllm")) and (reason := _vllm_is_missing()):
        say(f"engine arguments are not checked here: {reason}")
        kinds.remove("vllm")
    for name, model, pool, settings in config.each_pool(*kinds):
        try:
            kind_of(settings.kind).check(name, model, pool)
        except ConfigError as error:
            raise ConfigError(f"{name}/{pool}: {error}; --accept-hazards deploys it anyway") from error


def _vllm_is_missing() -> str:
    """Returns why vLLM can't be loaded; empty if it can. On a head without GPU it may be installed but not load."""
    if find_spec("vllm") is None:
        return "vLLM is not installed"
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # warnings about this machine concern no engine
    try:
        with warnings.catch_warnings(action="ignore"):
            importlib.import_module("serve.engine.vllm.host")
    except (ImportError, RuntimeError) as error:
        return f"vLLM can't be loaded: {error}"
    finally:
        logging.disable(disabled)
    return ""


def _check_update(document: Mapping[str, Any], config: GatewayConfig, path: str | Path) -> None:
    """Rejects what the gateway would refuse, and tell of in its log alone, while it serves with what it had before."""
    from serve.app import GATEWAY_NAME
    from serve.gateway.policy_updates import read_update
    from serve.gateway.pools import Scale

    (application,) = document["applications"]
    for deployment in application.get("deployments") or ():
        try:
            if deployment["name"] == GATEWAY_NAME:
                read_update(deployment.get("user_config") or {}, config, Scale(config))
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"{path}: deployments, {GATEWAY_NAME}: {error}") from error


def submit(document: Mapping[str, Any], address: str, say: Callable[[str], None]) -> None:
    """Sends the document to a cluster; see `split_applications` for what Ray replaces.

    Raises:
        ConfigError: The dashboard does not respond within a minute, or Ray rejects the document.
    """
    client = _client(address, say)
    try:
        for line in _kept_options(document, client.get_serve_details()):
            say(line)
        client.deploy_applications(split_applications(document))
    except RuntimeError as error:  # Ray's client raises it for any status but 200
        raise ConfigError(f"the cluster at {address} rejects the config: {error}") from error
    except OSError as error:  # from the HTTP library
        raise ConfigError(f"the cluster at {address} broke off; is its head busy? Deploy again: {error}") from error


def _kept_options(document: Mapping[str, Any], details: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line for each HTTP option that has no effect: Serve keeps those it was started with."""
    running = details.get("http_options") or {}
    for name, wanted in (document.get("http_options") or {}).items():
        if name in running and running[name] != wanted:
            yield (
                f"http_options.{name} stays {running[name]}, not {wanted}: Ray Serve reads it when it starts. "
                "To change it, run `serve shutdown`, which stops all applications, and `specgate deploy` again."
            )


def wait_until_running(address: str, timeout_s: float, say: Callable[[str], None]) -> None:
    """Reports each deployment as it becomes healthy, and what others wait for, until all applications run.

    Raises:
        ConfigError: A deployment failed (its own error), or not all are up within `timeout_s` seconds.
    """
    from serve.app import ROOT

    client = _client(address, say)
    started_s = time.monotonic()
    up: set[str] = set()
    last_messages: dict[str, str] = {}
    while True:
        applications = _applications(client, address)
        deployments = {
            name: deployment
            for application in applications.values()
            for name, deployment in application.get("deployments", {}).items()
            if name != ROOT
        }
        waiting = {name: each.get("message") for name, each in deployments.items() if each["status"] != "HEALTHY"}
        for name in deployments:
            if name not in waiting and name not in up:
                up.add(name)
                say(f"{name} is up after {time.monotonic() - started_s:.0f} s")
        if {application["status"] for application in applications.values()} == {"RUNNING"}:
            return
        _raise_failures(applications, waiting)
        for name, message in waiting.items():
            if message and message != last_messages.get(name):
                last_messages[name] = message
                say(f"{name}: {cause_of(message)}")
        if time.monotonic() - started_s > timeout_s:
            names = ", ".join(waiting) or "the applications"
            raise ConfigError(f"not up within {timeout_s:.0f} s: {names}; `serve status` shows what each waits for")
        time.sleep(_POLL_S)


def _raise_failures(applications: Mapping[str, Any], waiting: Mapping[str, str | None]) -> None:
    """Raises a `ConfigError` if an application has failed: with what its deployments say, or else in its own words.
    `waiting` has each deployment that is not healthy, with its message if there is one.
    """
    failed = sorted(name for name, each in applications.items() if each["status"] in ("DEPLOY_FAILED", "UNHEALTHY"))
    if failed:
        texts = [f"{name}: {cause_of(message)}" for name, message in waiting.items() if message]
        texts = texts or [f"{name}: {applications[name]['message'] or applications[name]['status']}" for name in failed]
        raise ConfigError("\n".join((*texts, _MORE)))


def _applications(client: Any, address: str) -> dict[str, Any]:
    """Returns the applications' status; empty while the head does not respond, which is no reason to give up."""
    try:
        applications: dict[str, Any] = client.get_serve_details().get("applications", {})
    except OSError:
        return {}
    except RuntimeError as error:
        raise ConfigError(f"the cluster at {address} no longer reports its status: {error}") from error
    return applications


def _client(address: str, say: Callable[[str], None]) -> Any:
    """Returns Ray's own client; retries for a minute, because the dashboard may still be starting."""
    from ray.dashboard.modules.serve.sdk import ServeSubmissionClient
    from ray.exceptions import AuthenticationError

    deadline_s = time.monotonic() + _CONNECT_TIMEOUT_S
    reported = False
    while True:
        try:
            return ServeSubmissionClient(address)
        except ConnectionError as error:
            if not reported:
                say(f"no Ray dashboard responds at {address} yet; retrying for {_CONNECT_TIMEOUT_S:.0f} s")
                reported = True
            if time.monotonic() > deadline_s:
                raise ConfigError(
                    f"no Ray dashboard responds at {address}. On the head it is http://127.0.0.1:8265; from elsewhere "
                    "`ray dashboard cluster.yaml` opens a tunnel."
                ) from error
            time.sleep(_POLL_S)
        except (ValueError, RuntimeError, AuthenticationError) as error:
            raise ConfigError(str(error)) from error


def split_applications(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the Serve config with an application for the gateway, and one for each pool that runs in the cluster.

    Ray Serve versions an application by its `args`: any change of them replaces all its replicas. So each application's
    `args` hold only what its replicas depend on; options that can change in place are in its `deployments`.

    Raises:
        ConfigError: The document's `deployments` name an unknown deployment.
    """
    from serve.app import GATEWAY_NAME, deployment_name, gateway_options, hosted, pool_options

    (application,) = document["applications"]
    config = GatewayConfig.parse(application["args"])
    pools = {deployment_name(*key): pool for key, pool in hosted(config).items()}
    options = {GATEWAY_NAME: gateway_options(config)}
    for name, pool in pools.items():
        options[name] = pool_options(pool.config.pools[pool.pool])
    stated = {deployment["name"]: deployment for deployment in application.get("deployments", ())}
    if unknown := sorted(stated.keys() - options.keys()):
        raise ConfigError(f"`deployments` names {', '.join(unknown)}; there are {', '.join(options)}")
    for name, pool in pools.items():
        if (count := _stated_replicas(stated.get(name, {}))) is not None:
            options[GATEWAY_NAME]["user_config"]["least_replicas"][pool.model][pool.pool] = count
    deployments = {name: _laid_over({"name": name, **own}, stated.get(name, {})) for name, own in options.items()}
    gateway = {
        **application,
        "import_path": "serve.app:build_gateway",
        "args": _gateway_args(config),
        "deployments": [deployments[GATEWAY_NAME]],
    }
    shared = {key: application[key] for key in _SHARED_KEYS if key in application}
    engines = [
        {
            **shared,
            "name": name,
            "route_prefix": None,
            "import_path": "serve.app:build_pool",
            "args": _pool_args(pool),
            "deployments": [deployments[name]],
        }
        for name, pool in pools.items()
    ]
    return {**document, "applications": [gateway, *engines]}


def _stated_replicas(stated: Mapping[str, Any]) -> int | None:
    """Returns how many replicas a pool's own entry in `deployments` wants at least; None if it says nothing."""
    if scaling := stated.get("autoscaling_config"):
        return int(scaling.get("min_replicas", 1))
    count = stated.get("num_replicas")
    return count if isinstance(count, int) else None


def _laid_over(values: Mapping[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options with others in their place, but keeps what the gateway must know."""
    user_config = {**values.get("user_config", {}), **(stated.get("user_config") or {})}
    return {**values, **stated, **({"user_config": user_config} if user_config else {})}


def _gateway_args(config: GatewayConfig) -> dict[str, Any]:
    from serve.app import CHANGEABLE_OF_GATEWAY, CHANGEABLE_OF_POOL

    options = dict.fromkeys(CHANGEABLE_OF_POOL, True)
    hosted = {
        name: {"pools": {pool: options for pool, settings in model.pools.items() if settings.kind != "remote"}}
        for name, model in config.models.items()
    }
    exclude: dict[str, Any] = {**dict.fromkeys(CHANGEABLE_OF_GATEWAY, True), "models": hosted}
    return config.model_dump(mode="json", exclude_defaults=True, exclude=exclude)


def _pool_args(args: "PoolArgs") -> dict[str, Any]:
    from serve.app import CHANGEABLE_OF_POOL

    own_pool = {args.pool: {**_POLICY_OF_POOL, **dict.fromkeys(CHANGEABLE_OF_POOL, True)}}
    exclude: dict[str, Any] = {"config": {**_POLICY_OF_MODEL, "pools": own_pool}}
    return args.model_dump(mode="json", exclude_defaults=True, exclude=exclude)
