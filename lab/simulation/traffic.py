"""Traffic files: JSON lines, one request each, in order of time; the first line may state what drafters accept."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from lab.simulation.request import ACCEPTANCE, KINDS, Drafter, SimRequest
from serve.errors import ConfigError

_Chance = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Profiles = dict[str, Annotated[list[_Chance], msgspec.Meta(min_length=1)]]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_FORM = (
    "a request is a JSON object with `t_s`, `class`, `prompt_tokens` and `output_tokens`, and may have `session` and "
    "`prefix`; what drafters accept (`acceptance`, `acceptance_at`) only the first line may say"
)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    acceptance: _Profiles = msgspec.field(default_factory=dict)
    acceptance_at: list[tuple[float, _Profiles]] = msgspec.field(default_factory=list)


class _Line(msgspec.Struct):
    t_s: Annotated[float, msgspec.Meta(ge=0)]
    kind: str = msgspec.field(name="class")
    prompt_tokens: _Count
    output_tokens: Annotated[int, msgspec.Meta(ge=1)]
    session: str | int | None = None
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
    begun = False
    for number, line in enumerate(lines, 1):
        text = (line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line).strip()
        if not text:
            continue
        try:
            if not begun and _is_header(text):
                drafter = _drafter(msgspec.json.decode(text, type=_Header))
                begun = True
                continue
            request = _request(msgspec.json.decode(text, type=_Line), number)
        except (msgspec.DecodeError, ValueError) as error:
            raise ConfigError(f"line {number} of the traffic is no request: {error}; {_FORM}") from error
        begun = True
        if requests and request.at_s < requests[-1].at_s:
            raise ConfigError(
                f"line {number} of the traffic is earlier ({request.at_s:g} s) than the request before it "
                f"({requests[-1].at_s:g} s): sort the lines by `t_s`"
            )
        requests.append(request)
    if not requests:
        raise ConfigError(f"the traffic holds no request: {_FORM}")
    return Traffic(requests, drafter)


def _is_header(line: bytes) -> bool:
    value = msgspec.json.decode(line)
    return isinstance(value, dict) and bool(value.keys() & {"acceptance", "acceptance_at"})


def _request(line: _Line, number: int) -> SimRequest:
    if line.kind not in KINDS:
        raise ValueError(f"`class` must be one of {', '.join(KINDS)}, not {line.kind!r}")
    if not math.isfinite(line.t_s):
        raise ValueError("`t_s` must be finite")
    session = f"line {number}" if line.session in (None, "") else str(line.session)
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
