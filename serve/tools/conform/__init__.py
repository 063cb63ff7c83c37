"""How a gateway treats its neighbours: a table of cases that any OpenAI-compatible gateway can be put to."""

from serve.tools.conform.case import Case, Result, Verdict
from serve.tools.conform.cases import CASES
from serve.tools.conform.lab import Lab, Pace
from serve.tools.conform.report import Report
from serve.tools.conform.run import run, select

__all__ = ["CASES", "Case", "Lab", "Pace", "Report", "Result", "Verdict", "run", "select"]
