"""Registers specgate's additions in every process that vLLM starts.

This is a `vllm.general_plugins` entry point, so the API process, the engine core (whose grammar gate needs the
reasoning parser and the tokenizer) and its workers all know our names. It adds names and, on the CPU, fixes sampling.

It also ends the engine's processes when the one that started them is gone. A host that ends in order ends its engine
core first. After SIGKILL of the host, and of the raylet that would clean up, nobody does, and the core keeps the
model's memory.
"""

import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.process import BaseProcess

_POLL_S = 1.0
_GRACE_S = 10.0
_started = threading.Event()


def register() -> None:
    """Add our tool parsers, reasoning parsers and tokenizer mode to vLLM's registries; safe to call again."""
    from serve.engine.vllm import cpu_sampling, tokenizer, tool_parsers

    tool_parsers.register()
    tokenizer.register()
    cpu_sampling.register()
    end_with_parent()


def end_with_parent(poll_s: float = _POLL_S, grace_s: float = _GRACE_S) -> bool:
    """Ends this process soon after its parent's end; safe to call again.

    Only a process that `multiprocessing` started is watched: an engine core or one of its workers. The host itself is
    Ray's to end.

    The parent is polled, because `PR_SET_PDEATHSIG` goes by the thread that started this process, which may end long
    before the parent does. Its number alone does not tell where a server forks for it, and its pipe alone does not
    where a sibling has inherited the other end. SIGKILL follows SIGTERM after `grace_s`: a step of the model may keep
    Python from handling the latter.

    Returns:
        Whether it is watched.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return False
    if not _started.is_set():
        _started.set()
        watch = threading.Thread(target=_watch, args=(parent, poll_s, grace_s), name="parent-watch", daemon=True)
        watch.start()
    return True


def _watch(parent: BaseProcess, poll_s: float, grace_s: float) -> None:
    number = os.getppid()
    while os.getppid() == number and parent.is_alive():
        time.sleep(poll_s)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s)
    os.kill(os.getpid(), signal.SIGKILL)
