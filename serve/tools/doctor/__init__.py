"""Findings about a configuration: what is allowed where, and what it gains."""
