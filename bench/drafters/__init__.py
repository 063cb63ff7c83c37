"""Measures the tiny models' drafters: answers with tool calls and JSON, with and without speculation."""
