"""Recorded requests as simulated traffic: what a recording does not say is assumed, and said so."""

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any
from zlib import crc32

import msgspec

from lab.simulation.request import JSON, PROSE, TOOLS, SimRequest
from lab.simulation.traffic import SESSIONS_BEGIN_S, Traffic, is_recorded_session, read_traffic
from policies.classes import BIT, GROUPS
from serve.errors import ConfigError, GatewayError
from serve.tools.decider import Decider

_BYTES_PER_TOKEN = 4
# Where a recording has neither the answer's length nor a limit.
_ANSWER_TOKENS = {TOOLS: 150, JSON: 250, PROSE: 400}
_TOOLS = sum(BIT[name] for name in GROUPS["tools"])
_JSON = sum(BIT[name] for name in (*GROUPS["json"], "structured"))


def read(lines: Sequence[bytes], decider: Decider, rate_per_s: float, speed: float = 1.0) -> tuple[Traffic, list[str]]:
    """Reads a traffic file, recorded sessions of agents, or requests in the format of `specgate replay`.

    Recorded requests may carry `t_s` and `output_tokens` beside `body` and `headers`.

    Args:
        lines: Of the file.
        decider: Reads the requests as the gateway does.
        rate_per_s: Of requests without a time.
        speed: How many times faster than recorded sessions of agents go.

    Returns:
        The traffic, and what was assumed.

    Raises:
        ConfigError: A line can't be read, or there is none.
    """
    first = next((line for line in lines if line.strip()), b"")
    if is_recorded_session(first):
        return read_traffic(lines, speed), [
            f"sessions begin at random within {SESSIONS_BEGIN_S / 60:g} minutes and go {speed:g} times as fast as "
            "recorded; all of their requests offer tools, and drafts are accepted as published for tool calls"
        ]
    if _member(first, "prompt_tokens") or _member(first, "acceptance") or _member(first, "acceptance_at"):
        return read_traffic(lines), []
    requests: list[SimRequest] = []
    timed = True
    for number, line in enumerate(lines, 1):
        if line.strip():
            at_s = len(requests) / rate_per_s
            try:
                request, has_time = _request(line, at_s, decider)
            except (ValueError, GatewayError) as error:
                raise ConfigError(f"line {number} of the traffic is no recorded request: {error}") from error
            requests.append(request)
            timed = timed and has_time
    if not requests:
        raise ConfigError("the traffic holds no request")
    requests.sort(key=lambda request: request.at_s)
    return Traffic(requests), _assumed(timed, rate_per_s)


def _assumed(timed: bool, rate_per_s: float) -> list[str]:
    found = [
        f"a token is {_BYTES_PER_TOKEN} bytes of the request; an answer without `output_tokens` is as long as the "
        f"request allows, at most {_ANSWER_TOKENS[TOOLS]} tokens with tools, {_ANSWER_TOKENS[JSON]} as JSON, "
        f"{_ANSWER_TOKENS[PROSE]} as prose"
    ]
    return found if timed else [*found, f"the recording has no times (`t_s`): {rate_per_s:g} requests a second, evenly"]


class _Record(msgspec.Struct):
    """What a line says beside the request, or a request by itself."""

    body: Any = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    t_s: Annotated[float, msgspec.Meta(ge=0)] | None = None
    output_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None


class _Limits(msgspec.Struct):
    max_completion_tokens: int | None = None
    max_tokens: int | None = None


def _request(line: bytes, at_s: float, decider: Decider) -> tuple[SimRequest, bool]:
    record = msgspec.json.decode(line, type=_Record)
    body = msgspec.json.decode(line) if record.body is None else record.body
    if isinstance(body, str):
        body = msgspec.json.decode(body)
    text = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    features, _ = decider(text, {name.lower(): value for name, value in record.headers.items()})
    kind = TOOLS if features.mask & _TOOLS else JSON if features.mask & _JSON else PROSE
    limits = msgspec.convert(body, _Limits)
    limit = limits.max_completion_tokens or limits.max_tokens or _ANSWER_TOKENS[kind]
    output = record.output_tokens or max(1, min(limit, _ANSWER_TOKENS[kind]))
    session = features.conversation_key or f"line at {at_s}"
    planned_for = features.of_model(next(iter(decider.config.models)))
    time_s = at_s if record.t_s is None else record.t_s
    tokens = len(text) // _BYTES_PER_TOKEN
    request = SimRequest(time_s, session, kind, tokens, output, _shared(body), planned_for)
    return request, record.t_s is not None


def _shared(body: dict[str, Any]) -> tuple[str, int]:
    """Returns the beginning that other conversations may share: tools and the system prompt."""
    system: Iterable[Any] = (each for each in body.get("messages") or () if each.get("role") == "system")
    text = json.dumps([body.get("tools"), next(iter(system), None)], ensure_ascii=False)
    return f"{crc32(text.encode('utf-8', 'surrogatepass')):08x}", len(text) // _BYTES_PER_TOKEN


def _member(line: bytes, name: str) -> bool:
    try:
        value = json.loads(line)
    except ValueError:
        return False
    return isinstance(value, dict) and name in value
