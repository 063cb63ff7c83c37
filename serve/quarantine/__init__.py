"""Takes a pool out of service for a request class once its error rate shows that it is unsafe."""
