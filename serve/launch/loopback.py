"""Keeps a Ray worker's own gRPC server on the loopback address (docs/adr/0028)."""


def bind() -> None:
    """Has every gRPC server of this process that would listen on all addresses listen on the loopback address.

    Ray runs it in each worker process before anything else. A replica of Ray Serve opens a server for calls between
    deployments at `[::]`, whatever address the node has, and has no setting for it.
    """
    from ray._common import tls_utils

    add_port = tls_utils.add_port_to_grpc_server

    def add_local_port(server: object, address: str) -> int:
        port: int = add_port(server, address.replace("[::]:", "127.0.0.1:", 1))
        return port

    tls_utils.add_port_to_grpc_server = add_local_port
