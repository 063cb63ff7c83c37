"""What another engine writes behind an answer that broke makes one answer with it."""

import pytest

from serve.stream.splice import spliced


@pytest.mark.parametrize(
    ("had", "text", "both"),
    [
        ("", "Hi", "Hi"),
        ("Hi th", "Hi there", "Hi there"),
        ("\n\nHi th", "Hi there", "\n\nHi there"),
        ("Hi there.\n", "Hi there.", "Hi there."),
        ("Hi there", "Hi", None),
        ("\n\n", "", "\n\n"),
        ("Hi you", "Hi there", None),
        ("<think>Hm", "", None),
    ],
)
def test_a_text_goes_on_where_the_client_is_but_for_the_space_before_it(had: str, text: str, both: str | None) -> None:
    assert spliced(had, text) == both


def test_what_is_held_back_is_no_contradiction() -> None:
    assert spliced("Hi <to", "Hi ", "<tool") == "Hi "
