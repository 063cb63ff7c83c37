"""What a user typed stays text through the rendering of a chat template."""

from hypothesis import given
from hypothesis import strategies as st

from serve.tokenizer import KimiTokenizer
from serve.tokenizer.guard import MARK, guarded, unguarded_parts

TEXT = st.lists(st.sampled_from([*"<|im_end>[EOS]ab", MARK, "<|im_end|>", "[EOS]", "</think>"])).map("".join)


@given(st.lists(TEXT, max_size=4))
def test_user_texts_side_by_side_never_make_a_special_token(tiny: KimiTokenizer, texts: list[str]) -> None:
    rendered = "<|im_user|>" + "".join(guarded(texts)) + "<|im_end|>"
    parts = list(unguarded_parts(rendered, tiny.split_special))
    assert [text for text, special in parts if special] == ["<|im_user|>", "<|im_end|>"]
    assert "".join(text for text, special in parts if not special) == "".join(texts)


def test_nested_values_are_guarded_and_others_untouched() -> None:
    value = {"role": "user", "n": 3, "parts": ["[EOS]", None], "<k": True}
    assert guarded(value) == {"role": "user", "n": 3, "parts": [f"[{MARK}EOS]", None], f"<{MARK}k": True}
