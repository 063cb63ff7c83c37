"""The page: static files of this package, which run without a build step and load nothing from elsewhere."""

from hashlib import sha256
from pathlib import Path

from fastapi.responses import Response
from starlette.requests import Request

from serve.errors import RouteNotFoundError

STATIC = Path(__file__).with_name("static")
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".md": "text/plain; charset=utf-8",
}
# Nothing but this server's own files: no inline script or style, no form, no frame around it.
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Page:
    """The files, read once."""

    def __init__(self) -> None:
        self._files = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.suffix in _TYPES}

    async def index(self, request: Request) -> Response:
        return self._response(request, "index.html")

    async def file(self, request: Request, name: str) -> Response:
        """Returns a file of the page.

        Raises:
            RouteNotFoundError: There is none with that name.
        """
        if name not in self._files:
            raise RouteNotFoundError(f"/page/{name[:100]} is not served here.")
        return self._response(request, name)

    def _response(self, request: Request, name: str) -> Response:
        content = self._files[name]
        return tagged(request, content, f'"{sha256(content).hexdigest()[:32]}"', _TYPES[Path(name).suffix])


def tagged(request: Request, content: bytes, etag: str, media_type: str) -> Response:
    """Returns content with its entity tag, or 304 if the client has it already."""
    headers = {"etag": etag, "cache-control": "no-cache", "vary": "authorization, x-api-key"}
    known = {each.strip().removeprefix("W/") for each in ",".join(request.headers.getlist("if-none-match")).split(",")}
    if known & {etag, "*"}:  # a proxy that compresses makes a tag weak
        return Response(None, 304, headers)
    return Response(content, 200, headers, media_type=media_type)
