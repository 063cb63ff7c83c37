"""Writes the tables of `docs/reference/` from the code. Kept out of the serving wheel."""
