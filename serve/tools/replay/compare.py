"""Counts decisions over recorded traffic."""

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from policies import Decision
from serve.errors import GatewayError, InvalidRequestError
from serve.tools.doctor.decider import Decider


class _RecordedRequest(msgspec.Struct):
    """A line with body and headers; a line may also be just a body."""

    body: msgspec.Raw = msgspec.Raw(b"")
    headers: dict[str, str] = msgspec.field(default_factory=dict)


_DECODER = msgspec.json.Decoder(_RecordedRequest)


@dataclass
class _DecisionCounts:
    """Counts of one policy's decisions.

    Attributes:
        diverted: Requests that an advisory kept from speculating, by advisory.
        alone: Those of them that no other advisory would have diverted.
    """

    requests: int = 0
    speculative: int = 0
    optimistic: int = 0
    opt_out: int = 0
    refused: int = 0
    pools: Counter[str] = field(default_factory=Counter)
    classes: Counter[tuple[str, bool]] = field(default_factory=Counter)
    diverted: Counter[str] = field(default_factory=Counter)
    alone: Counter[str] = field(default_factory=Counter)

    def add(self, decision: Decision) -> None:
        self.requests += 1
        self.speculative += decision.speculative
        self.optimistic += decision.optimistic
        self.opt_out += decision.opt_out
        self.refused += decision.refused
        self.pools[where(decision)] += 1
        self.classes[decision.classes[0], decision.speculative] += 1
        if not decision.speculative:
            causes = {reason.advisory for reason in decision.reasons if reason.effect == "forbid"}
            self.diverted.update(causes)
            if len(causes) == 1:
                self.alone.update(causes)

    def to_dict(self) -> dict[str, Any]:
        kinds = sorted({kind for kind, _ in self.classes})
        return {
            "speculative_share": self.speculative / self.requests if self.requests else 0.0,
            "speculative": self.speculative,
            "optimistic": self.optimistic,
            "opt_out": self.opt_out,
            "refused": self.refused,
            "pools": dict(self.pools.most_common()),
            "classes": {
                kind: {"speculative": self.classes[kind, True], "other": self.classes[kind, False]} for kind in kinds
            },
            "advisories": {
                name: {"diverted": count, "alone": self.alone[name]} for name, count in self.diverted.most_common()
            },
        }


def compare(a: Decider, b: Decider | None, lines: Iterable[bytes]) -> dict[str, Any]:
    """Decide every recorded request with one policy or with two. Each line holds one JSON value.

    Returns:
        A report as plain values; `changes` lists the different decisions by kind, most frequent first.
    """
    started = time.perf_counter()
    counts = _DecisionCounts(), _DecisionCounts()
    changes: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], int] = {}
    invalid: Counter[str] = Counter()
    requests = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        requests += 1
        try:
            body, headers = _request(line)
            decisions = [decider(body, headers)[1] for decider in (a, b) if decider is not None]
        except GatewayError as error:
            invalid[error.message] += 1
            continue
        for side, decision in zip(counts, decisions, strict=False):
            side.add(decision)
        if b is not None and where(decisions[0]) != where(decisions[1]):
            change = where(decisions[0]), where(decisions[1])
            changes[change] += 1
            first.setdefault(change, number)
    return {
        "requests": requests,
        "invalid": sum(invalid.values()),
        "invalid_because": dict(invalid.most_common(10)),
        "seconds": time.perf_counter() - started,
        "a": {"policy": a.policy.digest, **counts[0].to_dict()},
        "b": {"policy": b.policy.digest, **counts[1].to_dict()} if b is not None else None,
        "different": sum(changes.values()),
        "changes": [
            {"a": change[0], "b": change[1], "requests": count, "first_line": first[change]}
            for change, count in changes.most_common()
        ],
    }


def where(decision: Decision) -> str:
    """Returns the pool and its mode, for tables."""
    if decision.refused:
        return f"{decision.model}: refused"
    how = "speculative" if decision.speculative else "opted out" if decision.opt_out else "standard"
    return f"{decision.model}/{decision.pool} ({how})"


def _request(line: bytes) -> tuple[bytes, Mapping[str, str]]:
    try:
        record = _DECODER.decode(line)
    except msgspec.DecodeError as error:
        raise InvalidRequestError(f"The line is not a recorded request: {error}.") from error
    body = bytes(record.body)
    if not body:
        return line, {}
    if body[:1] == b'"':  # some recorders store the body as a string
        body = str(json.loads(body)).encode()
    return body, {name.lower(): value for name, value in record.headers.items()}
