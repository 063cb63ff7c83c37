"""The table, in the order in which it is run: what a case may break comes last."""

from serve.tools.conform.case import Case
from serve.tools.conform.cases import cancel, clients, faults, headers, neighbours, requests, responses, streams

CASES: tuple[Case, ...] = (
    *requests.CASES,
    *responses.CASES,
    *headers.CASES,
    *clients.CASES,
    *streams.CASES,
    *cancel.CASES,
    *faults.CASES,
    *neighbours.CASES,
)
