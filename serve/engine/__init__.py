"""Engines: the Ray Serve deployments that host vLLM and the simulated engine."""
