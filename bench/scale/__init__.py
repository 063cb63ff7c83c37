"""Scaling out: throughput and cost of gateway replicas, of Ray Serve's own processes and of the shared detector."""
