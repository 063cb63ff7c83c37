"""Rescue: leaked markup becomes the calls that it is, only where it is nothing else, and is rerun otherwise."""

import json
from typing import Any

import pytest
from support.guard_harness import call, calls, calls_of, chunk, chunks_of, healed, read, through, tools_request
from support.written import ARGUMENTS, WRITTEN

from lab.sim import SimSettings
from serve.config.guard import GuardConfig
from serve.guard.core import Guard, Outcome, Severity
from serve.guard.core.rescue import grammars_of, without_stray_ends

KIMI = "<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{arguments}"
KIMI_END = "<|tool_call_end|><|tool_calls_section_end|>"
GOOD = '{"city": "Bern", "days": 2}'


def stream(*pieces: str, reason: str = "stop") -> list[dict[str, object]]:
    envelope = {"id": "x", "created": 1, "model": "m"}
    made = [{"index": 0, "delta": {"content": piece}, "finish_reason": None} for piece in pieces]
    made.append({"index": 0, "delta": {}, "finish_reason": reason})
    return [{**envelope, "choices": [choice]} for choice in made]


@pytest.mark.parametrize("grammar", ["kimi_k2", "qwen3_coder", "hermes"])
@pytest.mark.parametrize("seed", range(10))
def test_all_that_an_engine_without_a_parser_leaks_becomes_calls(grammar: str, seed: int) -> None:
    body = tools_request(seed)
    options = {"grammar": grammar, "thinking": True, "num_speculative_tokens": 3}
    leaking = SimSettings(parser="leaking", **options)  # type: ignore[arg-type]
    sent, guard = healed(body, leaking)
    message, meant = read(sent), read(chunks_of(body, SimSettings(**options)))  # type: ignore[arg-type]
    assert guard.outcome is Outcome.RESCUED
    assert not guard.verdicts[0].good, "it is still the pool's fault"
    assert calls_of(message) == calls_of(meant)
    assert (message["reasoning"], message["content"]) == (meant["reasoning"], meant["content"])
    assert message["finish"] == ["tool_calls"]


@pytest.mark.parametrize(
    "leak",
    [
        KIMI.format(name="get_weather", arguments='{"city": "Be') + KIMI_END,
        KIMI.format(name="rm", arguments=GOOD) + KIMI_END,
        KIMI.format(name="get_weather", arguments='{"city": "Bern"}') + KIMI_END,
        "<tool_call>\n<<tool_code>\nprint(get_weather())",
        "<think>\n" + KIMI.format(name="rm", arguments=GOOD) + KIMI_END,
    ],
)
def test_what_is_not_whole_and_valid_is_rerun_not_guessed(leak: str) -> None:
    body = tools_request(1)
    guard = Guard(GuardConfig(), body)
    sent = through(guard, stream("Let me see. ", leak), chunks_of(body, SimSettings()))
    assert guard.verdicts[0].outcome is Outcome.MARKER_LEAK
    assert guard.outcome is Outcome.RERUN
    assert calls_of(read(sent)) == calls_of(read(chunks_of(body, SimSettings())))


def test_a_leak_beside_a_proper_call_is_ambiguous() -> None:
    body = tools_request(1)
    whole = KIMI.format(name="get_weather", arguments=GOOD) + KIMI_END
    *first, last = stream(whole)
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "get_weather", "arguments": GOOD}}
    proper = {**first[0], "choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}
    guard = Guard(GuardConfig(reruns=0), body)
    assert read(through(guard, [*first, proper, last]))["error"]["code"] == "integrity_violation"


@pytest.mark.parametrize(
    "leak", ['<tool_call>{"name": "save", "arguments": {}}</tool_call>', KIMI.replace("{name}", "save") + KIMI_END]
)
def test_a_leaked_call_with_raw_ends_of_lines_is_rescued(leak: str) -> None:
    """Engines whose parsers want strict JSON show it as text (jundot/omlx#1672)."""
    body = tools_request(tools=[{"type": "function", "function": {"name": "save", "parameters": {"type": "object"}}}])
    whole = leak.replace("{arguments}", "{}").replace("{}", '{"text": "\tif x:\n"}')
    message = read(through(Guard(GuardConfig(reruns=0), body), stream(whole)))
    assert calls_of(message) == [("save", {"text": "\tif x:\n"})]


@pytest.mark.parametrize("closed", [True, False])
def test_an_end_of_arguments_beside_an_empty_call_matters_if_it_could_have_had_some(
    closed: bool,
) -> None:
    parameters = {"type": "object", "properties": {}, **({"additionalProperties": False} if closed else {})}
    body = tools_request(tools=[{"type": "function", "function": {"name": "now", "parameters": parameters}}])
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    *first, last = stream("</parameter>")
    proper = {**first[0], "choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}
    guard = Guard(GuardConfig(reruns=1), body, grammar="qwen3_coder")
    through(guard, [proper, *first, last])
    [defect] = guard.verdicts[0].defects
    assert defect.severity is (Severity.NOTE if closed else Severity.SUSPECT)


def test_a_call_behind_markup_that_belongs_to_none_is_rescued_if_nothing_else_is_said() -> None:
    body = tools_request(1)
    thoughts = "<|channel|>analysis<|message|>Provide the city.<|end|><|start|>assistant"
    leak = f"{thoughts}<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{GOOD}"
    guard = Guard(GuardConfig(), body, grammar="harmony")
    assert calls_of(read(through(guard, stream(leak)))) == [("get_weather", json.loads(GOOD))]
    assert guard.outcome is Outcome.RESCUED


@pytest.mark.parametrize(
    ("grammar", "leak"),
    [
        (
            "glm47",
            "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Bern<arg_key>days</arg_key><arg_value>2</tool_call>",
        ),
        ("harmony", f"<|start|>assistant to=functions.get_weather<|message|>{GOOD}<|call|>"),
    ],
)
def test_a_call_that_lacks_a_marker_which_leaves_no_doubt_is_rescued(grammar: str, leak: str) -> None:
    guard = Guard(GuardConfig(), tools_request(1), grammar=grammar)
    assert calls_of(read(through(guard, stream(leak)))) == [("get_weather", json.loads(GOOD))]
    assert guard.outcome is Outcome.RESCUED


def test_a_leak_is_not_rescued_with_rescue_off() -> None:
    guard = Guard(GuardConfig(reruns=0, rescue=False), tools_request(1))
    through(guard, stream(KIMI.format(name="get_weather", arguments=GOOD) + KIMI_END))
    assert guard.verdicts[0].outcome is Outcome.MARKER_LEAK


CALLS_OF = {
    "kimi_k2": "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>" + GOOD + "<|tool_call_end|>",
    "hermes": f'<tool_call>\n{{"name": "get_weather", "arguments": {GOOD}}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=get_weather>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>\n2\n"
    "</parameter>\n</function>\n</tool_call>",
}


OTHER = '{"city": "Oslo", "days": 3}'


def thoughtful(thoughts: str, *arguments: str, size: int) -> list[dict[str, Any]]:
    """Chunks of an answer that thinks in pieces of this size, and then makes calls."""
    pieces = [chunk({"reasoning": thoughts[place : place + size]}) for place in range(0, len(thoughts), size)]
    return [*pieces, *(chunk(calls(call(n, "get_weather", each))) for n, each in enumerate(arguments)),
            chunk({}, "tool_calls")]  # fmt: skip


@pytest.mark.parametrize("grammar", CALLS_OF)
@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("behind", [" is one way. But Oslo comes first.", ")."])
def test_a_call_in_thoughts_that_go_on_is_a_draft_of_those_that_the_answer_makes(
    grammar: str, size: int, behind: str
) -> None:
    thoughts = f"Hm. {CALLS_OF[grammar]}{behind}"
    guard = Guard(GuardConfig(), tools_request(1), grammar=grammar)
    message = read(through(guard, thoughtful(thoughts, OTHER, GOOD, size=size)))
    assert guard.verdicts[0].outcome is Outcome.CLEAN
    assert message["reasoning"] == thoughts
    assert calls_of(message) == [("get_weather", json.loads(OTHER)), ("get_weather", json.loads(GOOD))]


@pytest.mark.parametrize("grammar", CALLS_OF)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_call_in_thoughts_that_the_answer_makes_is_made_once(grammar: str, size: int) -> None:
    thoughts = f"Hm. {CALLS_OF[grammar]}"
    guard = Guard(GuardConfig(), tools_request(1), grammar=grammar)
    message = read(through(guard, thoughtful(thoughts, OTHER, GOOD.replace(" ", ""), size=size)))
    assert (guard.verdicts[0].outcome, message["reasoning"]) == (Outcome.CLEAN, thoughts)
    assert calls_of(message) == [("get_weather", json.loads(OTHER)), ("get_weather", json.loads(GOOD))]


@pytest.mark.parametrize("grammar", CALLS_OF)
@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("place", ["text", "text before a call", "thoughts before a text", "thoughts before a call"])
def test_a_call_against_its_schema_that_words_follow_is_delivered_if_the_rerun_shows_it_too(
    grammar: str, size: int, place: str
) -> None:
    shown = CALLS_OF[grammar].replace("2", "200")
    text = f"So it writes: {shown}\n\nThat is too many days."
    if place == "text":
        answer = stream(*in_pieces(text, size))
    elif place == "text before a call":
        answer = [*stream(*in_pieces(text, size))[:-1], *thoughtful("", GOOD, size=size)]
    elif place == "thoughts before a text":
        answer = [*thoughtful(text, size=size)[:-1], chunk({"content": "It fails."}), chunk({}, "stop")]
    else:
        answer = thoughtful(text, GOOD, size=size)
    guard = Guard(GuardConfig(), tools_request(1), grammar=grammar)
    message = read(through(guard, answer, answer))
    assert text in (message["content"], message["reasoning"])
    assert len(calls_of(message)) == place.endswith("call")
    assert [verdict.suspects for verdict in guard.verdicts] == [True, True]


@pytest.mark.parametrize("grammar", CALLS_OF)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_call_that_thoughts_end_with_and_the_answer_does_not_make_is_lost(grammar: str, size: int) -> None:
    guard = Guard(GuardConfig(reruns=0), tools_request(1), grammar=grammar)
    sent = through(guard, thoughtful(f"Hm. {CALLS_OF[grammar]}", OTHER, size=size))
    assert read(sent)["error"]["code"] == "integrity_violation"
    assert calls_of(read(sent)) == [], "a client must not get the calls out of order"


WRITE = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
    "required": ["path"],
}
WRITING = {
    "messages": [{"role": "user", "content": "go"}],
    "tools": [{"type": "function", "function": {"name": "write_file", "parameters": WRITE}}],
}
MADE = [("write_file", ARGUMENTS)]
SPEAKING = [grammar for grammar in WRITTEN if grammar not in ("harmony", "kimi_k3")]
SIZES = [1, 7, 10_000]


def in_pieces(text: str, size: int) -> list[str]:
    return [text[place : place + size] for place in range(0, len(text), size)]


@pytest.mark.parametrize("grammar", SPEAKING)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("answer", ["a call", "a text"])
def test_a_call_of_any_format_in_thoughts_that_go_on_is_a_draft(grammar: str, size: int, answer: str) -> None:
    thoughts = f"Hm. {WRITTEN[grammar]}\nNo, not yet."
    guard = Guard(GuardConfig(), WRITING, grammar=grammar)
    made = call(0, "write_file", json.dumps(ARGUMENTS))
    last = (
        [chunk(calls(made)), chunk({}, "tool_calls")]
        if answer == "a call"
        else [chunk({"content": "It is fine."}), chunk({}, "stop")]
    )
    message = read(through(guard, [*(chunk({"reasoning": each}) for each in in_pieces(thoughts, size)), *last]))
    assert guard.verdicts[0].outcome is Outcome.CLEAN
    assert (message["reasoning"], calls_of(message)) == (thoughts, MADE if answer == "a call" else [])


@pytest.mark.parametrize("grammar", SPEAKING)
def test_a_call_that_thoughts_end_with_is_no_draft_of_a_text(grammar: str) -> None:
    thoughts = f"Hm. {WRITTEN[grammar]}"
    guard = Guard(GuardConfig(reruns=0), WRITING, grammar=grammar)
    through(guard, [chunk({"reasoning": thoughts}), chunk({"content": "I have written it."}), chunk({}, "stop")])
    assert guard.verdicts[0].outcome in (Outcome.RESCUED, Outcome.MARKER_LEAK)


WRAPPED = [grammar for grammar in WRITTEN if WRITTEN[grammar].count("</") > 1 or "calls" in WRITTEN[grammar]]


def without_last_tag(text: str) -> str:
    return text[: max(text.rindex("<"), text.find("]<]minimax[>[</tool_call"))].removesuffix("]<]minimax[>[")


@pytest.mark.parametrize(
    "grammar", [each for each in WRAPPED if not each.startswith(("glm", "ling", "laguna", "longcat", "kimi_k3"))]
)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("known", [True, False])
def test_whole_calls_in_a_wrapper_without_its_end_are_rescued(grammar: str, size: int, known: bool) -> None:
    text = without_last_tag(WRITTEN[grammar])
    guard = Guard(GuardConfig(reruns=0), WRITING, grammar=grammar if known else None)
    message = read(through(guard, stream("So: ", *in_pieces(text, size))))
    assert calls_of(message) == MADE
    assert guard.outcome is Outcome.RESCUED


@pytest.mark.parametrize("grammar", ["deepseek_v32", "deepseek_v4", "deepseek_v41"])
def test_a_wrapper_that_opens_behind_whole_calls_and_holds_nothing_may_have_lost_one(grammar: str) -> None:
    text = f"{WRITTEN[grammar]}\n{WRITTEN[grammar].partition('>')[0]}>\n"
    guard = Guard(GuardConfig(), WRITING, grammar=grammar)
    through(guard, stream(text))
    assert guard.verdicts[0].outcome is Outcome.MARKER_LEAK


MISSPELT = {
    "tags without their token": ("deepseek_v4", WRITTEN["deepseek_v4"].replace("｜DSML｜", "")),
    "a bare call": (
        "minimax_m2",
        WRITTEN["minimax_m2"].replace("minimax:tool_call>", "x>").partition("<x>\n")[2].partition("\n</x>")[0],
    ),
    "a second opener for that of the first key": (
        "glm47",
        WRITTEN["glm47"].replace("write_file<arg_key>", "write_file<tool_call>", 1),
    ),
    "a prefix in front of the tags' names": ("deepseek_v4", WRITTEN["deepseek_v4"].replace("<｜DSML｜", "<｜DSML｜r:")),
    "no opener of the first key": ("glm47", WRITTEN["glm47"].replace("write_file<arg_key>", "write_file", 1)),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", MISSPELT)
def test_a_call_whose_tags_are_misspelt_is_rescued_where_the_others_leave_no_doubt(kind: str, size: int) -> None:
    grammar, text = MISSPELT[kind]
    guard = Guard(GuardConfig(reruns=0), WRITING, grammar=grammar)
    message = read(through(guard, stream("So: ", *in_pieces(text, size))))
    assert calls_of(message) == MADE
    assert guard.outcome is Outcome.RESCUED


@pytest.mark.parametrize("grammar", CALLS_OF)
def test_a_call_in_thoughts_that_is_cut_is_no_draft(grammar: str) -> None:
    text = CALLS_OF[grammar]
    cut = text[: text.index("Bern") + 2]
    guard = Guard(GuardConfig(reruns=0), tools_request(1), grammar=grammar)
    sent = through(guard, thoughtful(f"Hm. {cut} and so on", GOOD, size=7))
    assert read(sent)["error"]["code"] == "integrity_violation"


@pytest.mark.parametrize("grammar", CALLS_OF)
def test_of_leaked_calls_that_length_cut_the_whole_ones_are_delivered(grammar: str) -> None:
    text = CALLS_OF[grammar]
    for end in range(20, len(text) + 1):
        guard = Guard(GuardConfig(reruns=0), tools_request(1), grammar=grammar)
        message = read(through(guard, stream(f"So: {text}{text[:end]}", reason="length")))
        found = calls_of(message)
        assert found in ([("get_weather", json.loads(GOOD))], [("get_weather", json.loads(GOOD))] * 2)
        assert (message["content"].strip(), message["finish"]) == ("So:", ["length"])
        assert not guard.verdicts[0].counts


@pytest.mark.parametrize(
    "leak", ["<|tool_call_begin|>functions.ge", "<tool_call>\n<function=ge", '<tool_call>\n{"name": "ge']
)
@pytest.mark.parametrize("before", [[], [call(0, "get_weather", GOOD)]])
def test_the_beginning_of_a_call_that_length_cut_is_no_corruption(leak: str, before: list[dict[str, Any]]) -> None:
    """Our parsers send on the text of a call that they could not finish, since they cannot see why it ended."""
    guard = Guard(GuardConfig(), tools_request(1))
    sent = through(guard, [*(chunk(calls(each)) for each in before), chunk({"content": f"Hm. {leak}"}, "length")])
    message = read(sent)
    assert (message["content"], message["finish"]) == ("Hm. ", ["length"])
    assert len(message["calls"]) == len(before)
    assert (guard.verdicts[0].outcome, guard.verdicts[0].counts) == (Outcome.TRUNCATED, False)
    stopped = Guard(GuardConfig(), tools_request(1))
    through(stopped, [chunk({"content": leak}, "stop")])
    assert stopped.verdicts[0].outcome is Outcome.MARKER_LEAK


@pytest.mark.parametrize("front", ["A model writes:\n\n```xml\n", "A test:\n~~~py\nCALL = '", "It writes `"])
@pytest.mark.parametrize("grammar", CALLS_OF)
def test_a_call_in_a_quotation_that_length_cut_is_delivered_as_the_text_that_it_is(grammar: str, front: str) -> None:
    text = front + CALLS_OF[grammar]
    for end in range(len(front), len(text) + 1):
        guard = Guard(GuardConfig(), tools_request(1), grammar=grammar)
        message = read(through(guard, stream(text[:end], reason="length")))
        assert (message["content"], message["calls"], message["finish"]) == (text[:end], [], ["length"])
        assert guard.outcome is Outcome.CLEAN


@pytest.mark.parametrize("grammar", CALLS_OF)
def test_a_call_in_an_indented_code_block_is_delivered_as_text_even_as_the_last_thing_said(grammar: str) -> None:
    text = "A model writes:\n\n    " + CALLS_OF[grammar].replace("\n", "\n    ")
    guard = Guard(GuardConfig(), tools_request(1), grammar=grammar)
    message = read(through(guard, stream(text)))
    assert (message["content"], message["calls"], guard.outcome) == (text, [], Outcome.CLEAN)


def test_the_models_own_format_is_tried_before_the_one_of_the_markup() -> None:
    assert grammars_of("<|tool_call_begin|>") == ["kimi_k2"]
    assert grammars_of('<tool_call>\n{"name"') == ["qwen3_coder"]
    assert grammars_of("<function=f>", "qwen3_coder") == ["qwen3_coder"]
    assert grammars_of("<tool_call>", "hermes") == ["hermes", "qwen3_coder"]
    assert grammars_of("<tool_call>", "kimi_k2") == ["kimi_k2", "qwen3_coder"]


XML = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    "</function>\n</tool_call>"
)
JSON = f'<tool_call>\n{{"name": "get_weather", "arguments": {GOOD}}}\n</tool_call>'
NAMED = XML.replace("<function=get_weather>", '<function name="get_weather">')
NAMED = NAMED.replace("<parameter=city>", '<parameter name="city">').replace(
    "<parameter=days>", '<parameter name="days">'
)
OWN = KIMI.format(name="get_weather", arguments=GOOD) + KIMI_END
DRIFTED = {
    "JSON": JSON, "XML": XML, "attributes": NAMED, "Kimi": OWN,
    "an object of arguments": f"<tool_call>\n<function=get_weather>\n{GOOD}\n</function>\n</tool_call>",
    "such an object without a block": f"<function=get_weather>{GOOD}</function>",
    "a list of calls": f'<tool_call>[{{"name": "get_weather", "arguments": {GOOD}}}]</tool_call>',
    "ends of another format": JSON.replace("\n</tool_call>", "\n</parameter>\n</function>\n</tool_call>"),
    "no marker of the call": OWN.replace("<|tool_call_begin|>", ""),
    "a fence": JSON.replace("{\"name", "```json\n{\"name").replace("}}\n", "}}\n```\n"),
    "a bare fence": JSON.replace("{\"name", "```\n{\"name").replace("}}\n", "}}\n```\n"),
    "a list of tools": JSON.replace("{\"name", "<tools>{\"name").replace("}}\n", "}}</tools>\n"),
    "an odd end": XML.replace("</function>", "</function>\n</function_invocation>"),
    "an unknown odd end": XML.replace("</function>", "</function>\n</function_invoke_x>"),
    "two ends of the function": XML.replace("</function>", "</function>\n</function>"),
    "two ends of the block": JSON + "\n</tool_call>",
    "an end of the turn": JSON + "<|im_end|>",
    "half an end": JSON[:-4],
    "half a last end": OWN.removesuffix("|>"),
    "less than half a last end": OWN.removesuffix("ls_section_end|>"),
    "no end of the section": OWN.removesuffix("<|tool_calls_section_end|>"),
    "an end of the section too many": OWN + "<|tool_calls_section_end|>",
    "an id in another spelling": OWN.replace("functions.get_weather:0", "functions_get_weather_0"),
    "an id that is glued": OWN.replace("functions.get_weather:0", "functionsget_weather0"),
    "OpenAI's id, and the name in the arguments": OWN.replace("functions.get_weather:0", "call_0a1b").replace(
        GOOD, '{"name": "get_weather", "city": "Bern", "days": 2}'),
}  # fmt: skip
MEANT = ("get_weather", json.loads(GOOD))


@pytest.mark.parametrize("grammar", [None, "kimi_k2", "qwen3_coder", "hermes"])
@pytest.mark.parametrize("drift", DRIFTED)
def test_a_call_that_any_format_reads_is_rescued_whole_and_alone(drift: str, grammar: str | None) -> None:
    for text in (DRIFTED[drift], f"{DRIFTED[drift]}\n{DRIFTED[drift]}") if "half" not in drift else (DRIFTED[drift],):
        for size in (1, 7, len(text)):
            guard = Guard(GuardConfig(reruns=0), tools_request(1), grammar=grammar)
            cut = [text[place : place + size] for place in range(0, len(text), size)]
            message = read(through(guard, stream("Let me see. ", *cut)))
            assert calls_of(message) == [MEANT] * text.count("get_weather")
            assert message["content"].strip() == "Let me see."
            assert guard.outcome is Outcome.RESCUED


@pytest.mark.parametrize(
    ("content", "left"),
    [
        ("</function_invocation>\nNow I wait for </html>.", "\nNow I wait for </html>."),
        (" </function>\n</tool_call> <|im_end|>", ""),
        ("Now.</function>", "Now.</function>"),
        ("</html>", "</html>"),
        ("", ""),
    ],
)
def test_odd_ends_right_behind_the_calls_are_no_text(content: str, left: str) -> None:
    assert without_stray_ends(content) == left


@pytest.mark.parametrize("tail", ["</function>", "</tool_call>"])
def test_a_call_with_the_end_of_a_parameter_behind_it_is_rerun_since_its_value_may_have_gone_on(tail: str) -> None:
    text = XML.replace(tail, f"{tail}\n</parameter>\n</function>")
    guard = Guard(GuardConfig(), tools_request(1))
    through(guard, stream(text))
    assert guard.verdicts[0].outcome is Outcome.MARKER_LEAK


def test_a_closing_tag_in_the_middle_of_a_value_is_data_and_one_at_its_end_is_not_clear() -> None:
    tools = [{"type": "function", "function": {"name": "write", "parameters": {
        "type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}}}]  # fmt: skip
    body = tools_request(1, tools=tools, messages=[{"role": "user", "content": "explain </tool_call> in a file"}])
    for value, meant in (("The </tool_call> ends it.", True), ("It ends.</text>", False)):
        text = f"<tool_call>\n<function=write>\n<parameter=text>\n{value}\n</parameter>\n</function>\n</tool_call>"
        guard = Guard(GuardConfig(reruns=0), body)
        message = read(through(guard, stream(text)))
        assert calls_of(message) == ([("write", {"text": value})] if meant else [])


@pytest.mark.parametrize("spelling", ["null", "", "None", "[]"])
def test_a_rescued_call_may_spell_no_arguments_in_any_way(spelling: str) -> None:
    tools = [{"type": "function", "function": {"name": "now"}}, *tools_request()["tools"]]
    guard = Guard(GuardConfig(reruns=0), tools_request(1, tools=tools))
    message = read(through(guard, stream(KIMI.format(name="now", arguments=spelling) + KIMI_END)))
    assert calls_of(message) == [("now", {})]


@pytest.mark.parametrize(
    "flood",
    [
        "<tool_call>" * 700,
        '<tool_call>{"name": "get_weather"' + "[" * 50_000,
        "<function=get_weather></function>" * 700,
    ],
)
def test_a_flood_of_markup_is_rerun_and_not_read(flood: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr("serve.guard.core.rescue.parse", lambda *args, **_: read.append(args))
    for reason in ("stop", "length"):
        guard = Guard(GuardConfig(), tools_request(1))
        for piece in stream(flood, reason=reason):
            guard.feed(piece)
        guard.finish()
        assert guard.verdicts[0].outcome is Outcome.MARKER_LEAK
    assert not read
