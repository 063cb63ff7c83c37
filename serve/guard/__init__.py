"""The guard keeps broken responses from clients. `core` is pure; the rest wires it into the request path."""
