"""HTTP/1.1 on httptools: a server, a client and its connection pool. Nothing here knows of models or policies."""
