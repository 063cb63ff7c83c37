"""How much tenants, keys and models may use: limits that hold over all gateway replicas, and usage of every answer."""
