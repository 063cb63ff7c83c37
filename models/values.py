"""Random values that a dialogue is about: names, phrases, paths, numbers, Chinese, emoji, nested JSON."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from serve.engine.kimi_tokenizer import RANKS_FILE, read_ranks

SYLLABLES = [
    "to",
    "ky",
    "o",
    "ber",
    "lin",
    "pa",
    "ris",
    "shang",
    "hai",
    "mos",
    "cow",
    "del",
    "hi",
    "os",
    "lo",
    "ma",
    "drid",
    "ro",
    "me",
    "qui",
    "zan",
    "tel",
    "vik",
    "nor",
    "bra",
    "sil",
    "ka",
    "na",
    "fu",
    "xi",
    "yun",
    "gra",
    "pel",
    "dor",
    "an",
    "el",
    "ti",
    "re",
    "sta",
    "con",
    "ver",
    "ing",
    "al",
    "un",
    "der",
    "com",
    "pro",
    "mo",
    "bi",
    "le",
    "ser",
    "vi",
    "ce",
    "da",
    "ta",
    "ba",
    "se",
    "net",
    "work",
    "ex",
    "am",
    "ple",
    "ton",
    "burg",
]
HAN = (
    "的一是在不了有人这中大为上个国我以要他时来用们生到作地于出就分对成会可主发年动同工也能下过子说产种面而方后多定行学法所民得经"
    "十三之进着等部度家电力里如水化高自二理起小物现实加量都两体制机当使点从业本去把性好应开它合还因由其些然前外天政四日那社义事平形"
    "北京上海东西南广州深圳天气运行脚本文件目录列出搜索新闻股票价格检查环境依赖安装今明查询怎么样请把写入翻译成调用工具参数"
)
EMOJI = "😀🎉🚀🔥🌍🐍✨💡📦🍜🎵❤🙂☕🌧🏔"
# A merge within a value is rare, so that most of it is copied token by token, whatever it is.
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_PLAIN_WORDS = [
    "report",
    "draft",
    "invoice",
    "budget",
    "music",
    "garden",
    "river",
    "train",
    "engine",
    "winter",
    "summer",
    "coffee",
    "phone",
    "table",
    "green",
    "red",
    "blue",
    "small",
    "big",
    "new",
    "old",
    "main",
    "test",
    "backup",
    "server",
    "user",
    "order",
    "price",
    "total",
]


@functools.cache
def _pieces() -> tuple[str, ...]:
    """Every token that is made of letters, so that none turns up in a request without having been copied before."""
    path = Path(__file__).parent / "tiny-kimi" / RANKS_FILE
    if not path.is_file():
        return tuple(SYLLABLES)  # the vocabulary itself is being made
    names = (token.decode("utf-8", "replace") for token in read_ranks(path))
    return tuple(name for name in names if name.isascii() and name.isalpha())


def word(r: Random) -> str:
    """A word of tokens, of syllables, of random letters, or a plain one."""
    kind = r.random()
    if kind < 0.35:
        out = "".join(r.choice(_pieces()) for _ in range(r.randint(1, 3)))
    elif kind < 0.5:
        out = "".join(r.choice(SYLLABLES) for _ in range(r.randint(1, 3)))
    elif kind < 0.8:
        out = "".join(r.choice(_LETTERS) for _ in range(r.randint(2, 8)))
    else:
        out = r.choice(_PLAIN_WORDS)
    style = r.random()
    return out.capitalize() if style < 0.45 else out.upper() if style < 0.5 else out


def chinese(r: Random) -> str:
    if r.random() < 0.15:
        return "".join(chr(r.randint(0x4E00, 0x9FA5)) for _ in range(r.randint(1, 2)))
    return "".join(r.choice(HAN) for _ in range(r.randint(2, 5)))


def emoji(r: Random) -> str:
    face = chr(r.randint(0x1F300, 0x1F64F)) if r.random() < 0.4 else r.choice(EMOJI)
    return f"{word(r)} {face}" if r.random() < 0.7 else face


def phrase(r: Random) -> str:
    return " ".join(word(r) for _ in range(r.randint(2, 4)))


def path(r: Random) -> str:
    parts = "/".join(word(r).lower() for _ in range(r.randint(1, 3)))
    return r.choice(("", "/", "./")) + parts + r.choice((".txt", ".py", ".md", ".json", ""))


def code_name(r: Random) -> str:
    return f"{word(r)}{r.choice('-_.')}{r.randint(0, 9999)}"


def address(r: Random) -> str:
    return f"{word(r).lower()}@{word(r).lower()}.{r.choice(('com', 'org', 'cn', 'io'))}"


def date(r: Random) -> str:
    return f"{r.randint(1990, 2039)}-{r.randint(1, 12):02}-{r.randint(1, 28):02}"


def command(r: Random) -> str:
    program = r.choice(("ls", "cat", "grep", "git", "echo", "python", word(r).lower()))
    return f"{program} {r.choice(('-l ', '-a ', '', ''))}{path(r)}"


def foreign(r: Random) -> str:
    first, last = r.choice(((0xC0, 0x17F), (0x430, 0x44F), (0x3042, 0x3093), (0x3B1, 0x3C9)))
    return "".join(chr(r.randint(first, last)) for _ in range(r.randint(2, 5)))


_TEXTS: tuple[tuple[Callable[[Random], str], int], ...] = (
    (word, 34), (phrase, 16), (chinese, 14), (emoji, 8), (path, 6),
    (code_name, 6), (address, 4), (date, 4), (command, 5), (foreign, 3),
)  # fmt: skip


def text(r: Random) -> str:
    """A string value without a comma, a quote or a line break: where it ends in a sentence is clear."""
    kinds, weights = zip(*_TEXTS, strict=True)
    return str(r.choices(kinds, weights)[0](r))


def number(r: Random) -> float:
    return round(r.uniform(0, 100), r.randint(1, 2))


def integer(r: Random) -> int:
    return r.randint(0, 9) if r.random() < 0.5 else r.randint(10, 9999)


def boolean(r: Random) -> bool:
    return r.random() < 0.5


def items(r: Random) -> list[Any]:
    make = integer if r.random() < 0.3 else word
    return [make(r) for _ in range(r.randint(1, 3))]


def nested(r: Random) -> dict[str, Any]:
    """An object of one or two keys, now and then with a list or an object inside."""
    inner = (word, integer, boolean, items, lambda q: {word(q).lower(): integer(q)}, chinese)
    return {word(r).lower(): r.choice(inner)(r) for _ in range(r.randint(1, 2))}


BY_TYPE: dict[str, Callable[[Random], Any]] = {
    "string": text,
    "integer": integer,
    "number": number,
    "boolean": boolean,
    "array": items,
    "object": nested,
}


def compact(value: Any) -> str:
    """JSON as short as it gets, characters as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def spoken(value: Any) -> str:
    """A value as it stands in a question: strings bare, everything else as JSON."""
    return value if isinstance(value, str) else compact(value)
