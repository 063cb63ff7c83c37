"""Estimates: strict ones cover all that is allowed, expected ones learn, and nobody's are moved by anybody else."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from policies import RequestFeatures
from serve.limits.answer_meter import Meter
from serve.limits.estimate import Estimates, RequestSize, size_of
from serve.limits.usage import Usage
from serve.request.completion import parse

GROUP = ("tenant", "key", "model", "plain")


def streamed(chunks: int) -> Meter:
    meter = Meter("pool", False)
    meter.chunks = chunks
    return meter


def learned(strict: bool = False) -> Estimates:
    estimates = Estimates(strict, 1000)
    numbers = random.Random(1)
    for _ in range(3000):
        estimates.learn(GROUP, RequestSize(400), Usage(100, 0, numbers.randrange(100, 200)), streamed(50))
    return estimates


def test_strict_estimates_cover_every_answer_and_prompt_up_to_the_models_cap() -> None:
    estimates = learned(strict=True)
    assert estimates.of(GROUP, RequestSize(1, max_output=700), 8192)[1] == 700
    assert estimates.of(GROUP, RequestSize(1, max_output=7000), 4096)[1] == 4096
    assert estimates.of(GROUP, RequestSize(1), 4096)[1] == 4096
    assert estimates.of(GROUP, RequestSize(1, prompts=3, answers=2, max_output=10), 8192)[1] == 60


def test_expected_estimates_cover_three_quarters_of_answers() -> None:
    assert 165 <= learned().of(GROUP, RequestSize(1), 8192)[1] <= 185


def test_expected_estimates_are_never_above_what_the_request_allows() -> None:
    assert learned().of(GROUP, RequestSize(1, max_output=7), 8192)[1] == 7


def test_tokens_of_a_byte_and_of_a_frame_are_learned() -> None:
    estimates = learned()
    assert 95 <= estimates.of(GROUP, RequestSize(400), 1)[0] <= 105
    assert estimates.written(GROUP, RequestSize(400), streamed(10)) in range(28, 33)


def test_images_count_a_fixed_number() -> None:
    assert Estimates(True, 1000).of(GROUP, RequestSize(0, images=2), 1)[0] == 2001


ANSWER = st.tuples(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**5))
ANSWERS = st.lists(ANSWER, max_size=60)


def teach(estimates: Estimates, tenant: str, answers: list[tuple[int, int, int, int]]) -> None:
    for text_bytes, prompt, written, chunks in answers:
        usage = Usage(prompt, 0, written)
        estimates.learn((tenant, "key", "model", "plain"), RequestSize(text_bytes), usage, streamed(chunks))


@given(ANSWERS, ANSWERS)
def test_what_others_do_moves_nobodys_estimates(
    own: list[tuple[int, int, int, int]], others: list[tuple[int, int, int, int]]
) -> None:
    alone, beside = Estimates(False, 1000), Estimates(False, 1000)
    teach(alone, "tenant", own)
    teach(beside, "other", others)
    teach(beside, "tenant", own)
    teach(beside, "another", others)
    assert alone.of(GROUP, RequestSize(10_000), 8192) == beside.of(GROUP, RequestSize(10_000), 8192)
    assert alone.written(GROUP, RequestSize(1), streamed(1000)) == beside.written(GROUP, RequestSize(1), streamed(1000))


@given(ANSWERS)
def test_whatever_engines_tell_estimates_stay_within_what_tokenizers_do(
    answers: list[tuple[int, int, int, int]],
) -> None:
    estimates = Estimates(False, 1000)
    teach(estimates, "tenant", answers)
    assert 1250 <= estimates.of(GROUP, RequestSize(10_000), 8192)[0] <= 10_001
    assert 250 <= estimates.written(GROUP, RequestSize(1), streamed(1000)) <= 32_000
    assert estimates.written(GROUP, RequestSize(1, max_output=70), streamed(1000)) == 70


@pytest.mark.parametrize("per_byte", [0.15, 0.25, 0.5])
def test_a_tenants_prompts_of_all_sizes_are_estimated_right_in_sum(per_byte: float) -> None:
    """Small ones have more tokens a byte, because of the template; they must not make large ones dear."""
    estimates, numbers = Estimates(False, 1000), random.Random(1)
    sizes = [numbers.choice([40, 400, 4000, 40_000]) for _ in range(300)]
    true = [round(size * per_byte) + 12 for size in sizes]
    teach(estimates, "tenant", [(size, tokens, 1, 0) for size, tokens in zip(sizes, true, strict=True)])
    reply = [estimates.of(GROUP, RequestSize(size), 1)[0] for size in sizes]
    assert sum(reply) == pytest.approx(sum(true), rel=0.1)


KINDS = {"prose": 0.24, "padded": 0.26, "JSON": 0.33, "other languages": 0.36, "code": 0.40}  # tokens of a byte


@pytest.mark.parametrize("seed", range(40))
def test_streams_that_are_left_are_charged_within_a_tenth_whatever_a_tenant_mixes_and_others_do(seed: int) -> None:
    numbers, estimates = random.Random(seed), Estimates(False, 1000)
    shares = [numbers.random() ** 2 for _ in KINDS]
    true = charged = 0
    for number in range(600):
        padding = RequestSize(numbers.choice([1, 10**6])), Usage(numbers.choice([0, 10**6]), 0, 10**6)
        estimates.learn(("other", "key", "model", "plain"), *padding, streamed(numbers.choice([100, 10**5])))
        size = RequestSize(numbers.choice([400, 2000, 8000, 20_000]))
        (per_byte,) = numbers.choices(list(KINDS.values()), shares)
        tokens = round(size.text_bytes * per_byte) + 12
        if number > 50 and numbers.random() < 0.5:  # the client leaves before the usage
            true += tokens
            charged += estimates.of(GROUP, size, 1)[0]
        else:
            estimates.learn(GROUP, size, Usage(tokens, 0, 120), streamed(100))
    assert charged == pytest.approx(true, rel=0.1)


def test_many_answers_of_a_single_token_say_nothing_of_long_ones() -> None:
    """Each has a chunk for its role and one for its end, so that a chunk seems to hold a third of a token."""
    estimates = Estimates(False, 1000)
    teach(estimates, "tenant", [(400, 100, 1, 3)] * 200)
    assert estimates.written(GROUP, RequestSize(1), streamed(500)) == 500


def size(body: dict[str, Any], blanks: str = "", **features: bool) -> RequestSize:
    raw = json.dumps(body, separators=("," + blanks, ":" + blanks)).encode()
    return size_of(raw, parse(raw), RequestFeatures("m", **features))


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "What is in the box?"}], "tools": [TOOL]}


@given(st.text(" \t\r\n", max_size=50), st.text(max_size=200))
def test_padding_that_is_no_prompt_changes_no_size(blanks: str, text: str) -> None:
    padded = {**BODY, "metadata": {"x": text}, "user": text, "stop": [text]}
    padded["messages"] = [{**message, "padding": [text]} for message in BODY["messages"]]
    found, plain = size(padded, blanks), size(BODY)
    assert structs.replace(found, body_bytes=plain.body_bytes) == plain


@given(st.text("\n\t ", max_size=100))
def test_blanks_within_a_text_count_for_little(blanks: str) -> None:
    spaced = {**BODY, "messages": [{"role": "user", "content": f"What is {blanks}in the box?"}]}
    assert 0 <= size(spaced).text_bytes - size(BODY).text_bytes <= len(blanks)


def test_a_picture_has_no_text_and_a_text_that_looks_like_one_has() -> None:
    url = f"data:image/png;base64,{'A' * 5000}"
    picture = {"type": "image_url", "image_url": {"url": url}}
    film = {"type": "video_url", "video_url": {"url": "https://example.com/film"}}
    shown = size({"model": "m", "messages": [{"role": "user", "content": [picture, film]}]}, images=True)
    assert shown.images == 2
    assert shown.text_bytes < 150
    text = {"type": "text", "text": url}
    hidden = size({"model": "m", "messages": [{"role": "user", "content": [picture, text]}]}, images=True)
    assert hidden.images == 1
    assert hidden.text_bytes > 5000


@pytest.mark.parametrize(
    ("prompt", "prompts", "token_ids"),
    [("a text", 1, 0), (["a", "text"], 2, 0), ([1, 2, 3], 1, 3), ([[1, 2], [3]], 2, 3), (["a", 1], 1, 0), (5, 1, 0)],
)
def test_prompts_that_are_given_as_tokens_are_counted(prompt: object, prompts: int, token_ids: int) -> None:
    found = size({"model": "m", "prompt": prompt})
    assert (found.prompts, found.token_ids, found.text_bytes > 0) == (prompts, token_ids, not token_ids)
    assert not token_ids or Estimates(True, 1000).of(GROUP, found, 1)[0] == token_ids + 1


def test_answers_and_limits_of_a_request_are_read() -> None:
    assert size({**BODY, "n": 3, "max_tokens": 7, "max_completion_tokens": "9"}).answers == 3
    assert size({**BODY, "max_tokens": 7, "max_completion_tokens": "9"}).max_output == 9
    assert size({**BODY, "max_tokens": "many"}).max_output is None
    assert size({**BODY, "n_cmpl": 3}).answers == 3


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict", "max_new_tokens"])
@pytest.mark.parametrize("none", [0, -1, "-1"])
def test_what_a_server_may_take_for_no_bound_bounds_no_charge(name: str, none: object) -> None:
    assert size({**BODY, name: none}).max_output is None
    assert size({**BODY, "max_tokens": 5, "max_completion_tokens": 5, name: none}).max_output is None
    assert size({**BODY, "max_tokens": 5, name: 50}).max_output == 50
    assert size({**BODY, "max_tokens": 5, "max_completion_tokens": None}).max_output == 5


PROSE = "It was a bright cold day in April, and the clocks were striking thirteen.\n" * 40
PER_BYTE = 0.25
JUNK = "\n".join(["ab cd"] * 4_000)


def said(content: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content, **more}]}


def text_part(**more: Any) -> dict[str, Any]:
    return {"type": "text", "text": PROSE, **more}


def call(**more: Any) -> dict[str, Any]:
    function = {"name": "look", "arguments": "{}"}
    calls = [{"id": "c", "type": "function", "function": function, **more}]
    return {"model": "m", "messages": [{"role": "assistant", "tool_calls": calls}, {"role": "user", "content": PROSE}]}


PADDED: dict[str, bytes] = {
    name: json.dumps(body).encode()
    for name, body in {
        "a member of a part": said([text_part(junk=JUNK)]),
        "members within a member of a part": said([text_part(junk={"text": JUNK, "content": [{"text": JUNK}]})]),
        "a member of a part that other types have": said([text_part(refusal=JUNK, thinking=JUNK)]),
        "another part's text": said([text_part(), {"type": "image_url", "image_url": {"url": "data:x"}, "text": JUNK}]),
        "a part of no known type": said([text_part(), {"type": "junk", "text": JUNK}]),
        "a recording": said([text_part(), {"type": "input_audio", "input_audio": {"data": "A" * 20_000}}]),
        "a part of blanks": said([text_part(), {"type": "text", "text": "\n\t " * 9_000}]),
        "many parts of blanks": said([text_part(), *[{"type": "text", "text": "\n" * 90}] * 100]),
        "a text of blanks": said(PROSE + "\n" * 20_000),
        "messages of blanks": {"model": "m", "messages": [*said("\r\n" * 9_000)["messages"], *said(PROSE)["messages"]]},
        "a member of a message": said(PROSE, junk=JUNK, metadata={"x": [JUNK]}),
        "a name": said(PROSE, name=JUNK),
        "reasoning that templates leave out": said(PROSE, reasoning=JUNK, reasoning_content=JUNK),
        "a member of a call": call(junk=JUNK),
        "documents": {**said(PROSE), "documents": [{"text": JUNK}]},
        "functions": {**said(PROSE), "functions": [{"name": JUNK}]},
        "an argument of the template": {**said(PROSE), "chat_template_kwargs": {"junk": JUNK}},
        "a prompt beside messages": {**said(PROSE), "prompt": JUNK},
        "tokens beside messages": {**said(PROSE), "prompt": [1] * 9_000},
        "a member of the body": {**said(PROSE), "junk": JUNK, "metadata": {"messages": JUNK}},
    }.items()
}
PADDED["escapes of plain letters"] = (
    b'{"model":"m","messages":[{"role":"user","content":"%b"}]}'
    % "".join(f"\\u{ord(letter):04x}" for letter in PROSE).encode()
)
PADDED["a member twice"] = b'{"model":"m","messages":[{"role":"user","content":%b,"content":%b}],"messages":%b}' % (
    json.dumps(JUNK).encode(), json.dumps(JUNK).encode(), json.dumps(said(PROSE)["messages"]).encode()
)  # fmt: skip
PADDED["escapes in a tool"] = (
    b'{"model":"m","messages":[],"tools":[{"type":"function","function":{"name":"f","description":"%b"}}]}'
    % "".join(f"\\u{ord(letter):04x}" for letter in PROSE).encode()
)


@pytest.mark.parametrize("padded", PADDED.values(), ids=PADDED)
def test_padding_teaches_nothing_about_what_a_text_costs(padded: bytes) -> None:
    estimates = Estimates(False, 1000)
    plain, true = size(said(PROSE)), round(len(PROSE) * PER_BYTE)
    for _ in range(100):
        estimates.learn(GROUP, plain, Usage(true, 0, 9), streamed(9))
    for _ in range(100):
        request = parse(padded)
        estimates.learn(GROUP, size_of(padded, request, RequestFeatures("m")), Usage(true, 0, 9), streamed(9))
    assert estimates.of(GROUP, plain, 1)[0] == pytest.approx(true, rel=0.1)


@pytest.mark.parametrize("padded", PADDED.values(), ids=PADDED)
def test_padding_makes_no_prompt_cheaper_than_it_is(padded: bytes) -> None:
    found = size_of(padded, parse(padded), RequestFeatures("m"))
    assert found.text_bytes + found.token_ids > 0.95 * size(said(PROSE)).text_bytes


def test_a_text_that_a_template_may_write_counts_wherever_it_stands() -> None:
    """Llama's template writes `date_string`, gpt-oss' `model_identity`: a prompt there would be free."""
    plain = size(said("hi")).text_bytes
    assert size({**said("hi"), "chat_template_kwargs": {"date_string": PROSE}}).text_bytes > plain + 0.7 * len(PROSE)
    assert size({**said("hi"), "chat_template_kwargs": {"thinking": False, "level": 2}}).text_bytes == plain


def test_a_prompt_costs_the_same_however_its_letters_are_written() -> None:
    body = said("天气很好，我们去公园散步。" * 200)
    sizes = [json.dumps(body, ensure_ascii=ascii_only).encode() for ascii_only in (False, True)]
    assert len({size_of(raw, parse(raw), RequestFeatures("m")).text_bytes for raw in sizes}) == 1


def calling(arguments: str) -> int:
    function = {"name": "f", "arguments": arguments}
    return size(said("", tool_calls=[{"id": "a", "type": "function", "function": function}])).text_bytes


@given(st.text())
def test_arguments_cost_the_same_however_their_letters_are_written(text: str) -> None:
    plain, escaped = [json.dumps({"天": text}, ensure_ascii=each) for each in (False, True)]
    assert calling(plain) == calling(escaped)


def test_arguments_that_are_no_json_count_as_they_are() -> None:
    assert calling('{"a": "\\u5929') - calling('{"a": "') == len("u5929")


@pytest.mark.parametrize("content", [5, {"a": 1}, [5], [{"type": 5}], [{"type": "text", "text": 5}], [None]])
def test_a_message_that_engines_refuse_is_counted_and_teaches_nothing(content: Any) -> None:
    found = size(said(content))
    assert found.text_bytes > 0
    assert not found.teaches


@pytest.mark.parametrize("text", [PROSE * 400, "天气很好，" * 200_000, '\\\n"' * 300_000])
def test_a_long_text_counts_as_its_parts_do(text: str) -> None:
    half = len(text) // 2
    whole, *halves = [
        size(said(part)).text_bytes - size(said("")).text_bytes for part in (text, text[:half], text[half:])
    ]
    assert whole == sum(halves)


def test_a_message_of_countless_texts_is_counted_and_teaches_nothing() -> None:
    found = size(said(["12345678"] * 200_000))
    assert found.text_bytes > 1_600_000
    assert not found.teaches
