"""The admin API: everything that is not inference, on a port of its own (docs/adr/0050)."""
