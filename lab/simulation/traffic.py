"""Traffic files: JSON lines, one request each, in order of time; the first line may state what drafters accept.

Or a line is a recorded session of an agent (`lab.simulation.traces`). Files may be compressed with gzip.
"""

import gzip
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import msgspec

from lab.simulation.request import ACCEPTANCE, KINDS, Drafter, SimRequest
from lab.simulation.traces import arrivals, read_trace, requests_of
from serve.errors import ConfigError

_Chance = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Profiles = dict[str, Annotated[list[_Chance], msgspec.Meta(min_length=1)]]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_FORM = (
    "a request is a JSON object with `t_s`, `class`, `prompt_tokens` and `output_tokens`, and may have `session` and "
    "`prefix`; what drafters accept (`acceptance`, `acceptance_at`) only the first line may say"
)
_GZIP = b"\x1f\x8b"
SESSIONS_BEGIN_S = 3600.0  # recorded ones, in which they begin at random
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
        return [replace(one) for one in self.requests]


def lines_of(path: Path) -> list[bytes]:
    """Returns the lines of a file, which may be compressed.

    Raises:
        ConfigError: It can't be read.
    """
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if data.startswith(_GZIP) else data).splitlines()
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path} can't be read: {error}") from error


def is_recorded_session(line: bytes) -> bool:
    """Returns whether a line is a recorded session of an agent, and no request."""
    try:
        value = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return False
    return isinstance(value, dict) and isinstance(value.get("requests"), list)


def read_traffic(lines: Sequence[bytes], speed: float = 1.0) -> Traffic:
    """Reads a traffic file. Requests without a session are conversations of their own.

    Args:
        lines: Of the file.
        speed: How many times faster than recorded sessions of agents go.

    Raises:
        ConfigError: A line is no request, the times are not in order, or there is no request at all.
    """
    if is_recorded_session(next((line for line in lines if line.strip()), b"")):
        return _sessions(lines, speed)
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


def _sessions(lines: Sequence[bytes], speed: float) -> Traffic:
    traces = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                traces.append(read_trace(line))
            except ValueError as error:
                raise ConfigError(f"line {number} of the traffic is no recorded session: {error}") from error
    requests = requests_of(arrivals(traces, len(traces), SESSIONS_BEGIN_S, speed, 1))
    if not requests:
        raise ConfigError("the recorded sessions hold no request")
    return Traffic(requests)


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
