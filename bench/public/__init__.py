"""Suites of others, played against any OpenAI URL and through this gateway."""
