"""The gateway's decision code without a gateway around it, shared by `doctor`, `explain` and `replay`."""

from collections.abc import Mapping
from pathlib import Path

from policies import Decision, Policy, RequestFeatures, decide
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig
from serve.request.completion import parse
from serve.request.features import FeatureReader


class Decider:
    """Makes the decisions that a gateway with this configuration would make."""

    def __init__(self, config: GatewayConfig) -> None:
        self.config = config
        self.policy: Policy = compile_for(config)
        self._features = FeatureReader(config)

    @classmethod
    def load(cls, path: Path) -> "Decider":
        """Load a configuration file.

        Raises:
            ConfigError: The configuration is wrong.
        """
        return cls(GatewayConfig.load(path))

    def __call__(self, body: bytes, headers: Mapping[str, str]) -> tuple[RequestFeatures, Decision]:
        """Returns the features of a request and the decision on it.

        Raises:
            GatewayError: The request is invalid or names an unknown model.
        """
        features = self._features.read(parse(body), headers)
        return features, decide(self.policy, features, features.preference)
