"""Builds both models' tokenizers from one set of byte ranks, in the formats of the originals."""

import base64
import json
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers import models as tokenizer_models

from models.render import ROOT, answer_text, prompt_text

MERGES = 768
BASE_SIZE = 256 + MERGES
DIALOGUES = 12_000

# Offsets within the block of 256 reserved ids, and whether `skip_special_tokens` leaves the token out: as published.
KIMI_NAMED: tuple[tuple[int, str, bool], ...] = (
    (0, "[BOS]", True), (1, "[EOS]", True), (2, "<|im_end|>", True), (3, "<|im_user|>", True),
    (4, "<|im_assistant|>", True), (6, "<|start_header_id|>", True), (7, "<|end_header_id|>", True), (9, "[EOT]", True),
    (10, "<|im_system|>", True), (11, "<|tool_calls_section_begin|>", False), (12, "<|tool_calls_section_end|>", False),
    (13, "<|tool_call_begin|>", False), (14, "<|tool_call_argument_begin|>", False), (15, "<|tool_call_end|>", False),
    (17, "<|im_middle|>", True), (18, "<|media_begin|>", True), (19, "<|media_content|>", True),
    (20, "<|media_end|>", True), (21, "<|media_pad|>", True), (22, "<think>", False), (23, "</think>", False),
    (254, "[UNK]", True), (255, "[PAD]", True),
)  # fmt: skip
QWEN_SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>",
    "<think>", "</think>",
)  # fmt: skip
# Markers a parser must see keep `special: false`, as published.
QWEN_PLAIN = frozenset(QWEN_SPECIAL[14:26])
_QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Merges never cross the edge of a word, so a value is cut the same way in the question and in the answer.
_MERGE_WITHIN = r"""[A-Za-z]+|\{"|":"|","|"\}|</|>\n|[\s\S]"""


def main() -> None:
    """Write `tiktoken.model`, `tokenizer.json` and both `tokenizer_config.json`."""
    merges = learn_merges()
    write_kimi(ROOT / "tiny-kimi", merges)
    write_qwen(ROOT / "tiny-qwen", merges)


def learn_merges() -> list[tuple[str, str]]:
    """Byte-pair merges from dialogues in both formats, in the byte-level alphabet."""
    from models.dialogues import dialogue

    r = Random("vocabulary")
    made = (dialogue(r) for _ in range(DIALOGUES))
    texts = (prompt_text(f, d) + answer_text(f, d) for d in made for f in ("tiny-kimi", "tiny-qwen"))
    learned = Tokenizer(tokenizer_models.BPE())
    learned.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_MERGE_WITHIN), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = [name for _, name, _ in KIMI_NAMED] + list(QWEN_SPECIAL)
    trainer = trainers.BpeTrainer(
        vocab_size=BASE_SIZE, initial_alphabet=alphabet, show_progress=False, special_tokens=[]
    )
    learned.train_from_iterator((_without(text, specials) for text in texts), trainer)
    return [(a, b) for a, b in json.loads(learned.to_str())["model"]["merges"]]


def _without(text: str, names: list[str]) -> str:
    for name in names:
        text = text.replace(name, " ")
    return text


def _vocabulary(merges: list[tuple[str, str]]) -> dict[str, int]:
    """Names in the byte-level alphabet: the 256 bytes in their own order, then one id per merge."""
    names = [_BYTE_TO_CHAR[byte] for byte in range(256)] + [a + b for a, b in merges]
    vocabulary = {name: index for index, name in enumerate(dict.fromkeys(names))}
    if len(vocabulary) != BASE_SIZE:
        raise ValueError(f"{len(vocabulary)} ranks, expected {BASE_SIZE}: two merges give the same token")
    return vocabulary


def _byte_alphabet() -> dict[int, str]:
    encode = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str
    # Every byte occurs in some character below U+0400 or as a lead byte of a longer one; a lone byte has no text.
    table: dict[int, str] = {}
    for code in (*range(0x800), *range(0x800, 0xD800, 0x40), *range(0xE000, 0x10FFFF, 0x1000)):
        data = chr(code).encode()
        table.update(zip(data, "".join(part for part, _ in encode(chr(code))), strict=True))
    unused = [byte for byte in range(256) if byte not in table]
    free = [char for char in sorted(pre_tokenizers.ByteLevel.alphabet()) if char not in set(table.values())]
    return table | dict(zip(unused, free, strict=True))


_BYTE_TO_CHAR = _byte_alphabet()


def write_kimi(folder: Path, merges: list[tuple[str, str]]) -> None:
    """Write the ranks as `tiktoken.model` and the named ids as `added_tokens_decoder`."""
    to_byte = {char: byte for byte, char in _BYTE_TO_CHAR.items()}
    lines = []
    for name, rank in _vocabulary(merges).items():
        token = bytes(to_byte[char] for char in name)
        lines.append(f"{base64.b64encode(token).decode()} {rank}\n")
    (folder / "tiktoken.model").write_text("".join(lines), "ascii")
    named = {str(BASE_SIZE + offset): _entry(name, special) for offset, name, special in KIMI_NAMED}
    config = {
        "added_tokens_decoder": named,
        "bos_token": "[BOS]",
        "eos_token": "<|im_end|>",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "tokenizer_class": "TikTokenTokenizer",
        "model_max_length": 4096,
    }
    _write_json(folder / "tokenizer_config.json", config)


def write_qwen(folder: Path, merges: list[tuple[str, str]]) -> None:
    """Write `tokenizer.json` with Qwen3's special tokens behind the shared ranks."""
    tokenizer = Tokenizer(tokenizer_models.BPE(vocab=_vocabulary(merges), merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_QWEN_SPLIT), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(name, special=name not in QWEN_PLAIN, normalized=False) for name in QWEN_SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "added_tokens_decoder": {
            str(BASE_SIZE + offset): _entry(name, name not in QWEN_PLAIN) for offset, name in enumerate(QWEN_SPECIAL)
        },
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
    }
    _write_json(folder / "tokenizer_config.json", config)


def _entry(content: str, special: bool) -> dict[str, Any]:
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {"content": content, **flags, "special": special}


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
