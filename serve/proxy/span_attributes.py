"""Attributes of a request's span and its attempts', by conventions' names where there are any; only where traced."""

import msgspec
from msgspec import Raw
from opentelemetry.trace import Span

from policies import Candidate, Decision
from serve.http1.client import Origin
from serve.limits.answer_meter import AnyMeter
from serve.proxy.routed_request import RoutedRequest
from serve.proxy.upstream import UpstreamResponse
from serve.request.completion import CHAT_PATH, TEXT_PATH, given
from serve.telemetry.spans import Attribute, fail

_FAILED = 400
_OPERATIONS = {CHAT_PATH: "chat", TEXT_PATH: "text_completion"}
_PROVIDERS = {"vllm": "vllm", "remote": "openai", "sim": "specgate.sim"}


def decision_attributes(request_id: str, decision: Decision) -> dict[str, Attribute]:
    """Returns what the span of a request says of its decision."""
    return {
        "specgate.request_id": request_id,
        "specgate.model": decision.model,
        "specgate.pool": decision.pool or "",
        "specgate.speculative": decision.speculative,
        "specgate.classes": list(decision.classes),
        "specgate.reasons": list(decision.advisories),
        "specgate.refused": decision.refused,
    }


def attempt_name(request: RoutedRequest) -> str:
    """Returns the span's name: the operation and the model."""
    operation = _OPERATIONS.get(request.path)
    return f"POST {request.path}" if operation is None else f"{operation} {request.decision.model}"


def attempt_attributes(
    request: RoutedRequest, candidate: Candidate, url: str, kind: str, number: int
) -> dict[str, Attribute]:
    """Returns what is known of an attempt before it is sent. `number` counts from 1, reruns included."""
    origin = Origin.of(url)
    attributes: dict[str, Attribute] = {
        "gen_ai.provider.name": _PROVIDERS[kind],
        "gen_ai.request.model": request.decision.model,
        "server.address": origin.host,
        "server.port": origin.port,
        "specgate.pool": candidate.pool,
        "specgate.speculative": candidate.speculative,
        "specgate.attempt": number,
    }
    if request.continued is not None:
        attributes["specgate.resumed"] = request.continued.prefix.tokens
    if operation := _OPERATIONS.get(request.path):
        attributes["gen_ai.operation.name"] = operation
    if request.features.stream:
        attributes["gen_ai.request.stream"] = True
    parsed = request.parsed
    if parsed.n not in (None, 1):
        attributes["gen_ai.request.choice.count"] = parsed.n
    max_tokens = parsed.max_completion_tokens if given(parsed.max_completion_tokens) else parsed.max_tokens
    for name, value in (("max_tokens", _number(max_tokens)), ("temperature", _number(parsed.temperature))):
        if value is not None:
            attributes[f"gen_ai.request.{name}"] = value
    return attributes


def tell_beginning(span: Span, response: UpstreamResponse, after_s: float) -> None:
    """Adds to an attempt's span that the response has begun. `after_s` is the time since the request was sent."""
    span.set_attribute("http.response.status_code", response.status)
    if response.status >= _FAILED:
        fail(span, str(response.status))
    if response.is_stream:
        span.set_attribute("gen_ai.response.time_to_first_chunk", after_s)


def tell_usage(span: Span, meter: AnyMeter) -> None:
    """Adds to an attempt's span what it used, if the engine has reported that."""
    if (usage := meter.usage) is not None:
        span.set_attribute("gen_ai.usage.input_tokens", usage.input)
        span.set_attribute("gen_ai.usage.cache_read.input_tokens", usage.cached)
        span.set_attribute("gen_ai.usage.output_tokens", usage.output)


def _number(value: Raw) -> int | float | None:
    """Returns a field of a request if it is a number."""
    number = msgspec.json.decode(value) if given(value) else None
    return number if isinstance(number, int | float) and not isinstance(number, bool) else None
