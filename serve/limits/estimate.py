"""Estimates of what a request will use, learned from answers: tokens a byte, tokens a frame, lengths of answers."""

from collections import OrderedDict

from msgspec import Struct

from serve.limits.usage import Usage

_FIRST_RATIO = 0.3  # tokens of a byte of JSON, before an answer has told
_RATIO_WEIGHT = 0.05
_FIRST_OUTPUT = 512.0
_QUANTILE = 0.75
_STEP = 0.1  # of the estimate, by which an answer moves it
_FIRST_PER_FRAME = 1.0
_MOST_GROUPS = 20_000

Group = tuple[str, str, str]  # key, model, request class


class Size(Struct, frozen=True, gc=False):
    """A request, as far as its cost goes.

    Attributes:
        text_bytes: Of the body, without images.
        images: Images in it.
        prompts: Prompts that it holds, each with an answer of its own.
        answers: For each prompt.
        max_output: The most tokens of one answer that the request allows; None if it does not say.
        streamed: The answer comes as a stream.
    """

    text_bytes: int
    images: int = 0
    prompts: int = 1
    answers: int = 1
    max_output: int | None = None
    streamed: bool = False


class Estimates:
    """Estimates for all models and keys.

    Args:
        strict: Estimate all the output that a request may have, not what it will probably have.
        tokens_per_image: A fixed number.
    """

    def __init__(self, strict: bool, tokens_per_image: int) -> None:
        self._strict = strict
        self._tokens_per_image = tokens_per_image
        self._ratios: dict[str, float] = {}
        self._per_frame: dict[str, float] = {}
        self._outputs: OrderedDict[Group, float] = OrderedDict()

    def of(self, group: Group, size: Size, cap: int) -> tuple[int, int]:
        """Returns the tokens of the prompts, and those of all answers.

        Args:
            group: The request's.
            size: The request's.
            cap: The most that the model writes, whatever the request says.
        """
        tokens = int(size.text_bytes * self._ratios.get(group[1], _FIRST_RATIO)) + 1
        if size.images:
            tokens += size.images * self._tokens_per_image
        most = cap
        if size.max_output is not None and size.max_output < most:
            most = size.max_output
        if not self._strict and (usual := int(self._outputs.get(group, _FIRST_OUTPUT)) + 1) < most:
            most = usual
        return tokens, most * size.answers * size.prompts

    def written(self, model: str, frames: int) -> int:
        """Returns the tokens in a part of a stream."""
        return round(frames * self._per_frame.get(model, _FIRST_PER_FRAME))

    def learn(self, group: Group, size: Size, usage: Usage, frames: int) -> None:
        """Learns from an answer.

        Args:
            group: The request's.
            size: The request's.
            usage: As the engine told it.
            frames: Of the stream; 0 of a whole answer.
        """
        model = group[1]
        if size.text_bytes and not size.images:
            ratio = self._ratios.get(model, _FIRST_RATIO)
            self._ratios[model] = ratio + _RATIO_WEIGHT * (usage.input / size.text_bytes - ratio)
        if frames > 1:
            per_frame = self._per_frame.get(model, _FIRST_PER_FRAME)
            self._per_frame[model] = per_frame + _RATIO_WEIGHT * (usage.output / frames - per_frame)
        output = usage.output / (size.answers * size.prompts)
        outputs = self._outputs
        known = outputs.get(group)
        if known is None:
            outputs[group] = output
            if len(outputs) > _MOST_GROUPS:
                outputs.popitem(last=False)
            return
        # Up by more than down, so that it rests where a quarter is above.
        step = _STEP * (known if known > 1 else 1.0)
        outputs[group] = known + step * _QUANTILE if output > known else known - step * (1 - _QUANTILE)
