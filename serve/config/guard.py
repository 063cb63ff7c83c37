"""How one model's answers are guarded, as the configuration says it."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class GuardConfig:
    """The guard of one model; see docs/guard.md.

    Attributes:
        mode: `heal`: hold back, rescue, rerun. `strict`: as `heal`, and every schema counts as strict. `observe`: judge
            and count, change nothing. `off`: don't look.
        schema: A mismatch with a schema that is not `strict`: `enforce` reruns, `warn` counts.
        reruns: How often a broken answer may run again.
        on_failure: When the last rerun is broken too: `error`, or `unclean`: the answer as it is, marked.
        rescue: Whether calls that leaked into the text are read by our own parser where that is unambiguous.
        hold_json: Hold JSON answers back until they are whole, so that a rerun can always replace them.
        history: Malformed calls of earlier turns: `fix` them, `warn` (count them), or `off`.
    """

    mode: Literal["off", "observe", "heal", "strict"] = "heal"
    schema: Literal["warn", "enforce"] = "enforce"
    reruns: Annotated[int, Field(ge=0, le=5)] = 1
    on_failure: Literal["error", "unclean"] = "error"
    rescue: bool = True
    hold_json: bool = False
    history: Literal["off", "warn", "fix"] = "fix"

    @property
    def heals(self) -> bool:
        """Whether a broken answer is kept from the client and run again."""
        return self.mode in ("heal", "strict") and self.reruns > 0
