"""A streamed answer on its way through the gateway: bytes are split into frames once, and frames pass stages."""
