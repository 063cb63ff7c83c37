"""The faults: what each does to a gateway, and what its clients may see of it."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from tests.faults import injections, settings
from tests.faults.injections import READERS, Injection
from tests.faults.scene import CUT, NOTHING, Setting


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        name: In the table.
        setting: Makes what the gateway needs for it, in a folder; removes it at the end.
        inject: Its context is the fault.
        may: What clients may see of requests that meet it, beside complete answers.
        loses: What is gone at the end, for the table.
        needs: What must be there; each is a program, or a right.
        hold_s: How long it lasts at least.
    """

    name: str
    setting: Callable[[Path], AbstractAsyncContextManager[Setting]]
    inject: Injection
    may: frozenset[str] = frozenset()
    loses: str = "nothing"
    needs: tuple[str, ...] = ()
    hold_s: float = 2.0


FAULTS = (
    Fault(
        "an engine sends nonsense",
        settings.usual,
        injections.nonsense,
        may=frozenset({"502 engine_error", "error frame engine_error"}),
    ),
    Fault(
        "an engine becomes slower and slower",
        settings.impatient,
        injections.slower_and_slower,
        hold_s=4,
        may=frozenset({"error frame engine_stalled", "504 deadline_exceeded"}),
    ),
    Fault("the port is in use", settings.usual, injections.taken_port),
    Fault("the disk of the audit log is full", settings.on_a_small_disk, injections.full, needs=("root",)),
    Fault(
        "the clock jumps a day ahead",
        settings.under_another_clock,
        injections.jump("+1d"),
        needs=("libfaketime (Debian's faketime)",),
    ),
    Fault(
        "the clock jumps a day back",
        settings.under_another_clock,
        injections.jump("-1d"),
        needs=("libfaketime (Debian's faketime)",),
    ),
    Fault(
        "the gateway's process gets no more memory",
        settings.usual,
        injections.no_memory,
        may=frozenset({"503 out_of_memory"}),
    ),
    Fault(
        "the kernel kills the gateway for its memory",
        settings.usual,
        injections.killed_for_memory,
        may=frozenset({CUT, NOTHING}),
        loses="open streams",
        needs=("root", "a cgroup for memory"),
        hold_s=0.5,
    ),
    Fault(
        "an engine's certificate ends",
        settings.with_certificates,
        injections.ended,
        may=frozenset({"503 pool_unavailable"}),
    ),
    Fault(
        "the edge's certificate ends",
        settings.behind_an_edge,
        injections.edge_ended,
        may=frozenset({NOTHING}),
        needs=("HAProxy",),
    ),
    Fault(
        "names are not resolved any more",
        settings.with_a_name_server,
        injections.no_names,
        hold_s=12,
        needs=("root", "mount namespaces"),
    ),
    Fault(
        "the network to the limits' store is cut",
        settings.with_a_far_store,
        injections.partition,
        hold_s=5,
        needs=("root", "ip (Debian's iproute2)", "network namespaces", "redis-server"),
    ),
    Fault(
        f"{READERS} clients hardly read, through HAProxy",
        settings.behind_haproxy,
        injections.slow_readers,
        needs=("HAProxy",),
    ),
)
