"""The live decision code without a gateway around it: what `explain` and `replay` share."""

from collections.abc import Mapping
from pathlib import Path

from policies import Decision, Policy, RequestFeatures, decide
from serve.config.gateway import GatewayConfig
from serve.errors import ModelNotFoundError
from serve.live_policy import compile_for
from serve.request.features import extract


class Decider:
    """Decides as a gateway with this configuration would.

    Args:
        config: A gateway's configuration.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self.config = config
        self.policy: Policy = compile_for(config)

    @classmethod
    def load(cls, path: Path) -> "Decider":
        """From a configuration file."""
        return cls(GatewayConfig.load(path))

    def __call__(self, body: bytes, headers: Mapping[str, str]) -> tuple[RequestFeatures, Decision]:
        """Features and decision of one request.

        Raises:
            GatewayError: The request is wrong or asks for an unknown model.
        """
        features = extract(body, headers, self._thinks)
        model = self.config.resolve(features.model)
        if model is None:
            raise ModelNotFoundError.unknown(features.model, self.config.models)
        features = features.of_model(model)
        return features, decide(self.policy, features, features.preference)

    def _thinks(self, model: str) -> bool:
        name = self.config.resolve(model)
        return name is not None and self.config.models[name].thinking
