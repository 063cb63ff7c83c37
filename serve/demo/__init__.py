"""`specgate demo`: example requests against a running gateway, each with what must come back."""

from serve.demo.asking import ask
from serve.demo.cases import SEARCH, WEATHER, WRONG_MODEL, Case, Result, cases
from serve.demo.report import TRY_NEXT, Report, run

__all__ = ["SEARCH", "TRY_NEXT", "WEATHER", "WRONG_MODEL", "Case", "Report", "Result", "ask", "cases", "run"]
