"""Checks engine settings by the engines' own rules, before running engines are replaced."""

import importlib
import logging
import warnings
from collections.abc import Callable
from importlib.util import find_spec

from serve.config.gateway import GatewayConfig
from serve.config.pool import HOSTED
from serve.engine.kinds import kind_of
from serve.errors import ConfigError


def check_engines(config: GatewayConfig, say: Callable[[str], None]) -> None:
    """Checks pools by the simulated engine's settings, or by vLLM's command line where vLLM is installed.

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
