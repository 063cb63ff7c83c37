"""specgate compared with other gateways: the same load and upstream, alternating, in one run."""
