"""The suffix of a model's name that forbids speculation, for clients that can set nothing but the model."""

from collections.abc import Container

import msgspec

from serve.request.completion import CompletionRequest, with_member

NO_SPECULATION = ":nospec"


def without_suffix(body: bytes, request: CompletionRequest, known: Container[str]) -> bytes:
    """Returns the body under the name of the model alone, unless the suffix is part of a known name.

    Like any other "false" the suffix wins, so that it stands in the request as the field does.

    Args:
        body: A JSON object.
        request: The body, parsed; its model ends in the suffix. Changed as the body is.
        known: All names of models.
    """
    name = request.model.removesuffix(NO_SPECULATION)
    if request.model in known or name not in known:
        return body
    request.model = name
    request.enable_speculative = False
    return with_member(body, "model", msgspec.json.encode(name))
