"""Conformance tests that run against any OpenAI-compatible gateway: how it treats its clients and engines."""

from serve.tools.conform.case import Case, CaseResult, CaseStatus
from serve.tools.conform.cases import CASES
from serve.tools.conform.cases.apis import API_CASES
from serve.tools.conform.cases.security import SECURITY_CASES
from serve.tools.conform.lab import Lab, Pace
from serve.tools.conform.report import ConformanceReport
from serve.tools.conform.runner import cases_for, run, select

__all__ = [
    "API_CASES",
    "CASES",
    "SECURITY_CASES",
    "Case",
    "CaseResult",
    "CaseStatus",
    "ConformanceReport",
    "Lab",
    "Pace",
    "cases_for",
    "run",
    "select",
]
