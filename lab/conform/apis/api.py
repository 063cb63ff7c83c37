"""One API: how its requests are written and its answers read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.conform.apis.turn import Turn
from lab.conform.client import Reply

Body = dict[str, Any]


@dataclass(frozen=True)
class Api:
    """One API.

    Attributes:
        name: As `--api` has it.
        path: Of its requests.
        headers: Headers of every request, given the gateway's key.
        first: Returns the body of a conversation's first request, given the model and the user's words.
        next: Returns the body of the next one, given the first one's, the answer and the results of its calls by id.
        read: Reads a whole answer, a stream or an error.
        tools: One tool, `look_up`.
        forced: The fields that force its call.
        thinking: The fields that turn thinking on.
        instructions: The field with the instructions for the whole conversation.
        limit: The field with the tokens that an answer may have.
        odd_fields: Fields that no gateway knows, on their own or inside others.
        odd_content: Bodies' fields with content, items or tools that no gateway knows; {mark} names the trial.
        malformed: Fields that make a body wrong.
        overflow: True for the error on which agents shorten their conversation.
    """

    name: str
    path: str
    headers: Callable[[str | None], Mapping[str, str]]
    first: Callable[[str, str], Body]
    next: Callable[[Body, Turn, Mapping[str, str]], Body]
    read: Callable[[Reply], Turn]
    tools: Sequence[Body]
    forced: Body
    thinking: Body
    instructions: str
    limit: str
    odd_fields: Body
    odd_content: Callable[[str], Mapping[str, Body]]
    malformed: Mapping[str, Body]
    overflow: Callable[[Turn], bool]


def events_of(reply: Reply, turn: Turn) -> list[tuple[str, dict[str, Any]]]:
    """Returns the events of a stream as (type, object); what is wrong with them goes to the turn's faults.

    Agents that read `event:` and agents that read `type` must see the same; `[DONE]` is none of either.
    """
    turn.fault_unless((reply.header("content-type") or "").startswith("text/event-stream"), "no text/event-stream")
    turn.fault_unless(reply.complete, "the connection broke")
    events = []
    for name, value in reply.events():
        if value is None:
            turn.fault_unless(False, "an event is no JSON object")
            continue
        kind = str(value.get("type"))
        turn.fault_unless(name == kind, f"an event {name!r} of type {kind!r}")
        events.append((kind, value))
    return events
