"""`python -m serve.cli`, the same as `specgate`."""

from serve.cli import app

app()
