"""How a gateway treats its neighbours: a table of cases that any OpenAI-compatible gateway can be put to."""

from serve.conform.case import Case, Result, Verdict
from serve.conform.cases import CASES
from serve.conform.lab import Lab, Pace
from serve.conform.report import Report
from serve.conform.run import run, select

__all__ = ["CASES", "Case", "Lab", "Pace", "Report", "Result", "Verdict", "run", "select"]
