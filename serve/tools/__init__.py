"""Implements the commands of `specgate` that inspect, measure or test; nothing here knows the command line."""
