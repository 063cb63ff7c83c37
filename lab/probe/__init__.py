"""Measures the clean rate of an OpenAI-compatible endpoint."""
