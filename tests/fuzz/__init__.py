"""Inputs that nobody thought of: `python -m tests.fuzz --minutes 10`."""
