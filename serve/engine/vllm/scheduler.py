"""Switches speculation off for one request inside a speculative engine (`vllm_xargs.enable_speculative: 0`).

vLLM has no such switch. A request gets drafts in two ways, and the opt-out closes both, so that the request never has
any in a batch:

- Both schedulers keep its next drafts in `Request.spec_token_ids` between two steps: the synchronous one stores what
  the drafter returned (`update_draft_token_ids`), the asynchronous one stores placeholders that the worker fills in
  (`_update_after_schedule`). With an empty list it is scheduled as plain decoding.
- A request that starts with a single token to compute (its prompt is cached, it was resumed, or another engine computed
  it) is padded with placeholders to the length of its neighbours. They are taken out before the batch goes to the
  worker. To leave them in and call them invalid is no way: the worker may have drafts of its own for the row, and would
  verify them against a grammar that is applied to the first token only.

The drafter still computes for the batch, but its proposals for this request are never verified.

`serve.engine.vllm.host` installs it; docs/adr/0003-pools-and-opt-out.md says what it does not protect against.
"""

from collections.abc import Iterable
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.request import Request

from serve.errors import ConfigError


def _opted_out(request: Request) -> bool:
    arguments = getattr(request.sampling_params, "extra_args", None) or {}
    return arguments.get("enable_speculative") in (0, False, "0", "false")


class OptOut:
    """Keeps drafts away from requests that opted out; mixed into a scheduler of vLLM's, before it."""

    requests: dict[str, Request]

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        """Stores the drafts for the next step; the synchronous engine calls it."""
        super().update_draft_token_ids(draft_token_ids)  # type: ignore[misc]  # vLLM's scheduler comes next
        self._drop_drafts(draft_token_ids.req_ids)

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        """Books what was scheduled; the last that is done to a batch before it goes to the worker."""
        self._take_padding_out(scheduler_output)
        super()._update_after_schedule(scheduler_output)  # type: ignore[misc]
        self._drop_drafts(scheduler_output.num_scheduled_tokens)

    def _take_padding_out(self, scheduler_output: SchedulerOutput) -> None:
        drafts = scheduler_output.scheduled_spec_decode_tokens
        for request in self._opted_out_of(tuple(drafts)):
            padding = len(drafts.pop(request.request_id))
            scheduler_output.num_scheduled_tokens[request.request_id] -= padding
            scheduler_output.total_num_scheduled_tokens -= padding

    def _drop_drafts(self, request_ids: Iterable[str]) -> None:
        for request in self._opted_out_of(request_ids):
            if request.spec_token_ids:
                request.spec_token_ids = []  # a new list: the asynchronous scheduler shares one among all requests

    def _opted_out_of(self, request_ids: Iterable[str]) -> Iterable[Request]:
        return (
            request
            for request_id in request_ids
            if (request := self.requests.get(request_id)) is not None and _opted_out(request)
        )


class OptOutScheduler(OptOut, Scheduler):  # type: ignore[misc]  # vLLM's types are not followed
    """The synchronous scheduler with the opt-out."""


class OptOutAsyncScheduler(OptOut, AsyncScheduler):  # type: ignore[misc]
    """The asynchronous scheduler with the opt-out."""


def install(config: VllmConfig) -> None:
    """Makes an engine's scheduler one with the opt-out. The configuration must be complete: a class named before vLLM
    has chosen between the two schedulers would make it choose the synchronous one.

    Raises:
        ConfigError: The engine has another scheduler class already, the operator's or vLLM's own, without the opt-out.
    """
    scheduler = config.scheduler_config
    ours: type[Any] = OptOutAsyncScheduler if scheduler.async_scheduling else OptOutScheduler
    if scheduler.scheduler_cls is None:
        scheduler.scheduler_cls = ours
    elif not issubclass(scheduler.get_scheduler_cls(), OptOut):
        raise ConfigError(
            f"opt_out: true needs specgate's scheduler, and this engine has {_name(scheduler.scheduler_cls)}: derive "
            f"that class from serve.engine.vllm.scheduler.OptOut too, or remove opt_out"
            " (requests that must not be drafted then need a standard pool) or scheduler-cls"
        )


def _name(scheduler_class: str | type[object]) -> str:
    if isinstance(scheduler_class, str):
        return scheduler_class
    return f"{scheduler_class.__module__}.{scheduler_class.__qualname__}"
