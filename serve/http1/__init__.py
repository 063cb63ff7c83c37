"""HTTP/1.1 on httptools: a server, a client and its connection pool. Knows nothing of the gateway."""
