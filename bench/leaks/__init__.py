"""Leaks that the guard misses and sound answers that it kills, over thousands of answers of both kinds."""
