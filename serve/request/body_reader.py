"""A body as engines may read it, parsed, and its features."""

from collections.abc import Callable, Mapping

from policies import RequestFeatures
from serve.config.gateway import GatewayConfig
from serve.request.completion import CompletionRequest
from serve.request.features import FeatureReader
from serve.request.field_rules import RequestReader
from serve.request.model_suffix import NO_SPECULATION, without_suffix
from serve.request.schema_limits import check_schemas


class BodyReader:
    """Reads bodies of chat and text completions.

    Args:
        config: Of the gateway: the models, and what a request may hold.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self._limits = config.limits
        self._requests = RequestReader(config.requests)
        self._features = FeatureReader(config)

    def read(
        self, body: bytes, headers: Mapping[str, str], may_use: Callable[[str], bool]
    ) -> tuple[bytes, CompletionRequest, RequestFeatures]:
        """Returns the body without what must not reach an engine, parsed, and its features.

        Args:
            body: As the client sent it.
            headers: By lower-case name.
            may_use: False for a model, given its own name, that does not exist for this caller.

        Raises:
            GatewayError: The request is wrong.
        """
        body, parsed = self._requests.read(body)
        if parsed.tools or parsed.tool_choice or parsed.response_format:
            check_schemas(parsed, self._limits)
        if parsed.model.endswith(NO_SPECULATION):
            body = without_suffix(body, parsed, self._features.known)
        return body, parsed, self._features.read(parsed, headers, may_use)

    def with_switch(self, body: bytes, parsed: CompletionRequest) -> bytes:
        """Returns the body with the switch for thinking that the model's own template reads."""
        return self._features.with_switch(body, parsed)
