"""Examines a configuration: which pools are allowed for which requests, and what speculation gains there."""
