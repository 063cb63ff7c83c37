"""Two processes for a gateway on one machine: one that takes the signals, and one in a session of its own that serves.

A terminal, `timeout`, systemd or a container's runtime signals a whole process group. Ray's processes and HAProxy would
be in it, and end before the streams that they carry; nothing could stop in order any more.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_AGAIN_S = 1.0  # `timeout` and others signal a process and then its group: sooner than this is one and the same
_STOPPING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def supervise(stop: threading.Event, *, with_parent: bool = False) -> int | None:
    """Splits this process in two; call it before there is a thread.

    Args:
        stop: Set in the new process when any of SIGINT, SIGTERM and SIGHUP reached either of the two, or when the
            supervising one died. A SIGHUP that the caller ignores, as under `nohup`, stays ignored.
        with_parent: Set it also when the process that started this one dies.

    Returns:
        None in the new process, which should serve until `stop` is set. Its exit code in the supervising process,
        after it has ended.
    """
    sys.stdout.flush()
    stopping = _STOPPING - {number for number in (signal.SIGHUP,) if signal.getsignal(number) is signal.SIG_IGN}
    signal.pthread_sigmask(signal.SIG_BLOCK, stopping)
    parent, supervisor = os.getppid(), os.getpid()
    worker = os.fork()
    if worker == 0:
        os.setsid()
        asked: SimpleQueue[int] = SimpleQueue()

        def stop_when_asked() -> None:
            asked.get()
            stop.set()

        threading.Thread(target=stop_when_asked, daemon=True).start()
        for number in stopping:
            # Not `stop.set`: what a handler interrupts may hold the event's lock, and would wait for itself for ever.
            signal.signal(number, lambda number, _: asked.put(number))
        if not ask_at_death_of(supervisor):
            stop.set()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, stopping)
        return None
    pass_on = _passing_on(worker)
    for number in stopping:
        signal.signal(number, pass_on)
    if with_parent and not ask_at_death_of(parent):
        os.kill(worker, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stopping)
    # Not reaped before the signals are taken no more: they could reach another process of that number.
    os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)
    for number in stopping:
        signal.signal(number, signal.SIG_IGN)
    _, status = os.waitpid(worker, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code  # as a shell tells the signal that ended it


def ask_at_death_of(parent: int) -> bool:
    """Has the kernel send SIGINT when this process's parent dies; False if it is dead already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
    return os.getppid() == parent


def _passing_on(worker: int) -> Callable[[int, FrameType | None], None]:
    """Returns a handler that tells the worker to stop, and kills it if somebody presses Ctrl-C again."""
    asked_s = float("inf")

    def pass_on(number: int, _: FrameType | None) -> None:
        nonlocal asked_s
        now_s = time.monotonic()
        if number == signal.SIGINT and now_s > asked_s + _AGAIN_S:
            os.kill(worker, signal.SIGKILL)
        else:
            # SIGINT whatever came: while Ray starts, it answers SIGTERM itself, with an exit code of 15.
            os.kill(worker, signal.SIGINT)
        asked_s = min(asked_s, now_s)

    return pass_on
