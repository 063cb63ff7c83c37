"""The suffix of a model's name that forbids speculation, for clients that can set nothing but the model."""

from collections.abc import Container

import msgspec

from serve.request.completion import CompletionRequest
from serve.request.patch import BodyPatch

NO_SPECULATION = ":nospec"


def take_suffix(patch: BodyPatch, request: CompletionRequest, known: Container[str]) -> None:
    """Puts the name of the model alone in place of one with the suffix, unless the suffix is part of a known name.

    Like any other "false" the suffix wins, so that it stands in the request as the field does.

    Args:
        patch: Of the body.
        request: The body, parsed; its model ends in the suffix. Changed as the body is.
        known: All names of models.
    """
    name = request.model.removesuffix(NO_SPECULATION)
    if request.model not in known and name in known:
        request.model = name
        request.enable_speculative = False
        patch.set("model", msgspec.json.encode(name))
