"""Conformance tests that run against any OpenAI-compatible gateway: how it treats its clients and engines."""

from lab.conform.case import Case, CaseResult, CaseStatus
from lab.conform.cases import CASES
from lab.conform.cases.apis import API_CASES
from lab.conform.cases.security import SECURITY_CASES
from lab.conform.lab import Lab, Pace
from lab.conform.report import ConformanceReport
from lab.conform.runner import cases_for, run, select

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
