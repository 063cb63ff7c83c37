"""The command line: `specgate`."""

from serve.cli.main import app

__all__ = ["app"]
