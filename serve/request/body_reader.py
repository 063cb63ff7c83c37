"""A body, parsed, with its features and what must change in it."""

from collections.abc import Callable, Mapping

from msgspec import Struct

from policies import RequestFeatures
from serve.config.gateway import GatewayConfig
from serve.request.completion import NONE, CompletionRequest
from serve.request.features import FeatureReader
from serve.request.field_rules import RequestReader
from serve.request.model_suffix import NO_SPECULATION, put_own_name, take_suffix
from serve.request.patch import BodyPatch
from serve.request.schema_limits import check_schemas


class ReadRequest(Struct, frozen=True):
    """A request as far as its body tells.

    Attributes:
        body: JSON, as the client sent it.
        parsed: The fields that the gateway reads.
        features: What the policy sees.
        patch: What must change in the body before an engine gets it, whichever it is.
    """

    body: bytes
    parsed: CompletionRequest
    features: RequestFeatures
    patch: BodyPatch


class BodyReader:
    """Reads bodies of chat and text completions.

    Args:
        config: Of the gateway: the models, and what a request may hold.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self._limits = config.limits
        self._requests = RequestReader(config.requests)
        self._features = FeatureReader(config)

    def read(self, body: bytes, headers: Mapping[str, str], may_use: Callable[[str], bool]) -> ReadRequest:
        """Returns what a body holds.

        Args:
            body: As the client sent it.
            headers: By lower-case name.
            may_use: False for a model, given its own name, that does not exist for this caller.

        Raises:
            GatewayError: The request is wrong.
        """
        body, parsed, patch = self._requests.read(body)
        if parsed.tools or parsed.tool_choice or parsed.response_format or parsed.structured_outputs is not NONE:
            check_schemas(parsed, self._limits)
        if parsed.model.endswith(NO_SPECULATION):
            take_suffix(patch, parsed, self._features.names)
        if parsed.model not in self._features.names.exact:
            put_own_name(patch, parsed, self._features.names)
        features = self._features.read(parsed, headers, may_use, size_bytes=len(body))
        self._features.set_switch(patch, parsed)
        return ReadRequest(body, parsed, features, patch)
