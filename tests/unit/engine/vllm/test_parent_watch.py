"""A process of the engine does not outlive the one that started it."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from serve.engine.vllm import plugin

ROOT = Path(__file__).parents[4]
PATIENCE_S = 60
HOST = """
import multiprocessing, os, signal, sys, threading, time
from serve.engine.vllm import plugin

def core(ignores):
    if ignores:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    watched = plugin.end_with_parent(poll_s=0.05, grace_s=0.1)
    again = plugin.end_with_parent(poll_s=0.05, grace_s=0.1)
    watches = [each for each in threading.enumerate() if each.name == "parent-watch"]
    print(watched and again and len(watches), flush=True)
    time.sleep(600)

if __name__ == "__main__":
    started = multiprocessing.get_context(sys.argv[1]).Process(target=core, args=(sys.argv[2] == "ignores",))
    thread = threading.Thread(target=started.start)  # its end is not the parent's
    thread.start()
    thread.join()
    time.sleep(600)
"""


@pytest.mark.parametrize("signals", ["heeds", "ignores"])
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_an_engine_core_ends_after_its_host_was_killed(tmp_path: Path, method: str, signals: str) -> None:
    script = tmp_path / "host.py"
    script.write_text(HOST)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, str(script), method, signals],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    ) as host:  # fmt: skip
        assert host.stdout is not None
        try:
            assert host.stdout.readline() == b"1\n"  # one thread, however often it is asked for
            host.kill()
            # The core holds the other end of this pipe as long as it lives.
            rest, _ = host.communicate(timeout=PATIENCE_S)
            assert rest == b""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(host.pid, signal.SIGKILL)


def test_a_process_that_no_other_python_started_is_not_watched() -> None:
    assert not plugin.end_with_parent()
