"""Bodies of requests as engines get them, or why they are refused."""

import json
from typing import Any

import pytest

from serve.config.gateway import RequestsConfig
from serve.errors import InvalidRequestError
from serve.request.body_reader import RequestReader


def sent(body: bytes | dict[str, Any], **config: Any) -> bytes:
    """Return what an engine gets."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    left, _, patch = RequestReader(RequestsConfig(**config)).read(raw)
    return patch.apply(left)


def problem(body: bytes | dict[str, Any], **config: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        sent(body, **config)
    return caught.value
