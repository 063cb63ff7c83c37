"""Errors and routes of the gateway's HTTP API, from the code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import serve
from serve.errors import GatewayError

from docs._generate.descriptions import ERRORS, ROUTES
from docs._generate.markdown import code, table

_SERVE = Path(serve.__file__).parent
_FINER = {"invalid_json": 400, "missing_field": 400, "engine_stalled": 502, "not_found": 404}


def errors() -> list[tuple[int, str, str]]:
    """Returns (status, code, type) of every error that a client can get, in order of status."""
    tree = {(error.status, error.default_code, error.type) for error in (GatewayError, *_subclasses(GatewayError))}
    types = {status: kind for status, _, kind in tree}
    finer = {(status, name, types[status]) for name, status in _FINER.items()}
    return sorted(tree | finer)


def errors_table() -> str:
    """Returns the table of error codes."""
    rows = [(str(status), code(name), code(kind), ERRORS.get(name, "")) for status, name, kind in errors()]
    return table(("status", "code", "type", "meaning, and what to do"), rows)


def routes() -> list[tuple[str, str]]:
    """Returns (method, path) of every route, in alphabetical order of paths."""
    found = set()
    for path in sorted((*_SERVE.glob("gateway/*.py"), *_SERVE.glob("quarantine/*.py"))):
        found.update(_routes_of(ast.parse(path.read_text(encoding="utf-8"))))
    return sorted(found, key=lambda route: (route[1], route[0]))


def routes_table() -> str:
    """Returns the table of routes."""
    return table(("route", "meaning"), [(code(f"{how} {path}"), ROUTES.get((how, path), "")) for how, path in routes()])


def _subclasses(error: type[GatewayError]) -> Iterator[type[GatewayError]]:
    for subclass in error.__subclasses__():
        if subclass.__module__ == GatewayError.__module__:
            yield subclass
            yield from _subclasses(subclass)


def _routes_of(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields routes by their literals: `router.get("/..")`, `add_api_route("/..", methods=[..])`, `{"/v1/..": app}`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key in node.keys:
                if isinstance(key, ast.Constant) and str(key.value).startswith("/v1/"):
                    yield "POST", str(key.value)
        if not isinstance(node, ast.Call) or not node.args or not isinstance(node.func, ast.Attribute):
            continue
        path = node.args[0]
        if not (isinstance(path, ast.Constant) and str(path.value).startswith("/")):
            continue
        if node.func.attr in ("get", "post"):
            yield node.func.attr.upper(), str(path.value)
        for keyword in node.keywords:
            if keyword.arg == "methods":
                for method in ast.literal_eval(keyword.value):
                    yield method, str(path.value)
