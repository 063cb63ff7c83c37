"""A worker's own servers are for this machine only."""

import pytest
from ray._common import tls_utils

from serve.launch.ports import keep_on_loopback


class Server:
    """A gRPC server that notes where it should listen."""

    def __init__(self) -> None:
        self.addresses: list[str] = []

    def add_insecure_port(self, address: str) -> int:
        self.addresses.append(address)
        return 4321


def test_what_would_listen_everywhere_listens_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_utils, "add_port_to_grpc_server", tls_utils.add_port_to_grpc_server)
    keep_on_loopback()
    server = Server()
    ports = [tls_utils.add_port_to_grpc_server(server, address) for address in ("[::]:0", "192.0.2.1:5")]
    assert (ports, server.addresses) == ([4321, 4321], ["127.0.0.1:0", "192.0.2.1:5"])
