"""Requests with names and values that training never saw: random ones from another seed, and real-world ones."""

from random import Random

from models.catalogue import EVERYDAY, Tool
from models.dialogues import Call, Dialogue, dialogue

SEED = "held out"
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
    r = Random(SEED)
    return [real_world(r) if index % 5 == 4 else dialogue(r) for index in range(count)]
