"""Limits of tenants, keys and models, which hold over all gateway replicas, and usage of every answer."""
