"""The gateway's decision code without a gateway around it, shared by `doctor`, `explain` and `replay`."""

from collections.abc import Mapping
from pathlib import Path

from policies import Decision, Policy, RequestFeatures, TrialTerms, decide
from serve.access.principal import ANONYMOUS
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig
from serve.dialects.api import as_chat
from serve.quarantine.live_policy import trial_terms
from serve.request.body_reader import BodyReader, ReadRequest


class Decider:
    """Makes the decisions of a gateway with this configuration as far as configuration and request decide. What only a
    running one knows, quarantine and load, and what chance draws may put another allowed pool first there.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self.config = config
        self.policy: Policy = compile_for(config)
        self._reader = BodyReader(config)

    @classmethod
    def load(cls, path: Path) -> "Decider":
        """Load a configuration file.

        Raises:
            ConfigError: The configuration is wrong.
        """
        return cls(GatewayConfig.load(path))

    def read(self, body: bytes, headers: Mapping[str, str], api: str = "chat") -> ReadRequest:
        """Returns what a request's body holds. Headers are by lower-case name; the API is `chat`, which includes text
        completions, or the name of a dialect.

        Raises:
            GatewayError: The request is invalid or names an unknown model.
        """
        return self._reader.read(as_chat(body, api), headers, ANONYMOUS.may_use)

    def __call__(self, body: bytes, headers: Mapping[str, str], api: str = "chat") -> tuple[RequestFeatures, Decision]:
        """Returns the features of a request and the decision on it; for the arguments and errors see `read`."""
        features = self.read(body, headers, api).features
        return features, decide(self.policy, features, features.preference)

    def trial_terms(self, request: ReadRequest) -> TrialTerms | None:
        """Returns on which terms a request may be a trial; None if it is none, as nobody checks its answer."""
        config = self.config
        if not config.quarantine.enabled or request.parsed.messages is None:
            return None
        guards = {name: model.guard for name, model in config.models.items()}
        return trial_terms(config.quarantine, guards, self.policy).get(request.features.model)
