"""All cases, in the order in which they run: those that may break the gateway come last."""

from lab.conform.case import Case
from lab.conform.cases import cancel, clients, faults, headers, neighbours, requests, responses, streams

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
