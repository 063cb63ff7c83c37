"""Ports of one gateway on a machine: a block that no other gateway here takes while this one runs."""

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

from serve.errors import ConfigError

# Below the ports that the system and Ray hand out by themselves.
_FIRST, _END = 20_000, 30_000
BLOCK_SIZE = 200

_claims: list[int] = []  # descriptors whose locks hold the blocks for as long as this process lives


def claim_block() -> range:
    """Claims a block of ports for the rest of this process's life.

    A lock on a file keeps other gateways of this machine away, also while they start at the same moment. A block in
    which something listens already, such as what a killed gateway left behind, is passed over.

    Raises:
        ConfigError: Every block is taken.
    """
    starts = list(range(_FIRST, _END, BLOCK_SIZE))
    random.shuffle(starts)
    for start in starts:
        descriptor = _lock(Path(tempfile.gettempdir()) / f"specgate-ports-{start}.lock")
        if descriptor is None:
            continue
        if any(is_taken(port) for port in range(start, start + BLOCK_SIZE)):
            os.close(descriptor)
            continue
        _claims.append(descriptor)
        return range(start, start + BLOCK_SIZE)
    raise ConfigError(f"no block of {BLOCK_SIZE} ports between {_FIRST} and {_END} is free; stop another gateway here")


def free_port() -> int:
    """Returns a port that nothing listens on now, below those that the system and Ray hand out meanwhile."""
    while True:
        port = random.randint(_FIRST, _END - 1)
        if not is_taken(port):
            return port


def require_free(port: int) -> None:
    """Checks that a port can be had.

    Raises:
        ConfigError: Something listens there; Ray would start and answer nobody.
    """
    if is_taken(port):
        raise ConfigError(f"port {port} is taken; free it or choose another with SPECGATE_PORT")


def is_taken(port: int) -> bool:
    """True if something listens on the port of the loopback address."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _lock(path: Path) -> int | None:
    """Locks a file, or returns None if somebody else holds the lock or the file."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    except PermissionError:  # another user's
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
