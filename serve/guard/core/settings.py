"""How the guard behaves for one model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class GuardSettings:
    """Settings of the guard.

    Attributes:
        mode: `observe`: judge and count, change nothing. `heal`: hold back, rescue, rerun. `strict`: as `heal`, and
            what is still wrong after the last rerun is an error, whatever its severity.
        schema: What a mismatch with the schema of a tool (or of a JSON answer) that is not `strict` demands:
            `enforce` reruns, `warn` counts. Strict ones always rerun and never leave broken.
        reruns: How often an answer may run again.
        on_failure: After the last rerun: `error` sends an `integrity_violation`, `unclean` the answer as it is, marked.
        rescue: Whether leaked markup is read by our own parser and turned into calls where that is unambiguous.
        grammar: Format of the model's calls, if known; else the markup itself tells.
        hold_json: Hold strict JSON back until all of it is valid: a rerun can then always replace it.
        piece_chars: Size of the pieces in which a call's arguments are released.
    """

    mode: Literal["observe", "heal", "strict"] = "heal"
    schema: Literal["warn", "enforce"] = "enforce"
    reruns: int = 1
    on_failure: Literal["error", "unclean"] = "error"
    rescue: bool = True
    grammar: str | None = None
    hold_json: bool = False
    piece_chars: int = 2048
