"""Calls functions whose parameters differ from one vLLM to the next."""

import inspect
from collections.abc import Callable
from typing import Any


def accepted(function: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments that this version's function has."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in given.items() if name in known}
