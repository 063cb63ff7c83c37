"""The engines behind a pool: vLLM inside a Ray Serve replica, and the simulated engine. Only here is vLLM imported."""
