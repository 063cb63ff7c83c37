"""Compares two policies on recorded traffic."""
