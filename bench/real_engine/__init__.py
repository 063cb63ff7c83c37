"""The gateway in front of a real vLLM engine, beside that engine itself."""
