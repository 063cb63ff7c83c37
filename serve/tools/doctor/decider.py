"""The live decision code without a gateway around it: what `explain` and `replay` share."""

from collections.abc import Mapping
from pathlib import Path

from policies import Decision, Policy, RequestFeatures, decide
from serve.config.gateway import GatewayConfig
from serve.live_policy import compile_for
from serve.request.completion import parse
from serve.request.features import FeatureReader


class Decider:
    """Decides as a gateway with this configuration would.

    Args:
        config: A gateway's configuration.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self.config = config
        self.policy: Policy = compile_for(config)
        self._features = FeatureReader(config)

    @classmethod
    def load(cls, path: Path) -> "Decider":
        """From a configuration file."""
        return cls(GatewayConfig.load(path))

    def __call__(self, body: bytes, headers: Mapping[str, str]) -> tuple[RequestFeatures, Decision]:
        """Features and decision of one request.

        Raises:
            GatewayError: The request is wrong or asks for an unknown model.
        """
        features = self._features.read(parse(body), headers)
        return features, decide(self.policy, features, features.wish)
