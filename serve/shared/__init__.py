"""One state that all gateway replicas share, off the request path: the protocol, and the links it goes over."""
