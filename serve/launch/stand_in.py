"""A stand-in for HAProxy, until Ray has started another in place of one that was killed.

Ray looks after HAProxy every ten seconds, three times, and then starts its manager again: for half a minute nobody
would listen. The stand-in takes HAProxy's last configuration, and ends as soon as Ray's own answers again. It has an
admin socket of its own: if it answered on HAProxy's, Ray would take that for well, and could never tell it of a new
replica.
"""

import logging
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger("ray.serve.specgate.launch")

_LOOK_S = 0.2
_MISSES = 2  # looks in a row that find nobody: while one HAProxy takes over from another, a single one may
_CONFIG, _SOCKET = "haproxy.cfg", "admin.sock"
_OWN_CONFIG, _OWN_SOCKET = "stand-in.cfg", "stand-in.sock"


@contextmanager
def standing_in(folder: Path, program: str | Path) -> Iterator[None]:
    """Keeps HAProxy's port answered while HAProxy is away.

    Args:
        folder: Of HAProxy's files, which are in a folder of their own for each node.
        program: What Ray starts as HAProxy.
    """
    stop = threading.Event()
    watch = threading.Thread(target=_watch, args=(folder, program, stop), name="haproxy-stand-in", daemon=True)
    watch.start()
    try:
        yield
    finally:
        stop.set()
        watch.join()


def _watch(folder: Path, program: str | Path, stop: threading.Event) -> None:
    """Looks after HAProxy until it is told to stop; the stand-in ends with this thread at the latest."""
    other: subprocess.Popen[bytes] | None = None
    misses = 0
    while not stop.wait(_LOOK_S):
        home = next((path.parent for path in folder.glob(f"*/{_SOCKET}")), None)
        if home is not None and _answers(home / _SOCKET):
            misses = 0
            if other is not None:
                _dismiss(other)
                other = None
            continue
        misses += home is not None  # the socket is there since HAProxy has listened on it
        if home is not None and misses >= _MISSES and (other is None or other.poll() is not None):
            log.warning("HAProxy is gone; a stand-in takes its port until Ray has started another")
            with suppress(OSError):
                other = _start(program, home)
    if other is not None:
        _dismiss(other)


def _start(program: str | Path, home: Path) -> "subprocess.Popen[bytes]":
    config = (home / _CONFIG).read_text(encoding="utf-8")
    (home / _OWN_CONFIG).write_text(config.replace(f"/{_SOCKET}", f"/{_OWN_SOCKET}"), encoding="utf-8")
    quiet = subprocess.DEVNULL
    return subprocess.Popen([program, "-db", "-f", home / _OWN_CONFIG], stdout=quiet, stderr=quiet)


def _dismiss(other: "subprocess.Popen[bytes]") -> None:
    """Has a stand-in finish its streams and end."""
    other.send_signal(signal.SIGUSR1)
    threading.Thread(target=other.wait, daemon=True).start()  # somebody must take note of its end


def _answers(path: Path) -> bool:
    """Returns whether a process listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_LOOK_S)
        try:
            probe.connect(str(path))
        except TimeoutError:
            return True  # busy, which is not gone
        except OSError:
            return False
        return True
