"""The guard's settings for one model, used as they are by the configuration and by the guard's core.

A dataclass of the standard library, so that the core stays free of pydantic. Pydantic enforces the types, the bounds
and `__pydantic_config__` when it validates the class as a field of the configuration; a direct call checks nothing.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le

Arguments = Literal["held", "live", "auto"]


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """The guard of one model; see docs/explanation/guard.md.

    Attributes:
        mode: `heal`: hold broken output back, rescue calls, rerun. `strict`: as `heal`, and what still does not fit any
            schema after the last rerun is an error. `observe`: only check and count. `off`: neither.
        schema: A mismatch with a schema that is not `strict`: `enforce` reruns, `warn` counts. Strict schemas always
            rerun.
        unjudged: A schema that can't be applied in time, or a fault of the guard itself: `pass` delivers the response
            and counts it, `refuse` sends an error.
        reruns: How many times a broken response may be rerun.
        on_failure: If the last rerun is broken too: `error` sends an `integrity_violation`, `unclean` the response as
            it is, marked. With either, one that only fails a schema that is not strict is sent, marked, in mode `heal`.
        rescue: Parse calls that leaked into the text, if they are unambiguous.
        hold_json: Hold JSON responses back until they are complete, so that a rerun can always replace them.
        arguments: When the arguments of a streamed call are sent. `held`: once the call is complete and valid. `live`:
            while they grow, as far as they are certain to be valid. `auto`: live where the pool's answers of this class
            have been clean and no advisory warns. The header `x-specgate-arguments` overrides it.
        max_held_bytes: Bytes of one response that may be held for a check; more is an `engine_error`, and rerun.
        near_copies: Calls that name a path, identifier, URL or number from the prompt with one slip: `count` them
            against the pool, `rerun` them once as well, or `off`.
        resume: Which broken answers continue on another replica. `guarded`: checked ones
            (vLLM only). `all`: plain streams, too, when their engine is lost. `off`: none. Needs reruns.
        escalate: `strict`: rerun a malformed call with strict tools, on pools that do not speculate and where no
            advisory warns of it. `off`: rerun it unchanged.
        stall_s: A stream continues elsewhere, as `resume` says, if its engine is silent for so long and ten times its
            longest pause. 0: only `limits.stream_idle_timeout_s` ends it.
        stall_share: Largest share of a model's streams that may leave a silent engine.
        history: Malformed calls of earlier turns: `fix` them, `warn` (count them), or `off`.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    mode: Literal["off", "observe", "heal", "strict"] = "heal"
    schema: Literal["warn", "enforce"] = "enforce"
    unjudged: Literal["pass", "refuse"] = "pass"
    reruns: Annotated[int, Ge(0), Le(5)] = 1
    on_failure: Literal["error", "unclean"] = "error"
    rescue: bool = True
    hold_json: bool = False
    arguments: Arguments = "held"
    max_held_bytes: Annotated[int, Ge(65_536)] = 16 * 1024 * 1024
    near_copies: Literal["off", "count", "rerun"] = "count"
    resume: Literal["off", "guarded", "all"] = "all"
    escalate: Literal["off", "strict"] = "off"
    stall_s: Annotated[float, Ge(0)] = 30.0
    stall_share: Annotated[float, Ge(0), Le(1)] = 0.01
    history: Literal["off", "warn", "fix"] = "fix"

    @property
    def heals(self) -> bool:
        """True if a broken response is kept from the client and run again."""
        return self.mode in ("heal", "strict") and self.reruns > 0

    @property
    def resumes_plain(self) -> bool:
        """True if plain streams go on elsewhere when their engine is lost."""
        return self.resume == "all" and self.heals
