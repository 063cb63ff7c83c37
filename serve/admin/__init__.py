"""The operator's door: everything that is not inference, on a port of its own (docs/adr/0050)."""
