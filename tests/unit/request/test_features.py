import json
import sys
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.config.gateway import GatewayConfig
from serve.errors import InvalidRequestError
from serve.parsing.families import thinking_of
from serve.request.body_reader import RequestReader
from serve.request.completion import parse
from serve.request.features import SESSION_HEADERS, FeatureReader, features_of
from serve.request.patch import BodyPatch
from serve.request.thinking import set_switch

OWN = {"enable_speculative"}


def without(body, names):
    patch = BodyPatch()
    patch.drop(names)
    return patch.apply(body)


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def features(headers=None, thinking=False, **fields):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()
    return features_of(parse(body), headers or {}, thinking)


def problem(body, headers=None):
    with pytest.raises(InvalidRequestError) as caught:
        features_of(parse(body if isinstance(body, bytes) else json.dumps(body).encode()), headers or {})
    return caught.value


STRICT = {"type": "function", "function": {"name": "g", "strict": True}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"type": "object"}}}


@pytest.mark.parametrize(
    ("fields", "classes"),
    [
        ({}, {"plain"}),
        ({"tools": [TOOL]}, {"tools_auto"}),
        ({"tools": [TOOL], "tool_choice": "auto", "stream": True}, {"tools_auto", "stream"}),
        ({"tools": [TOOL], "tool_choice": "none"}, {"plain"}),
        ({"tools": [], "tool_choice": "auto"}, {"plain"}),
        ({"tools": [TOOL], "tool_choice": "required"}, {"tools_forced", "grammar"}),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
            {"tools_forced", "grammar"},
        ),
        ({"tools": [TOOL], "tool_choice": {"function": {"name": "f"}}}, {"tools_forced", "grammar"}),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required"}}},
            {"tools_forced", "grammar"},
        ),
        ({"tools": [TOOL, STRICT]}, {"tools_auto", "strict", "grammar"}),
        ({"tools": [TOOL], "parallel_tool_calls": False}, {"tools_auto", "single", "grammar"}),
        ({"response_format": {"type": "text"}}, {"plain"}),
        ({"response_format": {"type": "json_object"}}, {"json_object", "grammar"}),
        ({"response_format": SCHEMA}, {"json_schema", "strict", "grammar"}),
        ({"response_format": {**SCHEMA, "type": "text"}}, {"plain"}),
        ({"response_format": {"type": "structural_tag", "format": {}}}, {"structured", "grammar"}),
        ({"structured_outputs": {"regex": "a+"}}, {"structured", "grammar"}),
        ({"structured_outputs": None}, {"plain"}),
        ({"structured_outputs": {"json": {"type": "object"}}}, {"structured", "json_schema", "strict", "grammar"}),
        ({"structured_outputs": {"json": '{"type": "object"}'}}, {"structured", "json_schema", "strict", "grammar"}),
        ({"structured_outputs": {"json_object": True}}, {"structured", "json_object", "grammar"}),
        ({"structured_outputs": {"json": None, "choice": ["a"]}}, {"structured", "grammar"}),
        ({"structured_outputs": ["json"]}, {"structured", "grammar"}),
        ({"guided_json": {"type": "object"}}, {"guided"}),
        ({"regex": "a+"}, {"structured", "grammar"}),
        ({"ebnf": 'root ::= "a"'}, {"structured", "grammar"}),
        ({"json_schema": '{"type": "object"}'}, {"structured", "grammar"}),
        ({"tools": [TOOL], "response_format": SCHEMA}, {"tools_auto", "json_schema", "strict", "grammar"}),
        ({"stop": ["x"]}, {"plain", "stop"}),
        ({"stop": "x"}, {"plain", "stop"}),
        ({"stop": []}, {"plain"}),
        ({"logprobs": True}, {"plain", "logprobs"}),
        ({"logprobs": 0}, {"plain", "logprobs"}),
        ({"logprobs": False}, {"plain"}),
        ({"n": 3}, {"plain", "many"}),
        ({"logit_bias": {"5": -100}}, {"plain", "unspeculable"}),
        ({"logit_bias": {"5": 0}}, {"plain", "unspeculable"}),
        ({"logit_bias": {}}, {"plain"}),
        ({"logit_bias": None}, {"plain"}),
        ({"min_p": 0.05}, {"plain", "unspeculable"}),
        ({"min_p": "0.05"}, {"plain", "unspeculable"}),
        ({"min_p": 0.05, "temperature": None}, {"plain", "unspeculable"}),
        ({"min_p": 0.05, "temperature": 0.7}, {"plain", "unspeculable"}),
        ({"min_p": 0.05, "temperature": 0}, {"plain"}),
        ({"min_p": 0.05, "temperature": "0.0"}, {"plain"}),
        ({"min_p": 0}, {"plain"}),
        ({"min_p": 1e-6}, {"plain"}),
        ({"min_p": None}, {"plain"}),
        ({"frequency_penalty": 0.5}, {"plain", "penalties"}),
        ({"presence_penalty": -1}, {"plain", "penalties"}),
        ({"repetition_penalty": 1.1}, {"plain", "penalties"}),
        ({"frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1.0}, {"plain"}),
        ({"repetition_penalty": None}, {"plain"}),
        ({"prompt_logprobs": 0}, {"plain", "prompt_logprobs"}),
        ({"thinking_token_budget": 0}, {"plain", "thinking_budget"}),
        ({"thinking_token_budget": None}, {"plain"}),
        ({"prompt_logprobs": None}, {"plain"}),
        ({"echo": True, "logprobs": 1}, {"plain", "logprobs", "prompt_logprobs"}),
        ({"echo": False, "logprobs": 1}, {"plain", "logprobs"}),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}]},
            {"plain", "images"},
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "data:x"}}]}]},
            {"plain", "images"},
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 'the field "image_url"'}]}]}, {"plain"}),
        ({"messages": [{"role": "user", "content": 'say {"image_url": 1}'}]}, {"plain"}),
        ({"include_reasoning": False}, {"plain", "hidden_thinking"}),
        ({"messages": [{"role": "tool", "content": "1", "tool_call_id": "a"}]}, {"plain", "history"}),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, {"plain", "history"}),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": None}]}, {"plain"}),
    ],
)
def test_classes_follow_from_the_body(fields, classes):
    assert set(features(**fields).classes) == classes


@pytest.mark.parametrize(
    ("fields", "default", "thinking"),
    [
        ({}, False, False),
        ({}, True, True),
        ({"chat_template_kwargs": {"thinking": False}}, True, False),
        ({"chat_template_kwargs": {"enable_thinking": True}}, False, True),
        ({"chat_template_kwargs": {"other": 1}}, True, True),
        ({"reasoning_effort": "none"}, True, False),
        ({"reasoning_effort": "low"}, False, True),
        ({"reasoning_effort": "high", "chat_template_kwargs": {"thinking": False}}, True, False),
    ],
)
def test_thinking_is_what_the_request_says_else_the_models_default(fields, default, thinking):
    assert features(thinking=default, **fields).thinking is thinking


KIMI = GatewayConfig.parse(
    {"models": {"m": {"family": "kimi-k2", "grammar": "kimi_k2", "thinking": True, "pools": {"s": {"kind": "vllm"}}}}}
)
QWEN = GatewayConfig.parse(
    {"models": {"m": {"family": "qwen3", "grammar": "hermes", "thinking": True, "pools": {"s": {"kind": "vllm"}}}}}
)
OFF = {"thinking": {"type": "disabled"}}


@pytest.mark.parametrize(
    ("config", "fields", "arguments", "thinks"),
    [
        (KIMI, {"reasoning_effort": "none"}, {"thinking": False}, False),
        (KIMI, OFF, {"thinking": False}, False),
        (KIMI, {"thinking": {"type": "enabled", "budget_tokens": 9}}, {"thinking": True}, True),
        (KIMI, {"chat_template_kwargs": {"enable_thinking": False}}, ..., False),
        (KIMI, {"reasoning_effort": "none", "chat_template_kwargs": {"thinking": True}}, {"thinking": True}, True),
        (KIMI, {"reasoning_effort": "none", "chat_template_kwargs": None}, {"thinking": False}, False),
        (KIMI, {**OFF, "chat_template_kwargs": {"x": 1}}, {"x": 1, "thinking": False}, False),
        (KIMI, {"reasoning_effort": "high"}, None, True),
        (KIMI, {"reasoning_effort": None}, None, True),
        (KIMI, {"thinking": {"type": "adaptive"}}, None, True),
        (KIMI, {"thinking": "odd"}, None, True),
        (KIMI, {"thinking": None}, None, True),
        (QWEN, {"reasoning_effort": "none"}, None, False),
        (QWEN, OFF, {"enable_thinking": False}, False),
        (QWEN, {"chat_template_kwargs": {"thinking": False}}, ..., False),
        (QWEN, {"chat_template_kwargs": {"thinking": True, "enable_thinking": False}}, ..., False),
    ],
)
def test_template_and_policy_agree_on_thinking(config, fields, arguments, thinks):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()
    body, request, patch = RequestReader(config.requests).read(body)
    reader = FeatureReader(config)
    body = patch.apply(body)
    reader.set_switch(patch, request)
    sent = patch.apply(body)
    assert reader.read(request, {}).thinking is thinks
    if arguments is None:
        assert sent is body
        assert "chat_template_kwargs" not in json.loads(sent)
    elif arguments is ...:
        assert sent is body
    else:
        assert json.loads(sent)["chat_template_kwargs"] == arguments
    assert FeatureReader(config).read(parse(sent), {}).thinking is thinks


def test_a_prompt_without_a_template_gets_no_switch():
    _, request, patch = RequestReader(KIMI.requests).read(b'{"model":"m","prompt":"x","thinking":{"type":"disabled"}}')
    FeatureReader(KIMI).set_switch(patch, request)
    assert not patch


def test_a_cache_key_may_be_a_number():
    assert features(prompt_cache_key=17).conversation_key == "17"


@pytest.mark.parametrize(
    ("body", "header", "preference"),
    [
        (None, None, None),
        (True, None, True),
        (False, None, False),
        (None, "true", True),
        (None, " False ", False),
        (True, "false", False),
        (False, "true", False),
    ],
)
def test_the_preference_is_read_from_body_and_header_and_false_wins(body, header, preference):
    headers = {} if header is None else {"x-enable-speculative": header}
    fields = {} if body is None else {"enable_speculative": body}
    assert features(headers, **fields).preference is preference


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (b"", None, "is empty"),
        (b"{", None, "not valid JSON"),
        (b'{"model":"m"} x', None, "not valid JSON"),
        (b'{"model":"\xff"}', None, "not valid JSON"),
        ([], None, "must be a JSON object"),
        ({}, "model", "missing"),
        ({"model": 3}, "model", "Expected `str`"),
        ({"model": None}, "model", "Expected `str`"),
        ({"model": "m", "enable_speculative": "yes"}, "enable_speculative", "Expected `bool"),
        ({"model": "m", "enable_speculative": 0}, "enable_speculative", "Expected `bool"),
        ({"model": "m", "tools": {}}, "tools", "Expected `array"),
        ({"model": "m", "tools": [{"type": "function", "function": {}}]}, "tools[0].function", "name"),
        ({"model": "m", "stream": "true"}, "stream", "Expected `bool"),
        ({"model": "m", "tool_choice": "required"}, "tool_choice", "no tools"),
        ({"model": "m", "tools": [TOOL], "tool_choice": "any"}, "tool_choice", "'any'"),
        ({"model": "m", "tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice", "form"),
        (
            {"model": "m", "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "nope"}}},
            "tool_choice",
            "'nope'",
        ),
    ],
)
def test_a_bad_body_is_refused_with_the_field_at_fault(body, param, says):
    error = problem(body)
    assert error.param == param
    assert says in error.message


def test_a_bad_header_is_refused():
    assert problem({"model": "m"}, {"x-enable-speculative": "1"}).param == "x-enable-speculative"


def test_deep_nesting_is_refused_not_a_crash():
    assert problem(b'{"model":"m","messages":[{"content":' + b"[" * 100_000).status == 400


@pytest.mark.parametrize("field", ['"thinking": {"x": DEEP}', '"chat_template_kwargs": {"enable_thinking": DEEP}'])
def test_what_is_nested_too_deeply_for_its_reader_says_nothing_of_thinking(field):
    def nested(depth):
        body = '{"model": "m", "messages": [], ' + field.replace("DEEP", "[" * depth + "]" * depth) + "}"
        with suppress(InvalidRequestError):
            return parse(body.encode())

    request = next(filter(None, map(nested, range(sys.getrecursionlimit(), 0, -1))))
    patch = BodyPatch()
    further_down(lambda: (features_of(request, {}), set_switch(patch, request, thinking_of("kimi_k2"))))


def further_down(call, calls=40):
    """Calls with that many more calls on the stack."""
    return further_down(call, calls - 1) if calls else call()


def test_a_conversation_keeps_its_key_while_it_grows():
    first = [{"role": "system", "content": "s"}, {"role": "user", "content": "one"}]
    later = [*first, {"role": "assistant", "content": "a"}, {"role": "user", "content": "two"}]
    key = features(messages=first).conversation_key
    assert key
    assert features(messages=later).conversation_key == key
    assert features(messages=[first[0], {"role": "user", "content": "other"}]).conversation_key != key
    assert features(messages=later, prompt_cache_key="mine").conversation_key == "mine"


def test_a_conversation_keeps_its_key_however_a_client_writes_its_first_messages_later():
    def key(system, user):
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return features(messages=messages).conversation_key

    def marked(text):
        return [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]

    def parts(*texts):
        return [{"type": "text", "text": text} for text in texts]

    same = key("s", 'say "\u00e9"')
    for user in (marked('say "\u00e9"'), parts('say "\u00e9"'), parts("say ", '"\u00e9"')):
        assert key("s", user) == key(parts("s"), user) == key(marked("s"), user) == same
    assert key(parts("s"), parts("other")) != same
    images = [[*parts("look"), {"type": "image_url", "image_url": {"url": f"data:{each}"}}] for each in "ab"]
    assert len({key("s", each) for each in (*images, "look")}) == 3
    assert key("s", ["no part"]) != key("s", ["another"])


@pytest.mark.parametrize("name", SESSION_HEADERS)
def test_a_header_that_names_the_session_names_the_conversation_for_all_that_ask(name):
    request = parse(b'{"model":"m","messages":[{"role":"user","content":"hi"}],"prompt_cache_key":"k"}')
    assert features_of(request, {name: "s"}).conversation_key == "s"
    assert features_of(request, {name: ""}).conversation_key == "k"


def test_a_long_name_of_a_conversation_is_one_of_few_letters():
    names = ["k" * 1_000_000, "k" * 999_999 + "l", "\u00e9" * 300]
    keys = [features(prompt_cache_key=name).conversation_key for name in names]
    assert len({*keys}) == 3
    assert max(map(len, keys)) < 64
    request = parse(b'{"model":"m","messages":[]}')
    assert features_of(request, {"x-session-id": names[0]}).conversation_key == keys[0]


def test_text_completions_have_features_too():
    completion = features_of(parse(b'{"model":"m","prompt":"once upon"}'), {})
    assert completion.classes == ("plain",)
    assert completion.conversation_key


class TestWithoutMembers:
    @pytest.mark.parametrize(
        ("body", "left"),
        [
            (b'{"model":"m"}', b'{"model":"m"}'),
            (b'{"enable_speculative":true}', b"{}"),
            (b'{ "enable_speculative" : true , "model":"m" }', b'{"model":"m"}'),
            (b'{"model":"m", "enable_speculative":false}', b'{"model":"m"}'),
            (b'{"enable_speculative":1,"a":[1, 2],"enable_speculative":2}', b'{"a":[1, 2]}'),
            (b'{"\\u0065nable_speculative":true,"a":1}', b'{"a":1}'),
            (b'{"a":{"enable_speculative":true}}', b'{"a":{"enable_speculative":true}}'),
            (b'{"a":"\\"enable_speculative\\":true,"}', b'{"a":"\\"enable_speculative\\":true,"}'),
            (b'{"a":"enable_speculative","enable_speculative":null}', b'{"a":"enable_speculative"}'),
            (b'\n {"a":"}","enable_speculative":[{"b":"]"}],"c":1.50}\n', b'{"a":"}","c":1.50}'),
            (b'{"a":"x\\\\","enable_speculative":0}', b'{"a":"x\\\\"}'),
        ],
    )
    def test_only_the_own_field_goes(self, body, left):
        assert without(body, OWN) == left

    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.just("enable_speculative"),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("enable_speculative"), inner, max_size=3)
        ),
        max_leaves=8,
    )
    keys = st.text() | st.just("enable_speculative")
    blank = st.text(" \n\t\r", max_size=2)

    @given(
        st.lists(
            st.tuples(blank, keys, st.booleans(), blank, values, st.booleans(), blank),
            max_size=6,
            unique_by=lambda member: member[1],
        ),
        blank,
        blank,
    )
    def test_every_other_value_keeps_its_bytes_and_its_place(self, members, before, after):
        written = []
        others = []
        for lead, key, ascii_key, mid, value, ascii_value, trail in members:
            name = json.dumps(key, ensure_ascii=ascii_key)
            if ascii_key and key == "enable_speculative":
                name = name.replace("s", "\\u0073")
            raw = json.dumps(value, ensure_ascii=ascii_value)
            written.append(f"{lead}{name}{mid}:{mid}{raw}{trail}")
            if key != "enable_speculative":
                others.append((key, raw.encode("utf-8", "surrogatepass")))
        body = f"{before}{{{','.join(written)}}}{after}".encode("utf-8", "surrogatepass")
        left = without(body, OWN)
        assert left == body or len(others) < len(members)
        assert [
            (key, bytes(raw)) for key, raw in msgspec.json.decode(left, type=dict[str, msgspec.Raw]).items()
        ] == others


@pytest.mark.parametrize("place", [0, 1_048_570, 1_048_575, 2_500_000])
def test_an_image_is_found_wherever_it_stands_in_a_long_message(place: int) -> None:
    content = [{"type": "text", "text": "a" * place}, {"type": "image_url", "image_url": {"url": "data:x"}}]
    request = parse(json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode())
    assert features_of(request, {}).images


WORDS = st.sampled_from(["image", "image_url", "input_image", "video", "video of a cat", 'an "image"', "text", ""])
PARTS: st.SearchStrategy[Any] = st.one_of(
    WORDS,
    st.fixed_dictionaries({"type": st.just("text"), "text": WORDS}, optional={"image_url": st.none()}),
    st.builds(lambda name: {"type": "input_audio", "input_audio": {"data": name}}, WORDS),
    st.sampled_from(["image_url", "video_url", "input_image", "image_embeds"]).map(lambda kind: {"type": kind}),
    st.sampled_from(["image_url", "video_url", "image_pil"]).map(lambda name: {name: {"url": "data:x"}}),
)


def is_image(part: Any) -> bool:
    if isinstance(part, str):
        return False
    return part.get("type") not in ("text", "input_audio")


@given(st.lists(PARTS, max_size=4), st.booleans())
def test_a_picture_is_one_however_it_is_spelt_and_a_text_about_one_is_none(parts: list[Any], escaped: bool) -> None:
    written = json.dumps(parts)
    if escaped:
        written = written.replace("i", "\\u0069")
    request = parse(b'{"model": "m", "messages": [{"role": "user", "content": ' + written.encode() + b"}]}")
    assert features_of(request, {}).images == any(map(is_image, parts))


@pytest.mark.parametrize("content", ['[1, "image"]', '["image", {"type": 7}, null]'])
def test_parts_that_nobody_can_read_count_as_pictures(content: str) -> None:
    request = parse(b'{"model": "m", "messages": [{"role": "user", "content": ' + content.encode() + b"}]}")
    assert features_of(request, {}).images


@pytest.mark.parametrize("stop", ['"x"', '["x"]', '["", "x"]', '[ "" ]'])
def test_a_request_with_a_stop_text_says_so(stop: str) -> None:
    assert features_of(parse(f'{{"model":"m","stop":{stop}}}'.encode()), {}).stop


@pytest.mark.parametrize("stop", ["null", '""', "[]", "[ \n]"])
def test_a_request_without_a_stop_text_says_so(stop: str) -> None:
    assert not features_of(parse(f'{{"model":"m","stop":{stop}}}'.encode()), {}).stop


SPOKEN = [
    ("minimax_m3", OFF, {"thinking_mode": "disabled"}, {}),
    (
        "minimax_m3",
        {"chat_template_kwargs": {"thinking": True, "enable_thinking": True}},
        {"thinking_mode": "enabled"},
        {},
    ),
    ("minimax_m3", {"chat_template_kwargs": {"thinking_mode": "adaptive"}}, {}, {}),
    ("minimax_m2", OFF, {}, {}),
    ("hy_v3", {"reasoning_effort": "none"}, {"reasoning_effort": "no_think"}, {"reasoning_effort": None}),
    ("hy_v3", {"reasoning_effort": "medium"}, {"reasoning_effort": "high"}, {"reasoning_effort": None}),
    ("hy_v3", {"reasoning_effort": "low"}, {}, {"reasoning_effort": "low"}),
    ("hy_v3", {"thinking": {"type": "enabled"}}, {"reasoning_effort": "high"}, {}),
    ("kimi_k3", {"reasoning_effort": "medium"}, {}, {"reasoning_effort": "high"}),
    ("kimi_k3", {"reasoning_effort": "none"}, {"thinking": False}, {"reasoning_effort": None}),
    ("deepseek_v31", {"thinking": {"type": "enabled"}}, {"thinking": True}, {}),
    ("glm47", OFF, {"enable_thinking": False}, {}),
    ("nemotron_v3", {"chat_template_kwargs": {"thinking": False}}, {"enable_thinking": False}, {}),
]


@pytest.mark.parametrize(("grammar", "fields", "arguments", "others"), SPOKEN)
def test_a_template_gets_the_switch_and_the_effort_that_it_reads(grammar, fields, arguments, others):
    _, request, patch = RequestReader(KIMI.requests).read(body := encoded(fields))
    set_switch(patch, request, thinking_of(grammar))
    sent = json.loads(patch.apply(body))
    given = fields.get("chat_template_kwargs", {})
    assert (sent.get("chat_template_kwargs") or {}) == {**given, **arguments}
    for name, value in others.items():
        assert sent.get(name) == value


def encoded(fields):
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}).encode()


def test_what_the_policy_takes_for_thinking_is_what_the_family_does():
    def thinking(grammar, default=None, **fields):
        return features_of(parse(encoded(fields)), {}, default, thinking_of(grammar)).thinking

    assert thinking("glm47")
    assert not thinking("glm47", reasoning_effort="none")
    assert not thinking("glm47", default=False)
    assert thinking("minimax_m2", reasoning_effort="none")
    assert thinking("harmony")
    assert not thinking("deepseek_v31")
    assert thinking("deepseek_v31", reasoning_effort="high")
    assert not thinking("hy_v3", chat_template_kwargs={"reasoning_effort": "no_think"})
    assert not thinking("kimi_k3", thinking={"type": "disabled"})


def of_context(length, **pool):
    args = {} if length is None else {"max-model-len": length}
    pools = {"fast": {"engine_args": args, **pool}, "long": {"engine_args": {"max-model-len": 262144}}}
    return GatewayConfig.model_validate(
        {"models": {"m": {"family": "qwen3", "grammar": "hermes", "engine_args": {"model": "a/b"}, "pools": pools}}}
    )


@pytest.mark.parametrize(
    ("context", "size_bytes", "fields", "near"),
    [
        (32768, 3000, {}, False),
        (32768, 90_000, {}, True),  # 30,000 tokens at most, and an answer of the usual length
        (32768, 3000, {"max_tokens": 31_000}, False),
        (32768, 6000, {"max_tokens": 31_000}, True),
        (32768, 6000, {"max_tokens": "31000"}, True),
        (32768, 6000, {"max_tokens": 31_000, "max_completion_tokens": 5}, True),  # SGLang obeys the first
        (32768, 6000, {"max_tokens": None}, False),
        (32768, 6000, {"max_tokens": -1}, False),
        (262144, 90_000, {}, False),
        ("auto", 3000, {}, False),
        ("auto", 15_000, {}, False),  # the other pool states its length
    ],
)
def test_a_request_is_near_the_end_of_the_shortest_context_that_a_pool_states(context, size_bytes, fields, near):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()
    found = FeatureReader(of_context(context)).read(parse(body), {}, size_bytes=size_bytes)
    assert ("near_end" in found.classes) is near


def test_where_nobody_states_a_context_it_counts_as_a_short_one():
    remote = {"kind": "remote", "url": "http://engine:8000", "facts": {"method": "none"}}
    model = {"family": "qwen3", "grammar": "hermes", "pools": {"far": remote}}
    reader = FeatureReader(GatewayConfig.model_validate({"models": {"m": model}}))
    request = parse(b'{"model":"m","messages":[{"role":"user","content":"hi"}]}')
    assert not reader.read(request, {}, size_bytes=9000).near_end
    assert reader.read(request, {}, size_bytes=13_000).near_end
