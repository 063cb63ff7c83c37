"""Timing decides no test: a busy machine may take as long as it likes over an example."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
