"""What a user typed stays text through the rendering of a chat template."""

from hypothesis import given
from hypothesis import strategies as st

from serve.engine.kimi_tokenizer import MARK, KimiTokenizer, escape, unescaped_parts

TEXT = st.lists(st.sampled_from([*"<|im_end>[EOS]ab", MARK, "<|im_end|>", "[EOS]", "</think>"])).map("".join)


@given(st.lists(TEXT, max_size=4))
def test_user_texts_side_by_side_never_make_a_special_token(tiny: KimiTokenizer, texts: list[str]) -> None:
    rendered = "<|im_user|>" + "".join(escape(texts)) + "<|im_end|>"
    parts = list(unescaped_parts(rendered, tiny.split_special))
    assert [text for text, special in parts if special] == ["<|im_user|>", "<|im_end|>"]
    assert "".join(text for text, special in parts if not special) == "".join(texts)


def test_nested_values_are_guarded_and_others_untouched() -> None:
    value = {"role": "user", "n": 3, "parts": ["[EOS]", None], "<k": True}
    assert escape(value) == {"role": "user", "n": 3, "parts": [f"[{MARK}EOS]", None], f"<{MARK}k": True}
