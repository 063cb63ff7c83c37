"""Two gateways on one machine share no port."""

import socket
import subprocess
import sys

import pytest

from serve.errors import ConfigError
from serve.launch import ports

CLAIM = "from serve.launch.ports import claim_block; print(claim_block()[0], flush=True); input()"


def test_blocks_of_one_process_are_apart() -> None:
    first, second = ports.claim_block(), ports.claim_block()
    assert len(first) == len(second) == ports.BLOCK_SIZE
    assert not set(first) & set(second)


def test_a_block_is_free_again_once_its_process_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    other = subprocess.Popen([sys.executable, "-c", CLAIM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    start = int(other.stdout.readline())
    monkeypatch.setattr(ports, "_FIRST", start)
    monkeypatch.setattr(ports, "_END", start + ports.BLOCK_SIZE)
    with pytest.raises(ConfigError, match="no block"):
        ports.claim_block()
    other.communicate("\n")
    assert ports.claim_block()[0] == start


def test_a_block_in_which_something_listens_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        port = ports.free_port()
        listener.bind(("127.0.0.1", port))
        listener.listen()
        start = port - port % ports.BLOCK_SIZE
        monkeypatch.setattr(ports, "_FIRST", start)
        monkeypatch.setattr(ports, "_END", start + ports.BLOCK_SIZE)
        with pytest.raises(ConfigError, match="no block"):
            ports.claim_block()


def test_a_taken_port_is_told_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="SPECGATE_PORT"):
        ports.require_free(taken.getsockname()[1])


def test_no_free_port_is_given_twice_although_nothing_listens_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in this process nor in another at the same time."""
    code = "from serve.launch.ports import free_port; print(free_port(), flush=True); input()"
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    port = int(other.stdout.readline())
    monkeypatch.setattr(ports, "_SINGLE_FIRST", port)
    monkeypatch.setattr(ports, "_SINGLE_END", port + 1)
    with pytest.raises(ConfigError, match="is free"):
        ports.free_port()
    other.communicate("\n")
    assert ports.free_port() == port
    with pytest.raises(ConfigError, match="is free"):
        ports.free_port()


def test_a_port_whose_last_connection_was_just_closed_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever binds it without SO_REUSEADDR, as Ray does, is refused."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = listener.accept()
            accepted.close()  # it closes first, and so waits
    assert not ports.is_taken(port)
    monkeypatch.setattr(ports, "_SINGLE_FIRST", port)
    monkeypatch.setattr(ports, "_SINGLE_END", port + 1)
    with pytest.raises(ConfigError, match="is free"):
        ports.free_port()


def test_a_free_port_is_free_and_in_no_gateways_block() -> None:
    port = ports.free_port()
    ports.require_free(port)
    assert port not in range(ports._FIRST, ports._END)
