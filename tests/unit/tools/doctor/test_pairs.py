"""A drafter for another model is found by its name."""

import pytest

from policies import PoolFacts
from serve.tools.doctor.pairs import wrong_pair


@pytest.mark.parametrize(
    ("family", "version", "drafter", "wrong"),
    [
        ("kimi-k2", "2", "/model_files/Kimi-K2.5-Thinking-Eagle3", False),
        ("kimi-k2", "2.5", "nvidia/Kimi-K2.5-Thinking-Eagle3", True),
        ("kimi-k2", "2.6", "nvidia/Kimi-K2.5-Thinking-Eagle3", True),
        ("kimi-k2", "2.5", "Kimi-K2.5-Eagle3", False),
        ("kimi-k2", "2.6", "lightseekorg/kimi-k2.5-eagle3", True),
        ("kimi-k2", "2.6", "AQ-MedAI/Kimi-K26-eagle3", False),
        ("kimi-k2", "2.6", "lightseekorg/kimi-k2.6-eagle3.1-mla", False),
        ("kimi-k2", "2.6", "~/hub/models--lightseekorg--kimi-k2.5-eagle3/snapshots/abc", True),
        ("qwen3-coder", None, "org/Qwen3-0.6B", False),
        ("qwen3.6", "3.6", "org/Qwen3.5-eagle3", True),
        ("qwen3", None, "org/Kimi-K2.5-Eagle3", True),
        ("kimi-k2", "2.6", "models/tiny-kimi-eagle3", False),
        ("llama", None, "org/Kimi-K2.5-Eagle3", False),
        ("kimi-k2", "2.6", "none", False),
        ("kimi-k2", "2.6", None, False),
    ],
)
def test_a_pair_is_wrong_when_the_drafter_is_for_another_series_or_version(family, version, drafter, wrong):
    facts = PoolFacts("m", "p", family=family, model_version=version, drafter=drafter, method="eagle3")
    assert (wrong_pair(facts) is not None) is wrong
