"""How a gateway treats its neighbours: a table of cases that any OpenAI-compatible gateway can be put to."""

from serve.tools.conform.case import Case, CaseResult, CaseStatus
from serve.tools.conform.cases import CASES
from serve.tools.conform.lab import Lab, Pace
from serve.tools.conform.report import ConformanceReport
from serve.tools.conform.runner import run, select

__all__ = ["CASES", "Case", "CaseResult", "CaseStatus", "ConformanceReport", "Lab", "Pace", "run", "select"]
