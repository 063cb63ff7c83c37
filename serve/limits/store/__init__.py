"""Limits of several clusters: each one's ledger gets what it gives out from a Valkey or Redis server."""
