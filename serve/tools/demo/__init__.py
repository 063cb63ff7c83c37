"""Example requests against a running gateway, each with a check of its answer."""

from serve.tools.demo.client import ask
from serve.tools.demo.examples import SEARCH, WEATHER, WRONG_MODEL, Example, ExampleResult, examples
from serve.tools.demo.incident import Incident
from serve.tools.demo.incident import run as run_incident
from serve.tools.demo.report import TRY_NEXT, DemoReport, run

__all__ = [
    "SEARCH",
    "TRY_NEXT",
    "WEATHER",
    "WRONG_MODEL",
    "DemoReport",
    "Example",
    "ExampleResult",
    "Incident",
    "ask",
    "examples",
    "run",
    "run_incident",
]
