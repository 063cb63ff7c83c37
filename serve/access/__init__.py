"""Access to the gateway: keys, tenants and tokens of an identity provider, decided before a body is read."""
