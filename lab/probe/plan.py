"""The plan of a probe: which requests to send to which endpoint, and how often."""

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from lab.probe.echo import EchoCell
from lab.probe.grid import ProbeCell
from lab.probe.k2vv import RequestSet
from serve.errors import ConfigError

Cell = ProbeCell | RequestSet | EchoCell
# What an engine is asked for where a judge is to say who broke an answer.
TRACED: dict[str, Any] = {"return_token_ids": True, "logprobs": True}
Trial = tuple[Cell, int]  # a cell and the number of the trial in it


def with_version(url: str) -> str:
    """Returns an endpoint's URL with `/v1`, whether or not it has it.

    Raises:
        ConfigError: It is no URL of http or https.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{url} is no URL: it begins with http:// or https://")
    base = url.rstrip("/")
    return base if base.endswith("/v1") else f"{base}/v1"


@dataclass(frozen=True, kw_only=True)
class ProbePlan:
    """An experiment on one endpoint.

    Attributes:
        url: The endpoint, with or without `/v1`.
        model: The model's name there.
        cells: The kinds of request to send.
        trials: How often each request is sent.
        temperature: Sampling temperature of every request; None leaves it to the request.
        max_tokens: Length limit of every answer; None leaves it to the request and the endpoint.
        speculative: Value of `enable_speculative`; None does not send the field.
        concurrency: Requests in flight at a time.
        timeout_s: Time limit of one request.
        api_key_env: Environment variable that holds the API key; None if the endpoint needs none.
        tolerate: Share of broken answers that is accepted.
        judge: URL of an engine of the same model without a drafter, which says of broken answers who broke them; None
            asks nobody.
    """

    url: str
    model: str
    cells: tuple[Cell, ...]
    trials: int
    temperature: float | None
    max_tokens: int | None
    speculative: bool | None
    concurrency: int
    timeout_s: float
    api_key_env: str | None
    tolerate: float
    judge: str | None = None

    @property
    def base_url(self) -> str:
        """The endpoint's URL, with `/v1`."""
        return with_version(self.url)

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that trials must have in common to be counted together."""
        return {
            "url": self.url,
            "model": self.model,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "speculative": self.speculative,
            "judge": self.judge,
        }

    def request(self, cell: Cell, number: int) -> dict[str, Any]:
        """Returns the request body of a trial."""
        given = {
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "enable_speculative": self.speculative,
        }
        return {
            **cell.body(number),
            "model": self.model,
            **{name: value for name, value in given.items() if value is not None},
            **(TRACED if self.judge else {}),
        }

    def pending(self, done: Container[tuple[str, int]]) -> list[Trial]:
        """Returns the trials that are not among `done`, given as cell names and trial numbers."""
        return [
            (cell, number)
            for cell in self.cells
            for number in cell.numbers(self.trials)
            if (cell.name, number) not in done
        ]
