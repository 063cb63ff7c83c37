"""Ports of one gateway on a machine: on loopback, and a block that no other gateway here takes while this one runs."""

import errno
import random
import socket
from collections.abc import Callable, Iterable

from serve.errors import ConfigError

# Below the ports that the system and Ray hand out by themselves.
_FIRST, _END = 20_000, 30_000
BLOCK_SIZE = 200
# Single ports: in no gateway's block, beyond those that Ray Serve takes by default, below those of the system.
_SINGLE_FIRST, _SINGLE_END = 31_100, 32_700

_claims: list[int] = []  # descriptors that hold ports and blocks for as long as this process lives


def claim_block() -> range:
    """Claims a block of ports for the rest of this process's life.

    A name keeps other gateways of this machine away, also while they start at the same moment. A block in which
    something listens already, such as what a killed gateway left behind, is passed over.

    Raises:
        ConfigError: Every block is taken.
    """
    starts = list(range(_FIRST, _END, BLOCK_SIZE))
    random.shuffle(starts)
    for start in starts:
        block = range(start, start + BLOCK_SIZE)
        if _claim(f"specgate-ports-{start}", block, is_taken):
            return block
    raise ConfigError(f"no block of {BLOCK_SIZE} ports between {_FIRST} and {_END} is free; stop another gateway here")


def free_port() -> int:
    """Claims a port for the rest of this process's life: one that no gateway, Ray or the system hands out.

    Nobody else is given it, in this process or another, although nothing may listen there for a while.

    Raises:
        ConfigError: None is free.
    """
    for port in random.sample(range(_SINGLE_FIRST, _SINGLE_END), _SINGLE_END - _SINGLE_FIRST):
        if _claim(f"specgate-port-{port}", (port,), _is_bound):
            return port
    raise ConfigError(f"no port between {_SINGLE_FIRST} and {_SINGLE_END} is free")


def claim_admin_port(first: int, taken: int) -> int:
    """Claims a port of the admin API for the rest of this process's life: the first free one from `first` on. The port
    `taken` is that of this gateway's own clients, on which nothing listens yet.

    Raises:
        ConfigError: None of the next hundred is free.
    """
    for port in range(first, min(first + 100, 65536)):
        if port != taken and _claim(f"specgate-admin-{port}", (port,), is_taken):
            return port
    raise ConfigError(f"no port from {first} on is free for the admin API; choose one with SPECGATE_ADMIN_PORT")


def require_free(port: int, variable: str = "SPECGATE_PORT") -> None:
    """Checks that a port is free.

    Raises:
        ConfigError: Something listens there; Ray would start and answer nobody.
    """
    if is_taken(port):
        raise ConfigError(f"port {port} is taken; free it or choose another with {variable}")


def is_taken(port: int) -> bool:
    """True if something listens on the port of the loopback address."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_bound(port: int) -> bool:
    """True if somebody has the port, be it a connection that was closed a minute ago."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _claim(name: str, ports: Iterable[int], is_in_use: Callable[[int], bool]) -> bool:
    """Takes a name that the kernel frees with this process; returns False if somebody else has it, or one of the ports
    that it stands for is in use.

    It is a Unix socket's in the abstract namespace: it needs no file, and is shared by just those who share the ports,
    whatever user or file system they have. The ports are looked at once it is ours: others may start at this moment.
    """
    with socket.socket(socket.AF_UNIX) as claim:
        try:
            claim.bind(f"\0{name}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        if any(map(is_in_use, ports)):
            return False
        _claims.append(claim.detach())
        return True


def keep_on_loopback() -> None:
    """Has every gRPC server of this process that would listen on all addresses listen on the loopback address.

    Ray runs it in each worker process before anything else. A replica of Ray Serve opens a server for calls between
    deployments at `[::]`, whatever address the node has, and has no setting for it (docs/adr/0028).
    """
    from ray._common import tls_utils

    add_port = tls_utils.add_port_to_grpc_server

    def add_local_port(server: object, address: str) -> int:
        port: int = add_port(server, address.replace("[::]:", "127.0.0.1:", 1))
        return port

    tls_utils.add_port_to_grpc_server = add_local_port
