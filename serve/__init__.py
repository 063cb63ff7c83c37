"""The serving side of specgate: the request path from the ingress down to the engines."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("specgate")  # pyproject.toml's, the only place that says it
except PackageNotFoundError:  # code that nobody installed
    VERSION = "unknown"
