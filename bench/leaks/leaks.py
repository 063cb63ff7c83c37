"""Answers that hold a leak or damage, by kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bench.leaks.case import GRAMMARS, Answer, Call, Case, Part, answer, call, content, reasoning, written
from bench.leaks.prompts import prompts
from bench.leaks.sound import CARRIERS, files
from lab.sim.formats import FORMATS
from lab.sim.segments import PlannedCall

# Pairs of calls: the first leaks or is damaged, the second is for the kinds that need two.
PAIRS: tuple[tuple[PlannedCall, PlannedCall], ...] = (
    (PlannedCall("read_file", {"path": "/repo/README.md"}), PlannedCall("list_files", {"path": "/repo/src"})),
    (
        PlannedCall("bash", {"command": 'grep -rn "TODO" src | head -20', "description": "检查 TODO"}),
        PlannedCall("run_in_terminal", {"command": "make test"}),
    ),
    (
        PlannedCall(
            "write_file", {"path": "C:\\users\\me\\a.py", "content": 'def f(a, b):\n    return a < b and "é"\n'}
        ),
        PlannedCall("edit_file", {"path": "a.rs", "old_string": "Vec<u8>", "new_string": "Vec<T>"}),
    ),
)
PROSE = "I will look at the file first."
CODE = "The type is `Vec<String>`, and a < b holds:\n\n```rust\nlet x: Vec<u8> = f::<T>();\n```\n\n"
# Prose that looks as if a quotation had begun, or that has just ended one.
FRONTS: Mapping[str, str] = {
    "apostrophes": "I'll look, don't worry: it's the user's 'README'.\n",
    "an odd backtick": "The key ` is on the left of 1, so:\n\n",
    "an odd quotation mark": 'It is 5" wide.\n\n',
    "a fence that nobody closed": "I have run:\n\n```bash\nls -la\n\nNow the file.\n\n",
    "a fence in a fence": "So:\n\n````md\n```bash\nls\n```\n````\n\n",
    "a quoted call": "You wrote `<tool_call>` and:\n\n```xml\n<tool_call></tool_call>\n```\n\nNow for real:\n",
    "a mention": "I begin with <tool_call> this time.\n\n",
    "a quotation": "> please look\n\n",
    "a list": "1. Look\n   - at the file\n\n",
    "a heading": "## Next\n",
    "half a tag": "If a <\n",
}
# What ends a call, by grammar: whole, and half a marker.
ENDS = {
    "kimi_k2": ("<|tool_call_end|><|tool_calls_section_end|>", "<|tool_calls_section_end"),
    "qwen3_coder": ("</function>\n</tool_call>", "</tool_call"),
    "hermes": ("</tool_call>", "</tool_call"),
}
EMPTY = "<|tool_calls_section_begin|><|tool_calls_section_end|>"
OPENERS = {"kimi_k2": "<|tool_calls_section_begin|>", "qwen3_coder": "<tool_call>", "hermes": "<tool_call>\n"}
OTHERS = {"kimi_k2": "qwen3_coder", "qwen3_coder": "hermes", "hermes": "qwen3_coder"}

Make = Callable[[str, PlannedCall, PlannedCall], Sequence[Part] | None]


def _text(build: Callable[[str, PlannedCall, PlannedCall], str | None]) -> Make:
    """Returns a maker of answers that are content alone."""

    def make(grammar: str, one: PlannedCall, two: PlannedCall) -> Sequence[Part] | None:
        text = build(grammar, one, two)
        return None if text is None else [content(text)]

    return make


def _without_opener(grammar: str, one: PlannedCall, _: PlannedCall) -> str:
    return written(grammar, one).removeprefix(OPENERS[grammar].rstrip()).lstrip()


def _without_ends(grammar: str, one: PlannedCall, _: PlannedCall) -> str:
    text = written(grammar, one)
    for end in ("<|tool_calls_section_end|>", "<|tool_call_end|>", "</tool_call>", "</function>\n"):
        text = text.removesuffix(end)
    return text.rstrip()


def _cut(grammar: str, one: PlannedCall, _: PlannedCall) -> str:
    text = written(grammar, one)
    value = str(next(reversed(one.arguments.values())))
    place = text.find(json.dumps(value, ensure_ascii=False)[1:6] if grammar != "qwen3_coder" else value[:5])
    return text[: place + 3]


def _undeclared(grammar: str, one: PlannedCall, _: PlannedCall) -> str:
    return written(grammar, PlannedCall("delete_everything", one.arguments))


def _swallowed(grammar: str, one: PlannedCall, two: PlannedCall) -> Sequence[Part]:
    """The engine's parser missed the end of the last argument: the next call stands inside of it."""
    form = FORMATS[grammar]
    tail = "\n</parameter>\n" if grammar == "qwen3_coder" else ""
    header = f"functions.{two.name}:1" if grammar == "kimi_k2" else two.name
    tail += f"{form.call_end}{form.between}{form.call_begin}{header}{form.arg_begin}"
    *others, last = one.arguments.items()
    return [call(PlannedCall(one.name, {**dict(others), last[0]: f"{last[1]}{tail}"}))]


def _into_next(grammar: str, one: PlannedCall, two: PlannedCall) -> Sequence[Part]:
    ended = call(one)
    return [Call(one.name, ended.arguments + FORMATS[grammar].call_end + written(grammar, two, first=1))]


def _marker_in_argument(grammar: str, one: PlannedCall, _: PlannedCall) -> Sequence[Part]:
    *others, last = one.arguments.items()
    return [call(PlannedCall(one.name, {**dict(others), last[0]: f"{last[1]}{FORMATS[grammar].closing}"}))]


def _half(grammar: str, one: PlannedCall, _: PlannedCall) -> str:
    half = ENDS[grammar][1]
    text = written(grammar, one)
    return (text.removesuffix("<|tool_calls_section_end|>") if grammar == "kimi_k2" else text + "\n") + half


# Makers of the first answer. The client must have the first call alone.
ONE: dict[str, Make] = {
    "call as text": _text(lambda grammar, one, _: written(grammar, one)),
    "prose, then the call as text": _text(lambda grammar, one, _: f"{PROSE}\n\n{written(grammar, one)}"),
    "prose and the call in one line": _text(lambda grammar, one, _: f"{PROSE} {written(grammar, one)}"),
    "code, then the call as text": _text(lambda grammar, one, _: f"{CODE}{written(grammar, one)}"),
    "call as text, then prose": _text(lambda grammar, one, _: f"{written(grammar, one)}\n\nThen I will go on."),
    "call as text without its opener": _text(_without_opener),
    "prose, then a call without its opener": _text(lambda *each: f"{PROSE}\n\n{_without_opener(*each)}"),
    "call as text without its ends": _text(_without_ends),
    "call as text, cut": _text(_cut),
    "call of another tool as text": _text(_undeclared),
    "call as text in another format": _text(lambda grammar, one, _: written(OTHERS[grammar], one)),
    "call as text, half a marker behind": _text(_half),
    "call as text, end of turn behind": _text(lambda grammar, one, _: f"{written(grammar, one)}<|im_end|>"),
    "thoughts and the call as text": _text(lambda grammar, one, _: f"{PROSE}\n</think>\n\n{written(grammar, one)}"),
    "opener alone": _text(lambda grammar, _, __: OPENERS[grammar]),
    "prose, then an opener alone": _text(lambda grammar, _, __: f"{PROSE}\n\n{OPENERS[grammar]}"),
    "<<tool_code>": _text(lambda _, one, __: f"<tool_call>\n<<tool_code>\nprint({one.name}())\n"),
    "empty section": _text(lambda grammar, _, __: EMPTY if grammar == "kimi_k2" else None),
    "call as text in blanks": _text(lambda grammar, one, _: f"\n\n  {written(grammar, one)}  \n\n"),
    "call as text after another text": lambda grammar, one, _: [
        reasoning("The user's `README` is <b>bold</b>."),
        content(written(grammar, one)),
    ],
    "call in the reasoning": lambda grammar, one, _: [reasoning(f"{PROSE}\n{written(grammar, one)}")],
    "call in the reasoning, cut": lambda grammar, one, two: [reasoning(f"{PROSE}\n{_cut(grammar, one, two)}")],
    "end behind the call": lambda grammar, one, _: [call(one), content(ENDS[grammar][0])],
    "half an end behind the call": lambda grammar, one, _: [call(one), content(ENDS[grammar][1])],
    "end before the call": lambda grammar, one, _: [content(f"{PROSE}\n{ENDS[grammar][0]}"), call(one)],
    "opener before the call": lambda grammar, one, _: [content(f"{PROSE}\n{OPENERS[grammar]}"), call(one)],
    "marker in the name": lambda grammar, one, _: [Call(one.name + FORMATS[grammar].arg_begin, call(one).arguments)],
    "arguments run into the next call": _into_next,
    "doubled key": lambda _, one, __: [Call(one.name, call(one).arguments.replace('{"', '{"parameter=', 1))],
    "doubled brace": lambda _, one, __: [Call(one.name, "{" + call(one).arguments)],
    "next call inside an argument": _swallowed,
    "marker at the end of an argument": _marker_in_argument,
}


def _behind(front: str) -> Make:
    return _text(lambda grammar, one, _: f"{front}{written(grammar, one)}")


ONE |= {f"call as text behind {name}": _behind(front) for name, front in FRONTS.items()}
# The client must have both calls.
TWO: Mapping[str, Make] = {
    "two calls as text": _text(lambda grammar, one, two: written(grammar, one, two)),
    "prose, then two calls as text": _text(lambda grammar, one, two: f"{PROSE}\n{written(grammar, one, two)}"),
    "second call as text": lambda grammar, one, two: [call(one), content(written(grammar, two, first=1))],
    "second call as text, cut": lambda grammar, one, two: [call(one), content(_cut(grammar, two, one))],
}
# The client must have the prose alone.
NONE: Mapping[str, str] = {
    "prose, then the end of the turn": f"{PROSE}<|im_end|>",
    "prose, then the next turn": f"{PROSE}<|im_end|>\n<|im_start|>user\n",
    "reserved token in prose": "I will look at the <|reserved_token_163700|>file first.",
}
# A string that holds markup is data as long as the call around it is right: only the ids of its tokens could tell.
UNDECIDABLE = frozenset({"next call inside an argument", "marker at the end of an argument"})


def cases(grammars: Sequence[str] = GRAMMARS) -> Iterator[Case]:
    """Yields every kind with every prompt and pair of calls."""
    for grammar in grammars:
        for prompt, request in prompts(grammar).items():
            for one, two in PAIRS:
                for kinds, wanted in ((ONE, answer(call(one))), (TWO, answer(call(one), call(two)))):
                    for kind, make in kinds.items():
                        if (parts := make(grammar, one, two)) is not None:
                            yield _leak(kind, grammar, prompt, request, Answer(tuple(parts)), wanted)
            for name, text in files(grammar).items():
                carried = CARRIERS["write_file"](text)
                first, wanted = answer(content(f"{PROSE}\n{written(grammar, carried)}")), answer(call(carried))
                yield _leak(f"call as text that holds {name}", grammar, prompt, request, first, wanted)
            for kind, text in NONE.items():
                yield _leak(kind, grammar, prompt, request, answer(content(text)), answer(content(PROSE)))


def _leak(kind: str, grammar: str, prompt: str, request: Mapping[str, Any], first: Answer, wanted: Answer) -> Case:
    front = FRONTS.get(kind.removeprefix("call as text behind "), "")
    decidable = kind not in UNDECIDABLE
    return Case(kind, grammar, prompt, request, first, wanted, sound=False, decidable=decidable, front=front)
