"""The echo canary as a probe sends it."""

from dataclasses import dataclass
from typing import Any

from serve.echo.prompt import EchoPrompt


@dataclass(frozen=True, slots=True)
class EchoCell:
    """The canary's requests.

    Attributes:
        seed: Another one has other names.
        stream: Whether they stream.
    """

    seed: int
    stream: bool

    @property
    def name(self) -> str:
        """The cell's name in tables."""
        return f"echo stream={'on' if self.stream else 'off'}"

    def numbers(self, trials: int) -> range:
        """Returns the numbers of the trials."""
        return range(trials)

    def body(self, number: int) -> dict[str, Any]:
        """Returns the request of a trial."""
        return EchoPrompt.of(number, self.seed).body(stream=self.stream)
