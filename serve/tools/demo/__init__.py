"""`specgate demo`: example requests against a running gateway, each with what must come back."""

from serve.tools.demo.asking import ask
from serve.tools.demo.cases import SEARCH, WEATHER, WRONG_MODEL, Case, Result, cases
from serve.tools.demo.report import TRY_NEXT, Report, run

__all__ = ["SEARCH", "TRY_NEXT", "WEATHER", "WRONG_MODEL", "Case", "Report", "Result", "ask", "cases", "run"]
