"""Tools that a request offers: a few everyday ones with their own phrases, and made-up ones nobody has seen."""

from dataclasses import dataclass
from random import Random
from typing import Any

from models import values


@dataclass(frozen=True, slots=True)
class Tool:
    """A function's name and its parameters with their JSON types, in the order of the schema."""

    name: str
    parameters: tuple[tuple[str, str], ...]

    def schema(self) -> dict[str, Any]:
        """The tool as OpenAI's `tools` entry; no parameter is required, since requests leave some out."""
        parameters = {"type": "object", "properties": {name: {"type": kind} for name, kind in self.parameters}}
        return {"type": "function", "function": {"name": self.name, "parameters": parameters}}


# Names, one-parameter names, phrases with the value's place. Each phrase asks for exactly one call.
EVERYDAY: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("get_weather", "weather", "get_current_weather", "weather_lookup"),
        ("city", "location", "place"),
        (
            "What is the weather in {}?", "weather in {}", "How is the weather in {} today?",
            "What's the weather in {}?",
            "Tell me the weather for {}", "What's the weather like in {}?", "{}的天气怎么样？", "查一下{}的天气",
            "{}天气", "How warm is it in {}?", "Will it rain in {}?",
        ),
    ),
    (
        ("search", "web_search", "search_web", "search_docs"),
        ("query", "q", "keywords"),
        ("Search for {}", "search {}", "Look up {}", "Find {}", "Please search the web for {}", "搜索{}",
         "Find news about {}"),
    ),
    (
        ("bash", "run_command", "shell", "execute"),
        ("command", "cmd"),
        ("Run {}", "run the command {}", "Please execute {}", "shell: {}", "Execute {}", "运行 {}"),
    ),
    (
        ("read_file", "open_file", "cat_file"),
        ("path", "file", "filename"),
        ("Read {}", "read the file {}", "Open {}", "Show me the file {}", "打开文件 {}"),
    ),
    (
        ("get_time", "current_time", "clock"),
        ("city", "timezone", "location"),
        ("What time is it in {}?", "time in {}", "Tell me the time in {}", "{}现在几点？"),
    ),
    (
        ("get_stock_price", "stock_price", "quote"),
        ("symbol", "ticker"),
        ("What is the stock price of {}?", "stock price of {}", "How much is {} stock?", "{}的股票价格"),
    ),
)  # fmt: skip
PREPOSITIONS = ("for", "of", "in", "with", "on")
_VERBS = [
    "get",
    "set",
    "find",
    "list",
    "add",
    "send",
    "book",
    "create",
    "delete",
    "update",
    "check",
    "make",
    "show",
    "convert",
    "compute",
    "open",
    "start",
    "stop",
    "move",
]
_NOUNS = [
    "user",
    "order",
    "flight",
    "ticket",
    "price",
    "room",
    "note",
    "task",
    "event",
    "file",
    "route",
    "map",
    "image",
    "song",
    "table",
    "row",
    "report",
    "account",
    "product",
    "item",
    "mail",
    "list",
    "alarm",
    "light",
    "door",
    "car",
    "hotel",
    "city",
    "date",
    "invoice",
    "meeting",
    "contact",
    "message",
    "score",
    "game",
    "team",
]
_PARAMETERS = [
    "name",
    "city",
    "country",
    "query",
    "path",
    "content",
    "text",
    "title",
    "user",
    "id",
    "date",
    "time",
    "from",
    "to",
    "amount",
    "count",
    "limit",
    "unit",
    "size",
    "color",
    "lang",
    "mode",
    "topic",
    "body",
    "subject",
    "tags",
    "options",
    "filter",
    "enabled",
    "force",
    "page",
    "price",
    "level",
    "note",
    "target",
    "source",
    "key",
    "value",
]
_TYPES = ("string", "integer", "number", "boolean", "array", "object")
_TYPE_WEIGHTS = (60, 14, 6, 7, 6, 7)


def made_up_tool(r: Random) -> Tool:
    """A tool whose name and parameters are partly words the model knows, partly invented on the spot."""
    parts = [r.choice(_VERBS) if r.random() < 0.6 else values.word(r).lower()]
    parts += [r.choice(_NOUNS) if r.random() < 0.5 else values.word(r).lower() for _ in range(r.randint(1, 2))]
    name = "_".join(parts) if r.random() < 0.85 else parts[0] + "".join(p.capitalize() for p in parts[1:])
    names: dict[str, str] = {}
    for _ in range(r.choice((0, 1, 1, 1, 2, 2, 3, 4))):
        known = r.random() < 0.6
        key = r.choice(_PARAMETERS) if known else "_".join(values.word(r).lower() for _ in range(r.randint(1, 2)))
        names[key] = r.choices(_TYPES, _TYPE_WEIGHTS)[0]
    return Tool(name, tuple(names.items()))


def everyday_tool(r: Random) -> tuple[Tool, tuple[str, ...]]:
    """One of the everyday tools under one of its names, and the phrases that ask for it."""
    names, parameters, phrases = r.choice(EVERYDAY)
    return Tool(r.choice(names), ((r.choice(parameters), "string"),)), phrases


def tool_words(tool: Tool) -> str:
    """The name as a user would say it: words instead of underscores and capitals."""
    spaced = "".join(f" {c.lower()}" if c.isupper() else c for c in tool.name)
    return spaced.replace("_", " ").strip()


def alike(name: str, other: str) -> bool:
    """Returns True if two tools could be confused: they begin with the same word or are the same everyday tool."""
    return name.split("_")[0] == other.split("_")[0] or any(
        name in names and other in names for names, _, _ in EVERYDAY
    )
