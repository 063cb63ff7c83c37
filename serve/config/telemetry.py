"""The configuration of traces and of the log."""

from typing import Annotated, Literal

from pydantic import Field

from serve.config.pool import Count, _Strict

# With a path: an exporter adds none, and collectors take spans at `/v1/traces`.
TracesUrl = Annotated[str, Field(pattern=r"^https?://[^/\s]+/\S+$", max_length=2048)]


class TelemetryConfig(_Strict):
    """Traces, and what the log says of requests. How lines are written is Ray Serve's `logging_config`.

    Attributes:
        traces_endpoint: Where the gateway and all vLLM engines send spans, by OTLP over HTTP, such as
            `http://collector:4318/v1/traces`. If not given, the gateway follows the OTEL_* variables, and engines send
            none.
        client_traces: `continue`: a request's spans join its client's trace. `link`: they form a trace of their own
            with a link to the client's, unknown to engines.
        log_requests: Share of requests with a log line, from 0 to 1. Requests with a 5xx, a further attempt or a rerun
            always have one. If not given, only engines' faults are logged, as warnings.
        warnings_per_minute: Warnings about requests for each gateway replica, pool and kind.
    """

    traces_endpoint: TracesUrl | None = None
    client_traces: Literal["continue", "link"] = "continue"
    log_requests: Annotated[float, Field(ge=0, le=1)] | None = None
    warnings_per_minute: Count = 6
