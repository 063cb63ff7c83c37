"""Takes a pool out of service for a request class when its error rate shows that it is unsafe."""
