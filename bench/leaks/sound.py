"""Sound answers that mention markup, by kind: files about chat templates, prose about tool calls, code in general."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from random import Random
from typing import Any

from bench.leaks.case import GRAMMARS, Answer, Case, Part, answer, call, content, reasoning, written
from bench.leaks.prompts import prompts
from bench.leaks.sources import comments, excerpts
from lab.sim.segments import PlannedCall

_READ = PlannedCall("read_file", {"path": "/repo/README.md"})
_RUN = PlannedCall("bash", {"command": "ls -la <dir> && make test"})
# Files that people write who work on such systems.
_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
_TOOL_TEMPLATE = (
    "{%- for call in message.tool_calls %}\n<tool_call>\n<function={{ call.function.name }}>\n"
    "{%- for key, value in call.function.arguments|items %}\n<parameter={{ key }}>\n{{ value }}\n</parameter>\n"
    "{%- endfor %}\n</function>\n</tool_call>\n{%- endfor %}"
)
_KIMI_TEMPLATE = (
    "{{- '<|tool_calls_section_begin|>' -}}{%- for call in message.tool_calls -%}"
    "{{- '<|tool_call_begin|>' + call.id + '<|tool_call_argument_begin|>' -}}"
    "{{- call.function.arguments + '<|tool_call_end|>' -}}"
    "{%- endfor -%}{{- '<|tool_calls_section_end|><|im_end|>' -}}"
)
_STRIPPER = r"""import re


def without_thoughts(text: str) -> str:
    return re.sub(r"<think>.*?</think>", "", text, flags=re.S)


def last(text: str) -> str:
    return text.rpartition("</think>")[2]
"""
_SCRIPT = "const body = reply.replace(/<think>[\\s\\S]*?<\\/think>/g, '').split('</think>').pop();\n"
_SGML = "<function>x</function>\n<parameter name='a'>1</parameter>\n<tool_calls/>\n<thinking>\n<functions=3>"


def _test(grammar: str) -> str:
    """Returns a parser's unit test, with whole calls to tools that the request declares."""
    raw, cut = written(grammar, _READ, _RUN), written(grammar, _READ)[:-7]
    tests = f"assert len(parse({raw!r})) == 2\n\n\ndef test_cut():\n    assert not parse({cut!r})"
    return f"from parser import parse\n\n\ndef test_two_calls():\n    {tests}\n"


def files(grammar: str) -> Mapping[str, str]:
    """Returns texts of files by what they are."""
    return {
        "ChatML template": _CHATML,
        "chat template with calls": _TOOL_TEMPLATE,
        "Kimi's template": _KIMI_TEMPLATE,
        "<think> stripper": _STRIPPER,
        "<think> stripper in JavaScript": _SCRIPT,
        "parser's unit test": _test(grammar),
        "raw output of a model": f"I'll look.\n{written(grammar, _READ, _RUN)}\n",
        "one call": written(grammar, _READ),
        "only ends": "</parameter>\n</function>\n</tool_call>\n<|tool_call_end|><|tool_calls_section_end|>",
        "only openers": "<tool_call>\n<function=\n<|tool_calls_section_begin|><|tool_call_begin|>",
        "half markers": "<tool_call\n</tool_cal\n<|tool_calls_section_beg\n<|im_end\n<|",
        "other tags": _SGML,
    }


# A tool call that carries a text, by what it does.
CARRIERS: Mapping[str, Callable[[str], PlannedCall]] = {
    "write_file": lambda text: PlannedCall("write_file", {"path": "/repo/a.txt", "content": text}),
    "edit_file, old": lambda text: PlannedCall(
        "edit_file", {"path": "/repo/a.txt", "old_string": text, "new_string": "# nothing\n"}
    ),
    "edit_file, both": lambda text: PlannedCall(
        "edit_file", {"path": "/repo/a.txt", "old_string": text, "new_string": f"# changed\n{text}"}
    ),
    "heredoc": lambda text: PlannedCall("bash", {"command": f"cat > a.txt <<'EOF'\n{text}\nEOF\n"}),
}
COMMANDS = (
    "grep -rn '<|tool_call_begin|>' parser.py",
    "grep -n '<tool_call>' -A3 log.txt | head",
    "rg -F '</think>' --stats",
    "sed -i 's#<function=#<fn=#; s#</tool_call>##g' prompts.md",
    "python -c \"print('<|im_start|>user\\nhi<|im_end|>')\"",
    "echo '<tool_call>'",
    "tail -c 20 out.txt  # ends in </tool_call>",
    "echo <|tool_calls_section_end|>",
    'findstr /s /c:"<tool_call>" C:\\users\\me\\unsorted\\*.txt',
    "printf '\\u001b[0m\\u00e9 \\U0001F600 <think>'",
)


def _fence(text: str, mark: str = "`", note: str = "") -> str:
    """Puts a text into a code fence longer than any that it holds."""
    longest = max((len(run) for run in re.findall(f"{mark}+", text)), default=0)
    fence = mark * max(3, longest + 1)
    return f"{fence}{note}\n{text}\n{fence}"


def _prefixed(text: str, prefix: str) -> str:
    return "\n".join(f"{prefix}{line}" for line in text.splitlines())


# How an answer in prose shows a text without meaning it.
QUOTATIONS: Mapping[str, Callable[[str], str]] = {
    "fenced": lambda text: f"The file looks so:\n\n{_fence(text, note='xml')}\n\nIt is short.",
    "fenced by tildes": lambda text: f"The file looks so:\n\n{_fence(text, '~')}\n",
    "fenced in a list": lambda text: f"1. Save this:\n\n{_prefixed(_fence(text), '   ')}\n\n2. Run it.",
    "fenced in a quotation": lambda text: f"They wrote:\n\n{_prefixed(_fence(text), '> ')}\n\nThat is right.",
    "fenced first and last": lambda text: _fence(text),
    "two fences": lambda text: f"Before:\n{_fence(text, note='diff')}\nafter:\n{_fence(text.upper() + text)}",
    "indented": lambda text: f"The file looks so:\n\n{_prefixed(text, '    ')}\n\nIt is short.",
    "quoted": lambda text: f"They wrote:\n\n{_prefixed(text, '> ')}\n\nThat is right.",
    "in HTML": lambda text: f"The file looks so:\n\n<pre><code>{text}</code></pre>\n\nIt is short.",
    "in a comment": lambda text: f"The page says:\n\n<!--\n{text}\n-->\n\nThat is right.",
    "in LaTeX": lambda text: f"\\begin{{verbatim}}\n{text}\n\\end{{verbatim}}\n\nThat is all.",
    "numbered": lambda text: "\n".join(f"{n:6}→{line}" for n, line in enumerate(text.splitlines(), 1)),
}
MENTIONS = (
    "Put the call between `<tool_call>` and `</tool_call>`, and each argument in `<parameter=name>`.",
    "The parser looks for ``<|tool_call_begin|>`` first, then for ``<|tool_call_end|>``.",
    'The model writes "<tool_call>" before a call and "</tool_call>" behind it.',
    "It ends its turn with '<|im_end|>', never with '<|endoftext|>'.",
    "It ends its thoughts with “</think>” („<think>“ is in the prompt), 「<tool_call>」 begins a call.",
    "A call begins with <tool_call> and ends with </tool_call>; <function=name> names the tool.",
    "The token </think> is missing in the template, so the reasoning parser never ends.",
    "Kimi's <|tool_calls_section_begin|> marker is one token; qwen's <function= is three.",
    "| format | opener |\n|---|---|\n| Kimi | <|tool_call_begin|> |\n| Qwen | <tool_call> |\n\nSo they differ.",
    "- <tool_call>: begins a call\n- </tool_call>: ends it\n- <think>: begins a thought",
    "## Why <tool_call> leaks\n\nBecause the parser that was chosen (hermes) expects JSON.",
    'The log\'s last line is `<tool_call>{"name": "read_file", "arguments": {"path": "/repo/README.md"}}</tool_call>`.',
    "Use `Vec<T>`, `a<b`, x <| y |> z, `<function>`, <parameters>, <thinking> and Map<string, Array<number>>.",
    "The regex is /<tool_call>(.*?)<\\/tool_call>/s, in Python r'<tool_call>(.*?)</tool_call>'.",
    "Paths such as C:\\users\\me\\unit or \\u00e9 and \\usepackage are left as they are; so is \\",
    "It is true that a <",
    "The missing token is <|im_end, or half of it.",
)


# A second look at these is fair: prose that names markers without quoting them, texts that end as damaged ones do, and
# quotations that do not.
_DOUBTFUL = re.compile(r"mention|indented|comment|only ends|cut by length|</tool_call>$|section_end\|>$")


def _templates(grammar: str) -> Iterator[tuple[str, Sequence[Part]]]:
    for name, text in files(grammar).items():
        for carrier, carry in CARRIERS.items():
            yield f"{carrier}: {name}", [call(carry(text))]
        yield f"reads, then writes: {name}", [content("Both:"), call(_READ), call(CARRIERS["write_file"](text))]
        for quotation, quote in QUOTATIONS.items():
            yield f"prose, {quotation}: {name}", [content(quote(text))]
        yield f"reasoning, fenced: {name}", [reasoning(QUOTATIONS["fenced"](text)), content("Done.")]
        yield f"reasoning, fenced, then a call: {name}", [reasoning(QUOTATIONS["fenced"](text)), call(_READ)]
        yield f"prose, fenced, then a call: {name}", [content(QUOTATIONS["fenced"](text)), call(_READ)]
    for command in COMMANDS:
        yield f"command {command}", [call(PlannedCall("bash", {"command": command}))]
    for text in MENTIONS:
        name = f"mention {text[:24]!r}"
        yield name, [content(text)]
        yield f"{name}, then a call", [content(text), call(_READ)]
        yield f"reasoning, {name}", [reasoning(text), content("Done.")]
        yield f"reasoning, {name}, then a call", [reasoning(text), call(_READ)]


def _real(limit: int, rng: Random) -> Iterator[tuple[str, Sequence[Part]]]:
    found = [*excerpts()]
    rng.shuffle(found)
    carriers = [*CARRIERS.items()]
    for number, (_, text) in enumerate(islice(found, limit)):
        carrier, carry = carriers[number % len(carriers)]
        yield f"{carrier}: a real file", [call(carry(text))]
        quotation, quote = [*QUOTATIONS.items()][number % len(QUOTATIONS)]
        yield f"prose, {quotation}: a real file", [content(quote(text))]
        yield "reasoning, fenced, then a call: a real file", [reasoning(QUOTATIONS["fenced"](text)), call(_READ)]
    lines = [*comments()]
    rng.shuffle(lines)
    for line in islice(lines, limit):
        yield "prose: a real comment", [content(f"Its comment says: {line}\n\nThat is what it does.")]
        yield "command: a real comment", [call(PlannedCall("bash", {"command": f"grep -rn '{line}' ."}))]


def cases(real: int, grammars: Sequence[str] = GRAMMARS) -> Iterator[Case]:
    """Yields every kind with some of the prompts.

    Args:
        real: At most so many excerpts of real files in each format.
        grammars: Formats.
    """
    for grammar in grammars:
        rng = Random(grammar)
        bodies = prompts(grammar)
        for number, (kind, parts) in enumerate(_templates(grammar)):
            chosen = ["plain", [*bodies][1 + number % (len(bodies) - 1)]]
            yield from (_case(kind, grammar, prompt, bodies[prompt], parts) for prompt in chosen)
        for name, text in files(grammar).items():
            cut = answer(content(_fence(text)[:-5]), finish="length")
            yield _sound(f"prose, fence cut by length: {name}", grammar, "plain", bodies["plain"], cut)
        for number, (kind, parts) in enumerate(_real(real, rng)):
            prompt = [*bodies][number % len(bodies)]
            yield _case(kind, grammar, prompt, bodies[prompt], parts)


def _case(kind: str, grammar: str, prompt: str, request: Mapping[str, Any], parts: Sequence[Part]) -> Case:
    return _sound(kind, grammar, prompt, request, Answer(tuple(parts)))


def _sound(kind: str, grammar: str, prompt: str, request: Mapping[str, Any], sound: Answer) -> Case:
    decidable = not _DOUBTFUL.search(kind)
    return Case(kind, grammar, prompt, request, sound, sound, sound=True, decidable=decidable)
