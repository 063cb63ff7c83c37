"""The state of quarantine as a file keeps it: whatever is there, only numbers that can be true come out of it."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from serve.quarantine.evidence import TrialCounts
from serve.quarantine.record import BLOCKS, By, Status

MOST_BYTES = 64 * 2**20
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Time = Annotated[float, msgspec.Meta(ge=0, lt=1e12)]
_Cell = tuple[str, str, bool, str]
_KINDS = len(TrialCounts._fields)
_Block = Annotated[list[_Count], msgspec.Meta(min_length=_KINDS, max_length=_KINDS)]


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    cell: _Cell
    outcomes: dict[str, _Count]
    trials: Annotated[list[_Block], msgspec.Meta(max_length=BLOCKS)]
    own_share: _Share
    suspected: bool
    status: Status
    held: bool
    by: By
    since_s: _Time
    why: str
    decided_by: _Count


class _Echo(msgspec.Struct, forbid_unknown_fields=True):
    key: tuple[str, str, bool]
    build: str
    trials: _Count
    corrupted: _Count
    judged: bool
    status: Status
    since_s: _Time
    why: str


class _Change(msgspec.Struct, forbid_unknown_fields=True):
    cell: _Cell
    status: Status
    by: By
    at_s: _Time
    why: str
    held: bool
    answers: _Count
    operator: str


class _Kept(msgspec.Struct):
    version: int
    entries: list[_Entry]
    changes: list[_Change]
    echoes: list[_Echo] = []
    revision: _Count = 1
    reports: dict[str, _Count] = {}


def parsed(data: bytes) -> Mapping[str, Any]:
    """Returns the state in a file's content.

    Raises:
        ValueError: It is none.
    """
    try:
        msgspec.json.decode(data, type=_Kept)
        kept: Mapping[str, Any] = json.loads(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"no state of quarantine: {error}") from None
    return kept
