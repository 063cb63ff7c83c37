"""The line of one request in the log, as fields."""

import time
from typing import Any

from serve.proxy.exchange import Exchange


def log_fields(exchange: Exchange, path: str) -> dict[str, Any]:
    """Returns what a request's line holds: ids, names and figures, and nothing that a client or a model wrote.

    Args:
        exchange: Of the request, which has ended.
        path: That the client asked for.
    """
    served = exchange.attribution
    fields: dict[str, Any] = {
        "request_id": exchange.request_id,
        "engine_id": served.engine_id,
        "path": path,
        "status": exchange.status,
        "error": exchange.error,
        "tenant": exchange.principal.tenant.name,
        "model": served.model,
        "pool": served.pool,
        "speculative": served.speculative,
        "reasons": ",".join(served.reasons),
        "rerun": served.reran,
        "faults": served.faults,
        "near_copies": served.near_copies,
        "stream": exchange.streaming,
        "waited_ms": round(served.waited_s * 1000),
        "duration_ms": round((time.monotonic() - exchange.arrived_s) * 1000),
    }
    if (traced := exchange.span.get_span_context()).is_valid:
        fields["trace_id"] = f"{traced.trace_id:032x}"
    return fields
