"""Two processes, one of which takes the signals."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Says when it serves, and when it has been asked to stop.
PROGRAM = """
import sys, threading, time
from serve.launch.supervisor import supervise
stop = threading.Event()
code = supervise(stop)
if code is not None:
    sys.exit(code)
print("serving", flush=True)
deadline_s = time.monotonic() + 60
while not stop.wait(0.0) and time.monotonic() < deadline_s:
    pass  # holds the event's lock nearly all of the time
print("stopped" if stop.is_set() else "still there", flush=True)
sys.exit(7)
"""


def start(*before: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen([*before, sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "serving\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_signal_asks_the_serving_process_to_stop_and_its_exit_code_is_told(number: signal.Signals) -> None:
    process = start("env", "--default-signal=HUP")  # these tests may run under nohup themselves
    process.send_signal(number)
    assert process.communicate() == ("stopped\n", None)
    assert process.returncode == 7


def test_the_death_of_the_supervising_process_asks_the_other_to_stop() -> None:
    process = start()
    process.kill()
    assert process.communicate() == ("stopped\n", None)


def test_a_hangup_that_the_caller_ignores_stays_ignored() -> None:
    process = start("nohup")
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    assert int(status["SigIgn"], 16) & 1 << signal.SIGHUP - 1
    process.terminate()
    process.communicate()
    assert process.returncode == 7
