"""The cases of `--security`, in the order in which they run: those that may break the gateway come last."""

from lab.conform.case import Case
from lab.conform.cases.security import answers, bombs, framing, identifiers, leaks, routes, slow, spellings

SECURITY_CASES: tuple[Case, ...] = (
    *framing.CASES,
    *leaks.CASES,
    *spellings.CASES,
    *identifiers.CASES,
    *routes.CASES,
    *answers.CASES,
    *slow.CASES,
    *bombs.CASES,
)
