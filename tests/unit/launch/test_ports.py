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


def test_no_free_port_is_given_twice_although_nothing_listens_yet() -> None:
    given = [ports.free_port() for _ in range(500)]
    assert len(set(given)) == len(given)


def test_a_free_port_is_free_and_in_no_gateways_block() -> None:
    port = ports.free_port()
    ports.require_free(port)
    assert port not in range(ports._FIRST, ports._END)
