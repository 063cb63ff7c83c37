"""Which defects reach the client, whether a rerun repeats them or none is to be had."""

import copy
from typing import Any

import pytest
from support.guard_harness import TOOLS, call, calls, chunk, through, tools_request

from serve.config.guard import GuardConfig
from serve.guard.core import Guard, GuardState
from serve.guard.core.verdict import Severity, delivered_at_last, tolerated

SENT, MARKED, ERROR = "sent", "sent and marked", "error"
SOUND = '{"city":"Osaka","days":1}'
A_MEMBER_TOO_MANY = '{"city":"Osaka","days":1,"unit":"C"}'  # additionalProperties: false
CUT = '{"city":"Osa'
A_CUT_CHARACTER = '{"city":"Osa\ufffd","days":1}'

HEAL, STRICT, UNCLEAN = GuardConfig(), GuardConfig(mode="strict"), GuardConfig(on_failure="unclean")
STRICT_UNCLEAN = GuardConfig(mode="strict", on_failure="unclean")


def request(strict: bool) -> dict[str, Any]:
    tools = copy.deepcopy(TOOLS)
    for tool in tools:
        tool["function"]["strict"] = strict
    return {**tools_request(), "tools": tools}


def answer(arguments: str) -> list[dict[str, Any]]:
    return [chunk(calls(call(0, "get_weather", arguments))), chunk({}, "tool_calls")]


@pytest.mark.parametrize("reruns", [0, 1])
@pytest.mark.parametrize("attempts", [1, 2], ids=["no other attempt is to be had", "the rerun repeats it"])
@pytest.mark.parametrize(
    ("arguments", "strict", "settings", "end"),
    [
        (SOUND, True, STRICT, SENT),
        (A_MEMBER_TOO_MANY, False, HEAL, MARKED),
        (A_MEMBER_TOO_MANY, False, GuardConfig(schema="warn"), SENT),
        (A_MEMBER_TOO_MANY, False, STRICT, ERROR),
        (A_MEMBER_TOO_MANY, False, STRICT_UNCLEAN, ERROR),
        (A_MEMBER_TOO_MANY, True, HEAL, ERROR),
        (A_MEMBER_TOO_MANY, True, UNCLEAN, MARKED),
        (CUT, False, HEAL, ERROR),
        (CUT, False, UNCLEAN, MARKED),
        (CUT, False, STRICT_UNCLEAN, ERROR),
        (A_CUT_CHARACTER, False, HEAL, MARKED),
        (A_CUT_CHARACTER, True, STRICT, MARKED),
    ],
)
def test_a_call_that_no_attempt_mends_ends_as_its_severity_says(
    arguments: str, strict: bool, settings: GuardConfig, end: str, attempts: int, reruns: int
) -> None:
    guard = Guard(GuardConfig(**{**vars(settings), "reruns": reruns}), request(strict))
    sent = through(guard, *[answer(arguments)] * attempts)
    delivered = any(choice["delta"].get("tool_calls") for each in sent for choice in each.get("choices", ()))
    marked = any("unclean" in each.get("specgate", ()) for each in sent)
    assert (delivered, marked, guard.state) == {
        SENT: (True, False, GuardState.DONE),
        MARKED: (True, True, GuardState.DONE),
        ERROR: (False, False, GuardState.FAILED),
    }[end]


@pytest.mark.parametrize("settings", [HEAL, STRICT, UNCLEAN, STRICT_UNCLEAN])
def test_what_holds_nothing_back_may_be_sent_and_a_note_always(settings: GuardConfig) -> None:
    for last in (False, True):
        for suspected in (False, True):
            allowed = tolerated(settings, last=last, suspected=suspected)
            assert Severity.NOTE in allowed
            assert allowed <= delivered_at_last(settings)
