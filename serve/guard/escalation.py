"""Reruns that hold the engine to the schemas of the tools, for models with `guard.escalate: strict`."""

from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from policies import Candidate, Cell, Policy, decide, is_suspected
from serve.guard.core import Outcome
from serve.proxy.routed_request import RoutedRequest
from serve.request.completion import MALFORMED

# Damage that a grammar makes impossible: the model or its parser was at a loss for the form, not for words.
STRUCTURAL = frozenset({Outcome.INVALID_JSON, Outcome.SCHEMA_MISMATCH, Outcome.UNKNOWN_TOOL, Outcome.MARKER_LEAK})
_CALLABLE = frozenset({"auto", "required", "named"})


class _Body(Struct):
    tools: list[dict[str, Raw]]


_body = msgspec.json.Decoder(_Body).decode
_function = msgspec.json.Decoder(dict[str, Raw]).decode


def escalated(
    request: RoutedRequest, broken: Outcome, candidates: Sequence[Candidate], policy: Policy
) -> tuple[RoutedRequest, list[Candidate]] | None:
    """Returns a request again with strict tools, and where it may run so; None if that is of no use or not allowed.

    Args:
        request: Whose answer broke.
        broken: How.
        candidates: Where it may run again, best first.
        policy: In force.
    """
    features, trial = request.features, request.decision.trial
    loose = features.tools and features.tool_choice in _CALLABLE and not features.strict_tools
    if broken not in STRUCTURAL or not loose or (trial is not None and trial.paired):
        return None
    stricter = features._replace(strict_tools=True)
    allowed = decide(policy, stricter, stricter.preference).candidates
    model, request_class = request.decision.model, stricter.request_class
    sound = [
        each
        for each in candidates
        if not each.speculative
        and each in allowed
        and not is_suspected(policy, Cell(model, each.pool, each.speculative, request_class))
    ]
    if not sound:
        return None
    patch = request.patch.copy()
    try:
        patch.set("tools", _strict(request.patch.apply(request.body)))
    except MALFORMED:  # an engine may have taken what we do not
        return None
    return replace(request, patch=patch, features=stricter), sound


def _strict(body: bytes) -> bytes:
    """Returns the tools of a chat request, each of them strict."""
    tools = _body(body).tools
    for tool in tools:
        if "function" in tool:
            tool["function"] = Raw(msgspec.json.encode({**_function(tool["function"]), "strict": True}))
    return msgspec.json.encode(tools)
