"""Usage of one answer, and its cost in weighted tokens."""

from msgspec import Struct

from serve.config.rate_limits import TokenWeights


class Usage(Struct, frozen=True, gc=False):
    """Tokens of one attempt.

    Attributes:
        input: Of the prompt, those from the prefix cache included.
        cached: Of the prompt, from the prefix cache.
        output: Written.
        told: By the engine; False for an estimate.
    """

    input: int = 0
    cached: int = 0
    output: int = 0
    told: bool = True

    def cost(self, weights: TokenWeights) -> float:
        """Returns the weighted tokens."""
        fresh = self.input - self.cached
        return weights.input * fresh + weights.cached * self.cached + weights.output * self.output
