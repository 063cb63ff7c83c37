"""Example requests against a running gateway, each with a check of its answer."""

from lab.demo.client import ask
from lab.demo.examples import SEARCH, WEATHER, WRONG_MODEL, Example, ExampleResult, examples
from lab.demo.incident import Incident
from lab.demo.incident import run as run_incident
from lab.demo.report import TRY_NEXT, DemoReport, run

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
