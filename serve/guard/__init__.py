"""The guard: nothing broken reaches a client. `core` is pure; the rest wires it into the request path."""
