"""The cases of `--security`, in the order in which they run: those that may break the gateway come last."""

from serve.tools.conform.case import Case
from serve.tools.conform.cases.security import answers, bombs, framing, identifiers, leaks, routes, slow, spellings

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
