"""The price of broken answers: the tokens that are written twice, with reruns and with resumes.

Its engines know their tokens, which simulated ones do not. Each answer breaks once, at whichever of two engines is
asked first, with the faults of simulated ones; whoever writes it again writes what was meant.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from random import Random
from statistics import median

import aiohttp

from bench.guard.correctness import CONCURRENCY, OFF
from bench.guard.rig import FAULTS_TRIED, gateway
from bench.guard.traffic import Answer, ask
from lab.scripted.engine import ScriptedEngine
from lab.scripted.tokens import PATHS, TokenFault, TokenModel
from lab.sim.answer import SENTENCES
from lab.sim.faults import FAULTS
from lab.sim.formats import FORMATS
from lab.sim.segments import PlannedAnswer, PlannedCall, segments_of

GRAMMARS = ("kimi_k2", "qwen3_coder")
PER_CHUNK = 16  # tokens of a chunk, which are bytes but for markers
PAUSE_S = 0.002  # after each, so that an engine hears in time that nobody listens
_STRING, _NUMBER = {"type": "string"}, {"type": "integer"}
_MEMBERS = {
    "bash": {"command": _STRING, "timeout_s": _NUMBER},
    "edit": {"path": _STRING, "old": _STRING, "new": _STRING},
    "write": {"path": _STRING, "content": _STRING},
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": members,
                "required": [*members],
                "additionalProperties": False,
            },
        },
    }
    for name, members in _MEMBERS.items()
]
_FACTS = {"engine": "vllm", "engine_version": "0.32.0", "method": "none"}


@dataclass(frozen=True)
class Price:
    """The price of the answers that broke, under one way to mend them.

    Attributes:
        broken: Those that were not delivered as the first engine wrote them, and did not end in an error.
        resumed: Of these, so many were mended without a rerun from the start.
        wrong: Answers of all that are not what was meant, or errors.
        twice: Tokens that engines wrote of them, and that are no part of what the client got.
        twice_share: The same of the tokens that reruns write twice.
        twice_p50: Median over the broken answers: at an engine's pace, the time by which each is late.
        p50_share: The same of the median of reruns.
    """

    grammar: str
    way: str
    requests: int
    broken: int
    resumed: int
    wrong: int
    twice: int
    twice_share: float
    twice_p50: float
    p50_share: float


@dataclass(frozen=True)
class _Case:
    said: str
    text: str
    fault: TokenFault | None


async def measure(requests: int, pause_s: float = PAUSE_S) -> list[Price]:
    """The same broken answers with reruns and with resumes."""
    rows = []
    for grammar in GRAMMARS:
        model = TokenModel({}, grammar, FORMATS[grammar].special)
        cases = [_case(model, grammar, seed) for seed in range(requests)]
        sound = await _answers([_Case(case.said, case.text, None) for case in cases], grammar, "off", pause_s)
        rerun = None
        for way in ("off", "all"):
            row = _price(grammar, way, cases, sound, await _answers(cases, grammar, way, pause_s), rerun)
            rerun = rerun or row
            rows.append(row)
    return rows


def _case(model: TokenModel, grammar: str, seed: int) -> _Case:
    """An answer with calls, some with a text of some thousand characters, and how it breaks."""
    rng = Random(f"{grammar}:{seed}")
    calls = tuple(_call(rng) for _ in range(rng.randint(1, 3)))
    prose = _text(rng, 80) if rng.random() < 0.5 else ""
    segments = segments_of(PlannedAnswer(content=prose, calls=calls), grammar, first_call=0)
    text = "".join(segment.text for segment in segments)
    injected = FAULTS[rng.choice([name for name in FAULTS_TRIED if name != "http_500"])]
    ids = model.encode(text)
    if injected.edit is None:
        fault = TokenFault("die" if injected.transport == "disconnect" else "abort", rng.randrange(1, len(ids)))
    else:
        spoilt = model.encode("".join(segment.text for segment in injected.edit(segments, grammar, rng)))
        same = _common(ids, spoilt)
        fault = TokenFault("damage", same, model.decode(spoilt[same:]))
    return _Case(f"answer {seed}", text, fault)


def _call(rng: Random) -> PlannedCall:
    name = rng.choice([*_MEMBERS])
    path = f"src/module_{rng.randrange(100)}.py"
    if name == "bash":
        return PlannedCall(name, {"command": f"python -m pytest {path} -q", "timeout_s": rng.randint(1, 600)})
    if name == "edit":
        return PlannedCall(name, {"path": path, "old": _text(rng, 120), "new": _text(rng, 200)})
    return PlannedCall(name, {"path": path, "content": _text(rng, rng.randint(500, 4000))})


def _text(rng: Random, length: int) -> str:
    text = ""
    while len(text) < length:
        text += rng.choice(SENTENCES)
    return text.strip()


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns how many tokens two answers have in common; at least one stays of the other."""
    same = next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    return min(len(one) - 1, len(other)) if same is None else same


@dataclass(frozen=True)
class _Answers:
    """What clients have of the answers, and what engines wrote for each."""

    got: Sequence[Answer]
    written: Counter[str]
    resumed: Counter[str]


async def _answers(cases: Sequence[_Case], grammar: str, resume: str, pause_s: float) -> _Answers:
    answers = {case.said: case.text for case in cases}
    pair = [TokenModel(answers, grammar, FORMATS[grammar].special, per_chunk=PER_CHUNK) for _ in range(2)]
    spoilt = {case.said: case.fault for case in cases if case.fault is not None}
    async with AsyncExitStack() as resources:
        urls = []
        for model in pair:
            model.pause_s, model.spoilt = pause_s, spoilt
            engine = ScriptedEngine("m", paths=PATHS)
            engine.script = model
            await engine.listen()
            resources.push_async_callback(engine.hang_up)
            urls.append(engine.url)
        with gateway(_config(urls[0], urls[1], grammar, resume)) as (url, _):
            got = await _everything(url, cases)
    return _Answers(got, pair[0].wrote + pair[1].wrote, pair[0].went_on + pair[1].went_on)


def _config(first: str, second: str, grammar: str, resume: str) -> dict[str, object]:
    pools = {
        "first": {"kind": "remote", "url": first, "facts": _FACTS},
        "second": {"kind": "remote", "url": second, "facts": _FACTS},
    }
    model = {"family": "sim", "grammar": grammar, "guard": {"mode": "heal", "resume": resume}, "pools": pools}
    return {"models": {"m": model}, "quarantine": OFF}


async def _everything(url: str, cases: Sequence[_Case]) -> list[Answer]:
    answers = [Answer() for _ in cases]
    numbers = iter(range(len(cases)))

    async def worker(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            body = {"model": "m", "messages": [{"role": "user", "content": cases[number].said}], "tools": TOOLS}
            answers[number] = await ask(session, url, {**body, "stream": True})

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(worker(session))
    return answers


def _price(
    grammar: str, way: str, cases: Sequence[_Case], sound: _Answers, mended: _Answers, rerun: Price | None
) -> Price:
    wrong = resumed = 0
    twice = []
    for case, right, got in zip(cases, sound.got, mended.got, strict=True):
        wrong += got.error is not None or _meant(got) != _meant(right)
        if not got.rerun or got.error is not None:
            continue
        resumed += mended.resumed[case.said] > 0 and mended.written[case.said] < 2 * sound.written[case.said]
        twice.append(mended.written[case.said] - sound.written[case.said])
    total, middle = sum(twice), median(twice)
    shares = (total / rerun.twice, middle / rerun.twice_p50) if rerun is not None else (1.0, 1.0)
    return Price(
        grammar, "reruns" if way == "off" else "resumes", len(cases), len(twice), resumed, wrong, total,
        shares[0], middle, shares[1],
    )  # fmt: skip


def _meant(answer: Answer) -> list[tuple[str, object]]:
    try:
        return [(name, json.loads(arguments)) for name, arguments in answer.calls]
    except ValueError:
        return []
