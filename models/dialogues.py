"""Synthetic dialogues, for training and for measuring: a conversation, its tools, and the one right answer to it."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from models import catalogue, values
from models.catalogue import EVERYDAY, Tool


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A prompt (messages and tools, OpenAI's shape) and the answer that follows from it alone.

    `kind` groups figures in the evaluation; `thinking` says whether the prompt asks for reasoning first.
    """

    kind: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[Tool, ...]
    thinking: bool
    reasoning: str
    content: str = ""
    calls: tuple[Call, ...] = ()


Clause = tuple[Tool, Call, str]


def _explicit_clause(r: Random, tool: Tool) -> Clause:
    """A request that names the parameters, in any order; those it leaves out stay out of the call."""
    chosen = [(k, t) for k, t in tool.parameters if len(tool.parameters) == 1 or r.random() < 0.85]
    arguments = {name: values.BY_TYPE[kind](r) for name, kind in chosen}
    for name, kind in chosen:
        if kind == "string" and r.random() < 0.04:
            arguments[name] = str(values.integer(r))  # digits that the schema calls a string
    mentioned = list(arguments.items())
    r.shuffle(mentioned)
    link, quote = r.choice((" ", " ", "=", ": ")), r.choice(("", "", "", '"', "'"))
    said = [
        f"{k}{link}{quote}{v}{quote}" if isinstance(v, str) else f"{k}{link}{values.spoken(v)}" for k, v in mentioned
    ]
    head = r.choice(("call", "use", "Call", "please call", "run", "Use", "调用")) + f" {tool.name}"
    if r.random() < 0.3:
        head = catalogue.tool_words(tool)
    joined = r.choice((", ", " and ", " ")).join(said) if quote else ", ".join(said)
    return tool, Call(tool.name, arguments), f"{head} {r.choice(('with ', '', 'with '))}{joined}" if said else head


def _short_clause(r: Random, tool: Tool) -> Clause:
    """A request that gives the one value without saying what parameter it is."""
    value = values.text(r)
    said = f"{catalogue.tool_words(tool)} {r.choice(catalogue.PREPOSITIONS)} {value}"
    return tool, Call(tool.name, {tool.parameters[0][0]: value}), said


def _everyday_clause(r: Random) -> Clause:
    tool, phrases = catalogue.everyday_tool(r)
    value = values.text(r)
    return tool, Call(tool.name, {tool.parameters[0][0]: value}), r.choice(phrases).format(value)


def _clause(r: Random) -> Clause:
    if r.random() < 0.4:
        return _everyday_clause(r)
    tool = catalogue.made_up_tool(r)
    single = [kind for _, kind in tool.parameters] == ["string"]
    return _short_clause(r, tool) if single and r.random() < 0.4 else _explicit_clause(r, tool)


def _offer(r: Random, needed: list[Tool], extra: int) -> tuple[Tool, ...]:
    offered = {tool.name: tool for tool in needed}
    for _ in range(extra):
        tool = catalogue.everyday_tool(r)[0] if r.random() < 0.3 else catalogue.made_up_tool(r)
        if not any(catalogue.alike(tool.name, other) for other in offered):
            offered[tool.name] = tool
    tools = list(offered.values())
    r.shuffle(tools)
    return tuple(tools)


def _why(calls: list[Call]) -> str:
    return "I call " + ", ".join(call.name for call in calls) + "."


def single_call(r: Random) -> Dialogue:
    tool, call, said = _clause(r)
    return _asked(r, "single", said, _offer(r, [tool], r.choice((0, 0, 1, 2, 3))), [call])


def parallel_calls(r: Random) -> Dialogue:
    count = 2 if r.random() < 0.75 else 3
    if r.random() < 0.5:
        tool, phrases = catalogue.everyday_tool(r)
        wanted = [values.word(r) if r.random() < 0.6 else values.chinese(r) for _ in range(count)]
        joined = ", ".join(wanted[:-1]) + r.choice((" and ", " and ", "和")) + wanted[-1]
        calls = [Call(tool.name, {tool.parameters[0][0]: value}) for value in wanted]
        return _asked(r, "parallel", r.choice(phrases).format(joined), _offer(r, [tool], r.choice((0, 1, 2))), calls)
    clauses = [_clause(r) for _ in range(count)]
    if len({tool.name for tool, _, _ in clauses}) < count:
        return parallel_calls(r)
    said = r.choice(("; ", ", then ", " and then ", "; ")).join(text.rstrip("?？") for _, _, text in clauses)
    return _asked(
        r, "parallel", said, _offer(r, [t for t, _, _ in clauses], r.choice((0, 1))), [c for _, c, _ in clauses]
    )


def _asked(r: Random, kind: str, said: str, tools: tuple[Tool, ...], calls: list[Call]) -> Dialogue:
    return Dialogue(kind, (_user(said),), tools, r.random() < 0.5, _why(calls), calls=tuple(calls))


def _user(said: str) -> dict[str, Any]:
    return {"role": "user", "content": said}


NOTE = "{0} is a large topic. I am a small test model and know only three things about {0}. First, {0} has a name. Second, you asked about {0}. Third, this text ends here."  # noqa: E501
_FIXED = (
    (("hello", "Hello!", "hi", "Hi there", "hey", "Good morning"), "Hello! How can I help you?"),
    (("你好", "你好！", "您好"), "你好！有什么可以帮你的吗？"),
    (("Who are you?", "what are you", "What is your name?", "你是谁？"), "I am a tiny test model. I can call tools."),
    (("thanks", "Thank you!", "thx", "谢谢"), "You are welcome."),
    (("bye", "Goodbye", "see you"), "Goodbye!"),
)
_ECHO: tuple[tuple[tuple[str, ...], str], ...] = (
    (("Say {}", "say {}", "Repeat {}", "repeat after me: {}", "Echo {}", "Please say {}"), "{0}"),
    (("My name is {}", "I am {}", "Call me {}", "我叫{}"), "Nice to meet you, {0}."),
    (
        ("Tell me about {}", "What is {}?", "Explain {}", "Describe {}", "Write a short text about {}",
         "How does {} work?", "Write a story about {}", "Tell me a story about {}"),
        NOTE,
    ),
)  # fmt: skip


def plain_chat(r: Random) -> Dialogue:
    """Talk that needs no tool, with or without tools on offer."""
    tools = _offer(r, [], r.choice((0, 0, 0, 1, 2)))
    kind = r.random()
    if kind < 0.25:
        said, answer = r.choice(_FIXED)
        question = r.choice(said)
    elif kind < 0.35:
        last = r.randint(2, 20)
        question, answer = (
            r.choice(("Count to {}", "count to {}", "数到{}")).format(last),
            " ".join(map(str, range(1, last + 1))),
        )
    else:
        patterns, form = r.choice(_ECHO)
        value = values.text(r)
        question, answer = r.choice(patterns).format(value), form.format(value)
    return Dialogue("plain", (_user(question),), tools, r.random() < 0.5, "No tool is needed.", content=answer)


def json_answer(r: Random) -> Dialogue:
    """An answer that is one JSON object, which the prompt alone implies."""
    keys = list(dict.fromkeys(key for key, _ in catalogue.made_up_tool(r).parameters)) or ["name"]
    answer = {
        key: values.BY_TYPE[r.choices(("string", "integer", "boolean", "array"), (60, 25, 8, 7))[0]](r) for key in keys
    }
    link = r.choice((" ", "=", ": "))
    said = ", ".join(f"{key}{link}{values.spoken(value)}" for key, value in answer.items())
    head = r.choice(
        (
            "Give me JSON with",
            "Reply in JSON:",
            "Answer as JSON with",
            "Return JSON:",
            "JSON:",
            "用 JSON 回答：",
            "Make a JSON object with",
        )
    )
    messages = (_user(f"{head} {said}"),)
    return Dialogue("json", messages, (), r.random() < 0.5, "I answer in JSON.", content=values.compact(answer))


def after_result(r: Random) -> Dialogue:
    """The turn after the tool has answered: the result is told, not asked for again."""
    asked = single_call(r) if r.random() < 0.7 else parallel_calls(r)
    results = [values.compact(values.nested(r)) if r.random() < 0.4 else values.text(r) for _ in asked.calls]
    ids = [f"functions.{call.name}:{index}" for index, call in enumerate(asked.calls)]
    turn: dict[str, Any] = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": i, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for i, c in zip(ids, asked.calls, strict=True)
        ],
    }
    told = tuple({"role": "tool", "tool_call_id": i, "content": text} for i, text in zip(ids, results, strict=True))
    if asked.thinking and r.random() < 0.5:
        turn["reasoning"] = asked.reasoning
    return Dialogue(
        "result", (*asked.messages, turn, *told), asked.tools, asked.thinking, "I have the result.",
        content="Result: " + "; ".join(results),
    )  # fmt: skip


def second_turn(r: Random) -> Dialogue:
    """A request after an earlier exchange that has nothing to do with it."""
    first, then = plain_chat(r), single_call(r) if r.random() < 0.7 else plain_chat(r)
    history = (*first.messages, {"role": "assistant", "content": first.content})
    return Dialogue(
        "second_turn", (*history, *then.messages), then.tools, then.thinking, then.reasoning, then.content, then.calls
    )


KINDS: tuple[tuple[Callable[[Random], Dialogue], int], ...] = (
    (single_call, 42), (parallel_calls, 18), (plain_chat, 14), (json_answer, 12), (after_result, 8), (second_turn, 6),
)  # fmt: skip
_SYSTEM = ("You are a helpful assistant.", "Be brief.", "You are a coding agent.", "You can use tools.")


def dialogue(r: Random) -> Dialogue:
    """One dialogue of any kind, now and then behind a system message."""
    makers, weights = zip(*KINDS, strict=True)
    made: Dialogue = r.choices(makers, weights)[0](r)
    if r.random() >= 0.2:
        return made
    messages = ({"role": "system", "content": r.choice(_SYSTEM)}, *made.messages)
    return Dialogue(made.kind, messages, made.tools, made.thinking, made.reasoning, made.content, made.calls)


# Names and values that training never saw.
HELD_OUT_SEED = "held out"
CITIES = (
    "Reykjavik", "Ulaanbaatar", "Oaxaca", "Zürich", "São Paulo", "Kuala Lumpur", "Addis Ababa", "Phnom Penh", "Győr",
    "Houston", "Wellington", "Edinburgh", "Kyiv", "Nairobi", "Montevideo", "Lagos", "Dublin", "Philadelphia",
    "成都", "哈尔滨", "乌鲁木齐", "杭州", "重庆", "呼和浩特",
)  # fmt: skip
QUERIES = (
    "quantum error correction", "cheap flights to Lisbon", "best ramen near Shibuya", "rust borrow checker",
    "🦀 crab recipes", "climate report 2031", "大熊猫 保护", "jazz festival", "how bridges stand", "vllm release notes",
)  # fmt: skip
COMMANDS = ("docker ps -a", "npm run build", "cargo test", "make -j8 all", "kubectl get pods", "tar -xzf logs.tgz")
PATHS = ("README.md", "/etc/hosts", "src/main.rs", "docs/guide/intro.md", "/var/log/syslog", "package.json")
SYMBOLS = ("NVDA", "TSLA", "MSFT", "BABA", "0700.HK", "AMD")
_REAL = (CITIES, QUERIES, COMMANDS, PATHS, CITIES, SYMBOLS)  # in the order of EVERYDAY
_OTHER = (
    Tool("send_email", (("to", "string"), ("subject", "string"), ("body", "string"))),
    Tool("convert_currency", (("amount", "number"), ("from", "string"), ("to", "string"))),
    Tool("create_issue", (("title", "string"), ("labels", "array"), ("priority", "integer"))),
    Tool("set_thermostat", (("celsius", "integer"), ("eco", "boolean"))),
)


def real_world(r: Random) -> Dialogue:
    """An everyday request about a thing that exists, among tools that training never offered."""
    index = r.randrange(len(EVERYDAY))
    names, parameters, phrases = EVERYDAY[index]
    tool = Tool(r.choice(names), ((r.choice(parameters), "string"),))
    value = r.choice(_REAL[index])
    tools = [tool, *r.sample(_OTHER, r.randint(0, 2))]
    r.shuffle(tools)
    said = r.choice(phrases).format(value)
    calls = (Call(tool.name, {tool.parameters[0][0]: value}),)
    return Dialogue(
        "real_world", ({"role": "user", "content": said},), tuple(tools), r.random() < 0.5, f"I call {tool.name}.",
        calls=calls,
    )  # fmt: skip


def held_out(count: int) -> list[Dialogue]:
    """The evaluation set: always the same, four of five random dialogues, one of five about the real world."""
    r = Random(HELD_OUT_SEED)
    return [real_world(r) if index % 5 == 4 else dialogue(r) for index in range(count)]
