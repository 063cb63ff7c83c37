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
        mode: `heal`: hold broken output back, rescue calls, rerun. `strict`: as `heal`, and every schema counts as
            strict: what is still wrong after the last rerun is an error. `observe`: check and count, change nothing.
            `off`: do not look.
        schema: A mismatch with a schema that is not `strict`: `enforce` reruns, `warn` counts. Strict schemas always
            rerun, and a response that violates one is never delivered unmarked.
        unjudged: A schema that can't be applied, or not in the time that a request may take (15 ms for all its schemas
            together): `pass` delivers the response and counts it as unjudged, `refuse` sends an error. The same for an
            answer at which the guard itself failed.
        reruns: How many times a broken response may run again.
        on_failure: If the last rerun is broken too: `error` sends an `integrity_violation`, `unclean` the response as
            it is, marked.
        rescue: Parse calls that leaked into the text with our own parser, if they are unambiguous.
        hold_json: Hold JSON responses back until they are complete, so that a rerun can always replace them.
        arguments: When the arguments of a streamed call go out. `held`: once the call is whole and right. `live`: while
            they grow, as far as they are right whatever follows; then a rerun must begin with the same. `auto`: live
            where the pool's answers of this class have been clean and no advisory warns of it, held elsewhere. A
            request may ask for another with the header `x-specgate-arguments`.
        max_held_bytes: Most of one response that may wait for a check: the calls and texts of a stream that are held
            back, or a whole response. More of it is an `engine_error`, and rerun.
        near_copies: Calls that name a path, identifier, URL or number which the prompt has but for one slip: `count`
            them as suspicions against the pool, `rerun` them once as well, or `off`.
        resume: Which answers go on elsewhere where they broke. `guarded`: those, in place of a rerun from the start;
            vLLM is asked for the ids of their tokens, which clients do not see (docs/adr/0089). `all`: plain streams,
            too, when their engine is lost, by their text (docs/adr/0116). `off`: none. Only where broken responses are
            rerun, too.
        escalate: How a call whose form was wrong runs again. `off`: as it did. `strict`: with strict tools, so that the
            engine holds the call to their schemas, on pools that do not speculate and where no advisory warns of it; as
            it did if the engine refuses that.
        stall_s: A stream goes on elsewhere, as `resume` says, if its engine sends nothing for so long and for ten times
            as long as ever before in that stream. 0: only `limits.stream_idle_timeout_s` ends it.
        stall_share: Of a model's streams, so many may be taken from an engine that is silent.
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
