"""Traffic files: JSON lines, one request each, in order of time; the first line may state what drafters accept."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from serve.errors import ConfigError
from serve.tools.simulation.request import ACCEPTANCE, KINDS, Drafter, SimRequest

_Chance = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Profiles = dict[str, Annotated[list[_Chance], msgspec.Meta(min_length=1)]]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    acceptance: _Profiles = msgspec.field(default_factory=dict)
    acceptance_at: list[tuple[float, _Profiles]] = msgspec.field(default_factory=list)


class _Line(msgspec.Struct):
    t_s: Annotated[float, msgspec.Meta(ge=0)]
    kind: str = msgspec.field(name="class")
    prompt_tokens: _Count
    output_tokens: Annotated[int, msgspec.Meta(ge=1)]
    session: str = ""
    prefix: tuple[str, _Count] | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests in order of time, and what drafters accept of them."""

    requests: Sequence[SimRequest]
    drafter: Drafter = field(default_factory=Drafter)

    def fresh(self) -> list[SimRequest]:
        """Returns the requests as they were before anything was played."""
        return [
            SimRequest(one.at_s, one.session, one.kind, one.prompt_tokens, one.output_tokens, one.prefix, one.features)
            for one in self.requests
        ]


def read_traffic(lines: Iterable[bytes]) -> Traffic:
    """Reads a traffic file. Requests without a session are conversations of their own.

    Raises:
        ConfigError: A line is no request, the times are not in order, or there is no request at all.
    """
    drafter = Drafter()
    requests: list[SimRequest] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            if not requests and _is_header(line):
                drafter = _drafter(msgspec.json.decode(line, type=_Header))
                continue
            request = _request(msgspec.json.decode(line, type=_Line), number)
        except (msgspec.DecodeError, ValueError) as error:
            raise ConfigError(f"line {number} of the traffic is no request: {error}") from error
        if requests and request.at_s < requests[-1].at_s:
            raise ConfigError(f"line {number} of the traffic is earlier than the one before it")
        requests.append(request)
    if not requests:
        raise ConfigError("the traffic holds no request")
    return Traffic(requests, drafter)


def _is_header(line: bytes) -> bool:
    value = json.loads(line)
    return isinstance(value, dict) and bool(value.keys() & {"acceptance", "acceptance_at"})


def _request(line: _Line, number: int) -> SimRequest:
    if line.kind not in KINDS:
        raise ValueError(f"`class` must be one of {', '.join(KINDS)}, not {line.kind!r}")
    if not math.isfinite(line.t_s):
        raise ValueError("`t_s` must be finite")
    session = line.session or f"line {number}"
    return SimRequest(line.t_s, session, line.kind, line.prompt_tokens, line.output_tokens, line.prefix or ("", 0))


def _drafter(header: _Header) -> Drafter:
    """Returns the profiles by time; a kind that a profile leaves out stays as it was."""
    profiles: list[tuple[float, Mapping[str, Sequence[float]]]] = []
    current: Mapping[str, Sequence[float]] = ACCEPTANCE
    for at_s, profile in [(-math.inf, header.acceptance), *sorted(header.acceptance_at, key=lambda entry: entry[0])]:
        if unknown := set(profile) - set(KINDS):
            raise ValueError(f"acceptance of unknown classes {sorted(unknown)}; known: {', '.join(KINDS)}")
        current = {**current, **profile}
        profiles.append((at_s, current))
    return Drafter(profiles)
