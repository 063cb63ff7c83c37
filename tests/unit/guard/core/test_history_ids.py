"""Kimi's ids: each call has its own, each result that of its call, and a conversation in order keeps all of them."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.guard.core.history_ids import HistoryIds


class Call(NamedTuple):
    id: str
    name: str = "bash"


class Result(NamedTuple):
    id: str


class Turn(NamedTuple):
    """Anything between two turns, such as a question."""


Item = Call | Result | Turn


def repaired(items: list[Item]) -> list[Item]:
    ids = HistoryIds()
    for item in items:
        if isinstance(item, Call):
            ids.note_call(item.id, item.name)
        elif isinstance(item, Result):
            ids.note_result(item.id)
    made: list[Item] = []
    between = True
    for item in items:
        if isinstance(item, Call):
            if between:
                ids.begin_turn()
            between = False
            made.append(Call(ids.call(item.id, item.name), item.name))
        else:
            between = True
            made.append(Result(ids.result(item.id)) if isinstance(item, Result) else item)
    return made


def answers(items: list[Item]) -> list[int | None]:
    """Which call each result answers, as its place: of the latest turn's calls of its id the next one, or the last."""
    latest: dict[str, list[int]] = {}
    answered: dict[str, int] = {}
    found: list[int | None] = []
    turn: set[str] = set()
    for place, item in enumerate(items):
        if isinstance(item, Call):
            if item.id not in turn:
                latest[item.id], answered[item.id] = [], 0
                turn.add(item.id)
            latest[item.id].append(place)
        else:
            turn = set()
        if isinstance(item, Result):
            calls = latest.get(item.id)
            found.append(calls[min(answered[item.id], len(calls) - 1)] if calls else None)
            answered[item.id] = answered.get(item.id, 0) + 1
    return found


NAMES = ["bash", "grep", "mcp.read"]
IDS = st.one_of(
    st.builds("functions.{}:{}".format, st.sampled_from(NAMES), st.integers(0, 4)),
    st.sampled_from(["", "call_1", "call_2", "grep:3", "functions.bash", "functions_bash_0"]),
)
ITEMS = st.lists(st.builds(Call, IDS, st.sampled_from(NAMES)) | st.builds(Result, IDS) | st.just(Turn()), max_size=14)


@given(ITEMS)
def test_every_call_has_an_id_of_its_own_and_every_result_that_of_its_call(items: list[Item]) -> None:
    made = repaired(items)
    ids = [item.id for item in made if isinstance(item, Call)]
    assert len(set(ids)) == len(ids)
    assert all(item.id.rpartition(":")[0] == f"functions.{item.name}" for item in made if isinstance(item, Call))
    given_results = [item for item in items if isinstance(item, Result)]
    results = [item for item in made if isinstance(item, Result)]
    for meant, before, after in zip(answers(items), given_results, results, strict=True):
        if meant is None:
            assert after == before
        else:
            call = made[meant]
            assert isinstance(call, Call)
            assert after.id == call.id


@given(ITEMS)
def test_a_repaired_conversation_is_in_order(items: list[Item]) -> None:
    made = repaired(items)
    assert repaired(made) == made


@given(ITEMS)
def test_a_result_whose_call_is_gone_becomes_no_other_calls(items: list[Item]) -> None:
    gone = [item.id for item, meant in zip([i for i in items if isinstance(i, Result)], answers(items), strict=True)
            if meant is None]  # fmt: skip
    new = {after.id for before, after in zip(items, repaired(items), strict=True)
           if isinstance(before, Call) and isinstance(after, Call) and before.id != after.id}  # fmt: skip
    assert new.isdisjoint(gone)


@pytest.mark.parametrize(
    ("items", "ids"),
    [
        ([Call("functions.bash:0"), Call("toolu_01", "mcp.read"), Call("call_x")],
         ["functions.bash:0", "functions.mcp.read:1", "functions.bash:2"]),
        ([Call("grep:3", "grep"), Call("grep:3", "grep"), Result("grep:3"), Result("grep:3")],
         ["functions.grep:0", "functions.grep:1", "functions.grep:0", "functions.grep:1"]),
        ([Call("functions.bash:1"), Call("call_x"), Result("call_x"), Result("functions.bash:1")],
         ["functions.bash:1", "functions.bash:2", "functions.bash:2", "functions.bash:1"]),
        ([Call("call_x"), Result("call_x"), Call("functions.bash:0"), Result("functions.bash:0")],
         ["functions.bash:1", "functions.bash:1", "functions.bash:0", "functions.bash:0"]),
        ([Result("functions.bash:0"), Call("call_1"), Result("call_1")],
         ["functions.bash:0", "functions.bash:1", "functions.bash:1"]),
        ([Call("functions.bash:0"), Result("functions.bash:0"), Call("functions.bash:0"), Result("functions.bash:0")],
         ["functions.bash:0", "functions.bash:0", "functions.bash:1", "functions.bash:1"]),
        ([Call("call_1", "a"), Result("call_1"), Turn(), Call("call_1", "b"), Result("call_1")],
         ["functions.a:0", "functions.a:0", "functions.b:1", "functions.b:1"]),
        ([Call("call_1", "a"), Turn(), Call("call_1", "b"), Result("call_1")],
         ["functions.a:0", "functions.b:1", "functions.b:1"]),
        ([Call("x"), Call("y"), Result("y"), Result("x"), Result("x")],
         ["functions.bash:0", "functions.bash:1", "functions.bash:1", "functions.bash:0", "functions.bash:0"]),
    ],
)  # fmt: skip
def test_a_known_conversation_is_put_in_order(items: list[Item], ids: list[str]) -> None:
    assert [item.id for item in repaired(items) if not isinstance(item, Turn)] == ids
