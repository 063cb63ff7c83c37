"""Estimates: strict ones cover all that is allowed, expected ones learn."""

import random

from serve.limits.estimate import Estimates, Size
from serve.limits.usage import Usage

GROUP = ("key", "model", "plain")


def learned(strict: bool = False) -> Estimates:
    estimates = Estimates(strict, 1000)
    numbers = random.Random(1)
    for _ in range(3000):
        estimates.learn(GROUP, Size(400), Usage(100, 0, numbers.randrange(100, 200)), 50)
    return estimates


def test_strict_estimates_cover_every_answer_and_prompt_up_to_the_models_cap() -> None:
    estimates = learned(strict=True)
    assert estimates.of(GROUP, Size(1, max_output=700), 8192)[1] == 700
    assert estimates.of(GROUP, Size(1, max_output=7000), 4096)[1] == 4096
    assert estimates.of(GROUP, Size(1), 4096)[1] == 4096
    assert estimates.of(GROUP, Size(1, prompts=3, answers=2, max_output=10), 8192)[1] == 60


def test_expected_estimates_cover_three_quarters_of_answers() -> None:
    assert 165 <= learned().of(GROUP, Size(1), 8192)[1] <= 185


def test_expected_estimates_are_never_above_what_the_request_allows() -> None:
    assert learned().of(GROUP, Size(1, max_output=7), 8192)[1] == 7


def test_tokens_of_a_byte_and_of_a_frame_are_learned() -> None:
    estimates = learned()
    assert 95 <= estimates.of(GROUP, Size(400), 1)[0] <= 105
    assert estimates.written("model", 10) in range(28, 33)


def test_images_count_a_fixed_number() -> None:
    assert Estimates(True, 1000).of(GROUP, Size(0, images=2), 1)[0] == 2001
