"""specgate beside other gateways: the same load, the same upstream, alternating, in one run."""
