"""A stand-in for HAProxy, while Ray has none that listens (docs/adr/0096-a-stand-in-for-haproxy.md).

Ray looks after HAProxy every ten seconds, three times, and then starts its manager again: for half a minute nobody
would listen. The stand-in takes HAProxy's last configuration, and ends as soon as Ray's own answers again. It has an
admin socket of its own: if it answered on HAProxy's, Ray would take that for well, and could never tell it of a new
replica. A HAProxy that somebody has stopped (SIGSTOP) keeps its port, so that a stand-in could not help: it is told to
go on.

At the end of a stop Ray kills HAProxy, with whatever it is about to answer. So a stand-in takes its port before, and
its sockets with it, and goes on answering until nothing else is left.
"""

import logging
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger("ray.serve.specgate.launch")

_LOOK_S = 0.2
_MISSES = 2  # looks in a row that find nobody: while one HAProxy takes over from another, a single one may
_CONFIG, _SOCKET = "haproxy.cfg", "admin.sock"
_PASSES_SOCKETS = "expose-fd listeners"
_TAKES_S = 5.0  # that the last one may take to listen
_ANSWERS_S = 1.0  # that one which runs may take to say who it is
_ENDS_S = 2.0  # and to end, before it is killed
_PID = re.compile(rb"^Pid: (\d+)$", re.MULTILINE)


@contextmanager
def standing_in(folder: Path, program: str | Path) -> Iterator[Callable[[], None]]:
    """Keeps HAProxy's port answered while HAProxy is away.

    Yields what has a stand-in take over from HAProxy for the rest of the context: call it before Ray kills that.
    """
    stop, taken = threading.Event(), threading.Event()
    last: list[subprocess.Popen[bytes]] = []
    watch = threading.Thread(target=_watch, args=(folder, program, stop, taken), name="haproxy-stand-in", daemon=True)

    def take_over() -> None:
        taken.set()
        with suppress(OSError):
            last.extend(_taken_over(folder, program))

    watch.start()
    try:
        yield take_over
    finally:
        stop.set()
        watch.join()
        for each in last:
            _end(each)


def _watch(folder: Path, program: str | Path, stop: threading.Event, taken: threading.Event) -> None:
    """Looks after HAProxy until another one has taken over; the stand-in ends with this thread at the latest."""
    other: subprocess.Popen[bytes] | None = None
    misses, last = 0, ""
    while not stop.wait(_LOOK_S):
        home = _home(folder)
        if home is None or taken.is_set():
            continue
        if other is not None:
            _wake(str(other.pid))
        if (pid := _answering(home / _SOCKET)) is not None:
            misses, last = 0, pid or last
            if not pid:
                _wake(last)
            if other is not None:
                _dismiss(other)
                other = None
            continue
        misses += 1  # the socket is there since HAProxy has listened on it
        if misses >= _MISSES and (other is None or other.poll() is not None):
            log.warning("HAProxy is gone; a stand-in takes its port until Ray has started another")
            with suppress(OSError):
                other = _start(program, home, "stand-in")
    if other is not None:
        _dismiss(other)


def _taken_over(folder: Path, program: str | Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Yields a stand-in that has HAProxy's port, and HAProxy finishes what it has; none if there was no HAProxy."""
    home = _home(folder)
    if home is None:
        return
    options = []
    if pid := _answering(home / _SOCKET, _ANSWERS_S):
        options = ["-sf", pid]
        if _PASSES_SOCKETS in (home / _CONFIG).read_text(encoding="utf-8"):
            options += ["-x", str(home / _SOCKET)]
    last = _start(program, home, "last", *options)
    yield last
    until_s = time.monotonic() + _TAKES_S
    while _answering(home / "last.sock") is None and last.poll() is None and time.monotonic() < until_s:
        time.sleep(_LOOK_S / 10)


def _home(folder: Path) -> Path | None:
    return next((path.parent for path in folder.glob(f"*/{_SOCKET}")), None)


def _start(program: str | Path, home: Path, name: str, *options: str) -> "subprocess.Popen[bytes]":
    config, own = (home / _CONFIG).read_text(encoding="utf-8"), home / f"{name}.cfg"
    own.write_text(config.replace(f"/{_SOCKET}", f"/{name}.sock"), encoding="utf-8")
    quiet = subprocess.DEVNULL
    return subprocess.Popen([program, "-db", "-f", own, *options], stdout=quiet, stderr=quiet)


def _dismiss(other: "subprocess.Popen[bytes]") -> None:
    """Has a stand-in finish its streams and end."""
    other.send_signal(signal.SIGUSR1)
    threading.Thread(target=other.wait, daemon=True).start()  # somebody must take note of its end


def _end(last: "subprocess.Popen[bytes]") -> None:
    """Has the last one finish what it answers, and end: whatever stays silent on a connection is not waited for."""
    last.send_signal(signal.SIGUSR1)
    try:
        last.wait(_ENDS_S)
    except subprocess.TimeoutExpired:
        last.kill()
        last.wait()


def _wake(pid: str) -> None:
    """Has a process go on if it is stopped."""
    with suppress(OSError, ValueError):
        if Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T":
            log.warning("HAProxy was stopped by a signal; it is told to go on")
            os.kill(int(pid), signal.SIGCONT)


def _answering(path: Path, within_s: float = _LOOK_S) -> str | None:
    """Returns the process that answers on an admin socket: empty if it is silent for so long, None if there is none."""
    with socket.socket(socket.AF_UNIX) as admin:
        admin.settimeout(within_s)
        try:
            admin.connect(str(path))
            admin.sendall(b"show info\n")
            said = b"".join(iter(lambda: admin.recv(65536), b""))
        except TimeoutError:
            return ""  # busy, which is not gone, or stopped
        except OSError:
            return None
    found = _PID.search(said)
    return "" if found is None else found[1].decode()
