"""Compares a pool that serves nobody with the pools that do, by copies of requests whose answers nobody gets."""
