"""The gateway in front of a real vLLM engine, compared with the engine itself."""
