"""The files of a Kimi vocabulary: byte ranks first, then a block of 256 reserved ids, some of them named."""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RANKS_FILE = "tiktoken.model"
CONFIG_FILE = "tokenizer_config.json"
RESERVED_COUNT = 256


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


def reserved_name(token_id: int) -> str:
    """Returns the name of an unnamed id. It holds the absolute id: names relative to the block collide with text."""
    return f"<|reserved_token_{token_id}|>"


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
    tokens = {i: named.get(i) or SpecialToken(reserved_name(i), special=False) for i in block}
    if len({token.text for token in tokens.values()}) != RESERVED_COUNT:
        raise TokenizerFileError("two ids of the reserved block have the same name")
    return tokens
