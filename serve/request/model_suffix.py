"""Names of models as clients write them: with a suffix that forbids speculation, or matched by a pattern."""

from collections.abc import Container

import msgspec

from serve.config.names import ModelNames
from serve.request.completion import CompletionRequest
from serve.request.patch import BodyPatch

NO_SPECULATION = ":nospec"


def put_own_name(patch: BodyPatch, request: CompletionRequest, names: ModelNames) -> None:
    """Puts the model's own name in place of one that matches a pattern, since engines know no patterns.

    Args:
        patch: Of the body.
        request: The body, parsed. Changed as the body is.
        names: All names of models; the request's is no exact one.
    """
    own_name = names.own_name(request.model)
    if own_name is not None:
        request.model = own_name
        patch.set("model", msgspec.json.encode(own_name))


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
