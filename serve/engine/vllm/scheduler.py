"""Switches speculation off for one request inside a speculative engine (`vllm_xargs.enable_speculative: 0`).

vLLM has no such switch. Both schedulers keep a request's draft tokens in `Request.spec_token_ids` between two steps:
the synchronous one stores what the drafter returned (`update_draft_token_ids`), the asynchronous one stores
placeholders that the worker fills in (`_update_after_schedule`). A request with an empty list is scheduled as plain
decoding, so emptying the list is the whole opt-out. The drafter still computes for the batch, but its proposals for
this request are never verified.

`serve.engine.vllm.host` installs it; docs/adr/0003-pools-and-opt-out.md says what it does not protect against.
"""

from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.request import Request


def _opted_out(request: Request) -> bool:
    arguments = getattr(request.sampling_params, "extra_args", None) or {}
    return arguments.get("enable_speculative") in (0, False, "0", "false")


class _OptOut:
    """Empties the drafts of requests that opted out; mixed into either scheduler."""

    requests: dict[str, Request]

    def _drop_drafts(self, request_ids: Any) -> None:
        for request_id in request_ids:
            request = self.requests.get(request_id)
            if request is not None and request.spec_token_ids and _opted_out(request):
                request.spec_token_ids = []  # a new list: the asynchronous scheduler shares one among all requests


class OptOutScheduler(_OptOut, Scheduler):  # type: ignore[misc]  # vLLM's types are not followed
    """The synchronous scheduler with the opt-out."""

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        super().update_draft_token_ids(draft_token_ids)
        self._drop_drafts(draft_token_ids.req_ids)


class OptOutAsyncScheduler(_OptOut, AsyncScheduler):  # type: ignore[misc]
    """The asynchronous scheduler with the opt-out."""

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        super()._update_after_schedule(scheduler_output)
        self._drop_drafts(scheduler_output.num_scheduled_tokens)


def install(config: VllmConfig) -> None:
    """Makes an engine's scheduler one with the opt-out.

    Args:
        config: The engine's, complete: vLLM has chosen between the two schedulers. A class named before that would make
            it choose the synchronous one.
    """
    scheduler = config.scheduler_config
    scheduler.scheduler_cls = OptOutAsyncScheduler if scheduler.async_scheduling else OptOutScheduler
