"""How well policies use a speculative and a standard pool, beside an oracle: `python -m bench.goodput`."""
