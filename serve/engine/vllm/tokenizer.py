"""`KimiTokenizer` as vLLM's tokenizer mode `specgate_kimi`, which avoids transformers' conversion.

That conversion shifts Kimi's special ids by one to three, so that no marker would ever match.
"""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, overload

import tiktoken
from huggingface_hub import snapshot_download
from transformers import BatchEncoding
from transformers.utils.chat_template_utils import render_jinja_template
from vllm.renderers.registry import RENDERER_REGISTRY
from vllm.tokenizers.registry import TokenizerRegistry

from serve.engine.kimi_tokenizer import (
    CONFIG_FILE,
    RANKS_FILE,
    KimiTokenizer,
    TokenizerFileError,
    escape,
    unescaped_parts,
)

MODE = "specgate_kimi"
TEMPLATE_FILE = "chat_template.jinja"


def register() -> None:
    """Add the mode to vLLM's tokenizers and renderers; safe to call again."""
    if MODE not in TokenizerRegistry.tokenizers:
        TokenizerRegistry.register(MODE, __name__, VllmKimiTokenizer.__name__)
    if MODE not in RENDERER_REGISTRY.renderers:
        RENDERER_REGISTRY.register(MODE, "vllm.renderers.hf", "HfRenderer")


class VllmKimiTokenizer:
    """Implements vLLM's `TokenizerLike` protocol with `KimiTokenizer`."""

    is_fast = False

    def __init__(self, folder: Path, name: str, truncation_side: str = "left") -> None:
        self._kimi = KimiTokenizer.from_dir(folder)
        self._config: dict[str, Any] = json.loads((folder / CONFIG_FILE).read_text("utf-8"))
        template = folder / TEMPLATE_FILE
        self.chat_template = template.read_text("utf-8") if template.is_file() else self._config.get("chat_template")
        self.name_or_path = name
        self.truncation_side = truncation_side
        special = {i: token.text for i, token in self._kimi.special_tokens.items() if token.special}
        self.all_special_ids = list(special)
        self.all_special_tokens = list(special.values())
        self._vocabulary = dict(self._kimi.vocabulary)
        self.max_chars_per_token = max(map(len, self._vocabulary))

    @classmethod
    def from_pretrained(
        cls, path_or_repo_id: str | Path, *args: Any, revision: str | None = None, download_dir: str | None = None,
        truncation_side: str = "left", **kwargs: Any,
    ) -> Self:  # fmt: skip
        """Load a model folder, or the tokenizer files of a model on the hub."""
        folder = Path(path_or_repo_id)
        if not folder.is_dir():
            patterns = [RANKS_FILE, CONFIG_FILE, TEMPLATE_FILE]
            folder = Path(
                snapshot_download(
                    str(path_or_repo_id), revision=revision, cache_dir=download_dir, allow_patterns=patterns
                )
            )
        return cls(folder, str(path_or_repo_id), truncation_side)

    # xgrammar recognizes tiktoken vocabularies, in byte-level spelling, by this attribute.
    @property
    def tokenizer(self) -> tiktoken.Encoding:
        return self._kimi.encoding

    def _named(self, key: str) -> int:
        name = self._config.get(key)
        if not isinstance(name, str) or name not in self._vocabulary:
            raise TokenizerFileError(f"{self.name_or_path}/{CONFIG_FILE}: {key} {name!r} is not a token")
        return self._vocabulary[name]

    @property
    def bos_token_id(self) -> int:
        return self._named("bos_token")

    @property
    def eos_token_id(self) -> int:
        return self._named("eos_token")

    @property
    def pad_token_id(self) -> int:
        return self._named("pad_token")

    @property
    def eos_token(self) -> str:
        return str(self._config["eos_token"])

    @property
    def vocab_size(self) -> int:
        return self._kimi.vocab_size

    @property
    def max_token_id(self) -> int:
        return self._kimi.vocab_size - 1

    def __len__(self) -> int:
        return self._kimi.vocab_size

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return copy.copy(self)  # immutable

    def num_special_tokens_to_add(self) -> int:
        return 0

    def get_vocab(self) -> dict[str, int]:
        """Returns the id of every token by name, without a copy: it has 163,840 entries and callers only read it."""
        return self._vocabulary

    def get_added_vocab(self) -> dict[str, int]:
        """Returns nothing: vLLM's detokenizer would put spaces around every token listed here."""
        return {}

    def __call__(
        self, text: str | list[str], text_pair: str | None = None, add_special_tokens: bool = True,
        truncation: bool = False, max_length: int | None = None, **kwargs: Any,
    ) -> BatchEncoding:  # fmt: skip
        texts = [text] if isinstance(text, str) else text
        ids = [self.encode(one, truncation=truncation, max_length=max_length) for one in texts]
        input_ids: Any = ids[0] if isinstance(text, str) else ids
        mask = [1] * len(ids[0]) if isinstance(text, str) else [[1] * len(row) for row in ids]
        return BatchEncoding({"input_ids": input_ids, "attention_mask": mask})

    def encode(
        self, text: str, truncation: bool | None = None, max_length: int | None = None,
        add_special_tokens: bool = True, **kwargs: Any,
    ) -> list[int]:  # fmt: skip
        """Returns the ids of a raw prompt (`/v1/completions`); the caller rendered it, so markers are special tokens.

        Chats are never encoded from text; see `apply_chat_template`.
        """
        ids = self._kimi.encode(text, allow_special=True)
        if not truncation or max_length is None or len(ids) <= max_length:
            return ids
        return ids[len(ids) - max_length :] if self.truncation_side == "left" else ids[:max_length]

    def get_chat_template(self, chat_template: str | None = None, tools: Any = None) -> str:
        template = chat_template or self.chat_template
        if not isinstance(template, str):
            raise TokenizerFileError(f"{self.name_or_path} has no {TEMPLATE_FILE}")
        return template

    def apply_chat_template(
        self, messages: list[Any] | None = None, tools: list[dict[str, Any]] | None = None,
        chat_template: str | None = None, tokenize: bool = True, conversation: list[Any] | None = None,
        return_dict: bool = False, **kwargs: Any,
    ) -> list[int]:  # fmt: skip
        """Render a chat to ids directly: via text, a `<|im_end|>` that a user typed would become the special token."""
        kwargs.setdefault("add_generation_prompt", False)
        rendered, _ = render_jinja_template(
            conversations=[escape(conversation if messages is None else messages)],
            tools=escape(tools) if tools else None,
            chat_template=self.get_chat_template(chat_template),
            **kwargs,
        )
        return [
            token_id
            for text, is_special in unescaped_parts(rendered[0], self._kimi.split_special)
            for token_id in self._kimi.encode(text, allow_special=is_special)
        ]

    @overload
    def convert_tokens_to_ids(self, tokens: str) -> int: ...
    @overload
    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]: ...
    def convert_tokens_to_ids(self, tokens: str | list[str]) -> int | list[int]:
        if isinstance(tokens, str):
            return self._kimi.token_to_id(tokens)
        return [self._kimi.token_to_id(token) for token in tokens]

    def convert_ids_to_tokens(self, ids: Sequence[int], skip_special_tokens: bool = False) -> list[str]:
        skipped = set(self.all_special_ids) if skip_special_tokens else ()
        return [self._kimi.id_to_token(i) for i in ids if i not in skipped]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return self._kimi.tokens_to_bytes(tokens).decode("utf-8", errors="replace")

    def decode(self, ids: Sequence[int] | int, skip_special_tokens: bool = False, **kwargs: Any) -> str:
        return self._kimi.decode([ids] if isinstance(ids, int) else ids, skip_special_tokens)

    def batch_decode(self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = False) -> list[str]:
        return [self._kimi.decode(ids, skip_special_tokens) for ids in sequences]
