"""A streamed answer on its way through the gateway: bytes are cut into frames once, and frames pass stages."""
