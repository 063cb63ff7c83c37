"""The gateway's decision code without a gateway around it, shared by `doctor`, `explain` and `replay`."""

from collections.abc import Mapping
from pathlib import Path

from policies import Decision, Policy, RequestFeatures, decide
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig
from serve.dialects.table import as_chat
from serve.request.body_reader import RequestReader
from serve.request.features import FeatureReader
from serve.request.model_suffix import NO_SPECULATION, put_own_name, take_suffix
from serve.request.schema_limits import check_schemas


class Decider:
    """Makes the decisions that a gateway with this configuration would make."""

    def __init__(self, config: GatewayConfig) -> None:
        self.config = config
        self.policy: Policy = compile_for(config)
        self._reader = RequestReader(config.requests)
        self._features = FeatureReader(config)

    @classmethod
    def load(cls, path: Path) -> "Decider":
        """Load a configuration file.

        Raises:
            ConfigError: The configuration is wrong.
        """
        return cls(GatewayConfig.load(path))

    def __call__(self, body: bytes, headers: Mapping[str, str], api: str = "chat") -> tuple[RequestFeatures, Decision]:
        """Returns the features of a request and the decision on it. Headers are by lower-case name; the API is `chat`,
        which includes text completions, or the name of a dialect.

        Raises:
            GatewayError: The request is invalid or names an unknown model.
        """
        text, request, patch = self._reader.read(as_chat(body, headers, api))
        check_schemas(request, self.config.limits)
        if request.model.endswith(NO_SPECULATION):
            take_suffix(patch, request, self._features.names)
        if request.model not in self._features.names.exact:
            put_own_name(patch, request, self._features.names)
        features = self._features.read(request, headers, size_bytes=len(text))
        return features, decide(self.policy, features, features.preference)
