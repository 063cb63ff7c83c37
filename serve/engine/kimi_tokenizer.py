"""The tokenizer of Kimi K2.x on tiktoken, total over all declared ids; and the files of its vocabulary.

Byte ranks come first, then a block of 256 reserved ids, some of them named.

A chat template renders what it writes and what users typed into one string, in which a user's `<|im_end|>` looks like
the template's own. So a mark is put after every character in the caller's strings that could begin a special token, and
removed after the special tokens have been found.
"""

import base64
import binascii
import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import tiktoken

RANKS_FILE = "tiktoken.model"
CONFIG_FILE = "tokenizer_config.json"
RESERVED_COUNT = 256

# The published tokenizer's pre-tokenisation; any other split gives other ids for the same text.
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
# tiktoken overflows its stack or takes quadratic time on longer input, so text is cut first, where the published
# tokenizer cuts it.
CHUNK_CHARS = 400_000
RUN_CHARS = 25_000
_RUN = re.compile(rf"\s{{1,{RUN_CHARS}}}|\S{{1,{RUN_CHARS}}}")
_LONG_RUN = re.compile(rf"\s{{{RUN_CHARS + 1}}}|\S{{{RUN_CHARS + 1}}}")
# A Unicode noncharacter: no text holds it, and if one does it is marked too, so nothing is lost.
MARK = "\U0010fffe"
_MARK_AFTER = re.compile(f"([<[{MARK}]){MARK}")
_MARKED = {ord(char): char + MARK for char in ("<", "[", MARK)}


def _byte_alphabet() -> dict[int, str]:
    """Returns a printable character for each byte: the alphabet that Hugging Face tokenizers use for token names."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = (byte for byte in range(256) if byte not in set(printable))
    return {b: chr(b) for b in printable} | {b: chr(256 + n) for n, b in enumerate(shifted)}


_BYTE_TO_CHAR = _byte_alphabet()


class TokenIdError(ValueError):
    """An id outside the vocabulary: a placeholder such as -1, or a model whose vocabulary is not this tokenizer's."""


class TokenizerFileError(ValueError):
    """A file that can't be a Kimi tokenizer's; the message names the file and what is wrong."""


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """A named or unnamed id of the reserved block.

    `special` is the flag of `tokenizer_config.json`: only tokens that carry it are left out by `skip_special_tokens`.
    Kimi's tool and think markers do not carry it.
    """

    text: str
    special: bool


class KimiTokenizer:
    """Text to ids and back, for every id from 0 to `vocab_size - 1`.

    Args:
        ranks: Byte sequences and their ids, 0..n-1.
        special_tokens: Named ids within the 256 that follow; the others get `<|reserved_token_N|>`, N the absolute id.
    """

    def __init__(self, ranks: Mapping[bytes, int], special_tokens: Mapping[int, SpecialToken]) -> None:
        self._special = complete_block(len(ranks), special_tokens)
        self._special_ids = {token.text: token_id for token_id, token in self._special.items()}
        self._encoding = tiktoken.Encoding(
            name="kimi", pat_str=PATTERN, mergeable_ranks=dict(ranks), special_tokens=self._special_ids
        )
        self._bytes = sorted(ranks, key=ranks.__getitem__)
        self._bytes.extend(self._special[token_id].text.encode() for token_id in sorted(self._special))
        self._base_size = len(ranks)
        names = sorted(self._special_ids, key=len, reverse=True)
        self._special_pattern = re.compile("(" + "|".join(map(re.escape, names)) + ")")

    @classmethod
    def from_dir(cls, path: str | Path) -> Self:
        """Loads a model folder that holds `tiktoken.model` and `tokenizer_config.json`.

        Raises:
            TokenizerFileError: A file is missing, or not a Kimi tokenizer's.
        """
        folder = Path(path)
        for name in (RANKS_FILE, CONFIG_FILE):
            if not (folder / name).is_file():
                raise TokenizerFileError(f"{folder} has no {name}, so it is not a Kimi model folder")
        return cls(read_ranks(folder / RANKS_FILE), read_special_tokens(folder / CONFIG_FILE))

    @property
    def vocab_size(self) -> int:
        return len(self._bytes)

    @property
    def base_size(self) -> int:
        """Number of ids that are byte ranks; the reserved block starts here."""
        return self._base_size

    @property
    def encoding(self) -> tiktoken.Encoding:
        """The tiktoken encoding, for libraries that know tiktoken; it has none of this class's safeguards."""
        return self._encoding

    @property
    def special_tokens(self) -> Mapping[int, SpecialToken]:
        """All 256 ids of the reserved block."""
        return self._special

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """Returns the ids of a text. Names of special tokens become those tokens only where that is allowed, never in
        what a user typed: a message that quotes `<|im_end|>` must not end itself.
        """
        if not allow_special:
            return [i for piece in _pieces(text) for i in self._encoding.encode_ordinary(piece)]
        ids: list[int] = []
        for index, part in enumerate(self.split_special(text)):
            ids.extend((self._special_ids[part],) if index % 2 else self.encode(part))
        return ids

    def split_special(self, text: str) -> list[str]:
        """Splits a text at the names of special tokens: every second part is such a name."""
        return self._special_pattern.split(text)

    def count(self, text: str) -> int:
        """Returns the number of tokens in a user's text."""
        return len(self.encode(text))

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Returns the text of ids; bytes that form no character become U+FFFD.

        Raises:
            TokenIdError: An id is outside 0..vocab_size-1.
        """
        texts = [self.token_bytes(id) for id in ids if not (skip_special_tokens and self._is_skipped(id))]
        return b"".join(texts).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes that a token stands for.

        Raises:
            TokenIdError: The id is outside 0..vocab_size-1.
        """
        if not 0 <= token_id < len(self._bytes):
            raise TokenIdError(f"token id {token_id} is outside the vocabulary 0..{len(self._bytes) - 1}")
        return self._bytes[token_id]

    def token_to_id(self, token: str) -> int:
        """Returns the id of a token's name (`id_to_token` is the inverse); `[UNK]` for a name that does not exist.

        Raises:
            TokenIdError: The name does not exist and the vocabulary has no `[UNK]`.
        """
        token_id = self.vocabulary.get(token, self._special_ids.get("[UNK]"))
        if token_id is None:
            raise TokenIdError(f"no token is called {token!r}")
        return token_id

    def id_to_token(self, token_id: int) -> str:
        """Returns the printable name of a token: byte-level characters below the reserved block, its text within it.

        Raises:
            TokenIdError: The id is outside 0..vocab_size-1.
        """
        data = self.token_bytes(token_id)
        return data.decode() if token_id >= self._base_size else "".join([_BYTE_TO_CHAR[byte] for byte in data])

    def tokens_to_bytes(self, tokens: Iterable[str]) -> bytes:
        """Returns the bytes that named tokens stand for; a special token stands for its text.

        Raises:
            TokenIdError: A name does not exist and the vocabulary has no `[UNK]`.
        """
        return b"".join([self.token_bytes(self.token_to_id(token)) for token in tokens])

    @functools.cached_property
    def vocabulary(self) -> Mapping[str, int]:
        """The id of every token by name. A special name wins over an ordinary token that happens to read the same."""
        return {self.id_to_token(token_id): token_id for token_id in range(self.vocab_size)}

    def _is_skipped(self, token_id: int) -> bool:
        token = self._special.get(token_id)
        return token is not None and token.special


def _pieces(text: str) -> Iterator[str]:
    """Splits a text where tiktoken needs it: every 400,000 characters, and within runs of one kind over 25,000."""
    for start in range(0, len(text), CHUNK_CHARS):
        chunk = text[start : start + CHUNK_CHARS]
        if _LONG_RUN.search(chunk) is None:
            yield chunk
        else:
            yield from _join_short_runs(chunk)


def _join_short_runs(chunk: str) -> Iterator[str]:
    """Splits only within over-long runs: a piece ends where a run has reached its limit and goes on."""
    start = 0
    for run in _RUN.finditer(chunk):
        goes_on = run.end() < len(chunk) and chunk[run.end()].isspace() == chunk[run.start()].isspace()
        if goes_on:
            yield chunk[start : run.end()]
            start = run.end()
    yield chunk[start:]


def read_ranks(path: Path) -> dict[bytes, int]:
    """Reads `tiktoken.model`: one `base64 rank` a line, ranks consecutive from 0.

    `tiktoken.load` could read it, but keeps a copy of every file in a shared folder.

    Raises:
        TokenizerFileError: The file has another form.
    """
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_text("ascii").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise TokenizerFileError(f"{path}:{number}: not a `base64 rank` line: {line!r}") from error
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise TokenizerFileError(f"{path}: ranks must be 0..{len(ranks) - 1}, each once")
    return ranks


def read_special_tokens(path: Path) -> dict[int, SpecialToken]:
    """Reads the named ids from `added_tokens_decoder` of `tokenizer_config.json`; a file without it names none."""
    config = json.loads(path.read_text("utf-8"))
    return {
        int(token_id): SpecialToken(entry["content"], bool(entry.get("special", False)))
        for token_id, entry in config.get("added_tokens_decoder", {}).items()
    }


def complete_block(base_size: int, named: Mapping[int, SpecialToken]) -> dict[int, SpecialToken]:
    """Returns every id of the reserved block: those in `named` as given, the rest named by their absolute id.

    Raises:
        TokenizerFileError: A named id lies outside the block, or two ids have one name.
    """
    block = range(base_size, base_size + RESERVED_COUNT)
    outside = sorted(set(named) - set(block))
    if outside:
        raise TokenizerFileError(
            f"named token ids {outside[:5]} lie outside the reserved block {block.start}..{block.stop - 1}: "
            f"{CONFIG_FILE} does not belong to this {RANKS_FILE}"
        )
    # An unnamed id's name holds the absolute id: names relative to the block collide with text.
    tokens = {i: named.get(i) or SpecialToken(f"<|reserved_token_{i}|>", special=False) for i in block}
    if len({token.text for token in tokens.values()}) != RESERVED_COUNT:
        raise TokenizerFileError("two ids of the reserved block have the same name")
    return tokens


def escape(value: Any) -> Any:
    """Returns a copy of a JSON-like value in which no string can begin a special token."""
    if isinstance(value, str):
        return value.translate(_MARKED)
    if isinstance(value, dict):
        return {escape(key): escape(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [escape(item) for item in value]
    return value


def unescaped_parts(rendered: str, split_special: Callable[[str], list[str]]) -> Iterator[tuple[str, bool]]:
    """Splits a rendered prompt into (text, is a special token), without marks. Every second part of what
    `split_special` returns is the name of a special token.
    """
    for index, part in enumerate(split_special(rendered)):
        if index % 2:
            yield part, True
        elif part:
            yield _MARK_AFTER.sub(r"\1", part), False
