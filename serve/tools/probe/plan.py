"""The plan of a probe: which requests to send to which endpoint, and how often."""

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from serve.tools.probe.grid import ProbeCell

Trial = tuple[ProbeCell, int]  # a cell and the number of the trial in it


@dataclass(frozen=True, kw_only=True)
class ProbePlan:
    """An experiment on one endpoint.

    Attributes:
        url: The endpoint, with or without `/v1`.
        model: The model's name there.
        cells: The kinds of request to send.
        trials: Number of trials per cell.
        temperature: Sampling temperature of every request.
        max_tokens: Length limit of every answer; None leaves it to the endpoint.
        speculative: Value of `enable_speculative`; None does not send the field.
        concurrency: Requests in flight at a time.
        timeout_s: Time limit of one request.
        api_key_env: Environment variable that holds the API key; None if the endpoint needs none.
        tolerate: Share of broken answers that is accepted.
    """

    url: str
    model: str
    cells: tuple[ProbeCell, ...]
    trials: int
    temperature: float
    max_tokens: int | None
    speculative: bool | None
    concurrency: int
    timeout_s: float
    api_key_env: str | None
    tolerate: float

    @property
    def base_url(self) -> str:
        """The endpoint's URL, with `/v1`."""
        base = self.url.rstrip("/")
        return base if base.endswith("/v1") else f"{base}/v1"

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that trials must have in common to be counted together."""
        return {
            "url": self.url,
            "model": self.model,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "speculative": self.speculative,
        }

    def request(self, cell: ProbeCell) -> dict[str, Any]:
        """Returns the request body of a cell."""
        return cell.request(self.model, self.max_tokens, self.temperature, self.speculative)

    def pending(self, done: Container[tuple[str, int]]) -> list[Trial]:
        """Returns the trials that are not among `done`, given as cell names and trial numbers."""
        return [
            (cell, number) for cell in self.cells for number in range(self.trials) if (cell.name, number) not in done
        ]
