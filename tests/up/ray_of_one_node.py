"""Stands before `ray` on the PATH of a loopback node: `ray stop` ends what runs there, not all Ray of the machine."""

import os
import shutil
import sys

import psutil


def node_of(environment: dict[str, str]) -> tuple[str | None, str | None]:
    """A node is a home folder and the address that its sshd was reached at; children inherit both."""
    return environment.get("HOME"), environment.get("SSH_CONNECTION", "   ").split(" ")[2]


def stop_this_node() -> None:
    spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        try:
            if process.pid not in spared and node_of(process.environ()) == node_of(dict(os.environ)):
                process.kill()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


if sys.argv[1:2] == ["stop"]:
    stop_this_node()
else:
    others = os.pathsep.join(os.environ["PATH"].split(os.pathsep)[1:])
    real = shutil.which("ray", path=others)
    assert real is not None, "no `ray` on the PATH"
    os.execv(real, ["ray", *sys.argv[1:]])
