"""Items as messages: one turn of the assistant, one result after each call, media where templates take them."""

import json
from typing import Any

import pytest
from support.responses_api import WEATHER, chat, translated

from serve.dialects.chat import MISSING_RESULT
from serve.dialects.sealed_reasoning import seal
from serve.errors import InvalidRequestError

USER = {"role": "user", "content": "hi"}
PIXEL = "data:image/png;base64,AAAA"
NAMESPACE = {"type": "namespace", "name": "ns", "tools": [{**WEATHER, "name": "f"}]}


def call(call_id: str = "c1", name: str = "f", arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **more}


def result(call_id: str = "c1", output: Any = "done") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def assistant(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def reasoning(**more: Any) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_1", "summary": [], **more}


def messages(*items: Any, **fields: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = chat(list(items), **fields)["messages"]
    return found


class TestTurns:
    def test_reasoning_text_and_calls_are_one_turn_with_its_results_in_the_order_of_calls(self) -> None:
        thought = reasoning(content=[{"type": "reasoning_text", "text": "hm"}])
        items = [USER, thought, assistant("ok"), call("a"), call("b"), result("b", "2"), result("a", "1"), USER]
        calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in "ab"]
        assert messages(*items) == [
            USER,
            {"role": "assistant", "content": "ok", "reasoning": "hm", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "tool", "tool_call_id": "b", "content": "2"},
            USER,
        ]

    def test_a_result_ends_the_turn(self) -> None:
        roles = [each["role"] for each in messages(USER, call("a"), result("a"), call("b"), result("b"))]
        assert roles == ["user", "assistant", "tool", "assistant", "tool"]

    def test_of_two_results_the_last_counts_and_a_missing_one_is_said_to_be_missing(self) -> None:
        found = messages(USER, call("a"), call("b"), result("a", "old"), result("a", "new"))
        assert [each["content"] for each in found if each["role"] == "tool"] == ["new", MISSING_RESULT]

    def test_a_result_that_comes_after_the_users_next_message_still_follows_its_call(self) -> None:
        found = messages(USER, call("a"), USER, result("a", "late"))
        assert [(each["role"], each["content"]) for each in found[2:]] == [("tool", "late"), ("user", "hi")]

    def test_an_id_that_an_engine_uses_in_every_turn_belongs_to_the_latest_call(self) -> None:
        found = messages(USER, call("a"), result("a", "1"), call("a"), result("a", "2"))
        assert [each["content"] for each in found if each["role"] == "tool"] == ["1", "2"]

    def test_calls_of_one_turn_that_have_one_id_have_the_results_in_their_order(self) -> None:
        found = messages(USER, call("a"), call("a"), result("a", "1"), result("a", "2"), result("a", "2 again"))
        assert [each["content"] for each in found if each["role"] == "tool"] == ["1", "2 again"]

    def test_a_result_is_found_by_its_own_id_where_clients_send_no_other(self) -> None:
        shell = {"type": "local_shell_call", "id": "ls_1", "call_id": "a", "action": {"command": ["ls"]}}
        found = messages(USER, shell, {"type": "local_shell_call_output", "id": "a", "output": "README.md"})
        assert found[-1] == {"role": "tool", "tool_call_id": "a", "content": "README.md"}

    def test_a_call_without_any_id_gets_one_and_keeps_its_result(self) -> None:
        nameless = ({"type": "function_call", "name": "f"}, {"type": "function_call_output", "output": "done"})
        _, turn, reply = messages(USER, *nameless)
        assert turn["tool_calls"][0]["id"] == reply["tool_call_id"] != ""
        assert reply["content"] == "done"

    def test_a_patch_whose_result_has_no_text_is_told_by_its_status(self) -> None:
        patch = {"type": "apply_patch_call", "call_id": "a", "operation": {"type": "delete_file", "path": "x"}}
        found = messages(USER, patch, {"type": "apply_patch_call_output", "call_id": "a", "status": "failed"})
        assert found[-1]["content"] == "failed"

    def test_a_result_without_its_call_is_told_by_the_user(self) -> None:
        (found,) = messages(result("gone", "42"))
        assert (found["role"], "gone" in found["content"], "42" in found["content"]) == ("user", True, True)

    @pytest.mark.parametrize("kind", [[], {}, ["input_text"], 7, None])
    def test_a_result_whose_parts_have_no_readable_type_is_kept_as_json(self, kind: Any) -> None:
        found = messages(USER, call(), result(output=[{"type": kind, "text": "x"}]))
        assert json.loads(found[-1]["content"]) == [{"type": kind, "text": "x"}]

    def test_messages_of_the_user_in_a_row_are_merged(self) -> None:
        image = {"role": "user", "content": [{"type": "input_image", "image_url": PIXEL, "detail": "auto"}]}
        (text,) = messages(USER, {"role": "user", "content": []}, USER)
        assert text["content"] == "hi\n\nhi"
        (mixed,) = messages(USER, image, USER)
        assert [part["type"] for part in mixed["content"]] == ["text", "image_url", "text"]

    def test_leading_instructions_are_one_system_message_and_later_ones_are_the_users(self) -> None:
        developer = {"role": "developer", "content": "d"}
        found = messages(
            {"role": "system", "content": "s"}, developer, USER, assistant("x"), developer, instructions="i"
        )
        assert [(each["role"], each["content"]) for each in found] == [
            ("system", "i\n\ns\n\nd"),
            ("user", "hi"),
            ("assistant", "x"),
            ("user", "d"),
        ]


def test_tools_that_are_added_in_mid_conversation_are_offered() -> None:
    added = {"type": "additional_tools", "role": "developer", "tools": [{**WEATHER, "name": "later"}]}
    given = translated([USER, added, USER], tools=[WEATHER])
    body = json.loads(given.body)
    assert [tool["function"]["name"] for tool in body["tools"]] == ["get_weather", "later"]
    assert (body["messages"], given.dropped) == ([{"role": "user", "content": "hi\n\nhi"}], ())


SEARCH = {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": {
    "type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}}  # fmt: skip
SEARCHED = {
    "type": "tool_search_call",
    "id": "tsc_1",
    "call_id": "s1",
    "execution": "client",
    "arguments": {"query": "f"},
}
FOUND = {"type": "tool_search_output", "call_id": "s1", "status": "completed", "execution": "client"}


class TestSearchesForTools:
    """Codex defers the tools of MCP servers: the model searches for them, and the client finds them."""

    def test_a_search_is_a_call_and_what_it_finds_is_offered(self) -> None:
        found = {**FOUND, "tools": [NAMESPACE]}
        again = [{**SEARCHED, "call_id": "s2"}, {**found, "call_id": "s2"}]
        given = translated([USER, SEARCHED, found, *again, USER], tools=[WEATHER, SEARCH])
        body = json.loads(given.body)
        assert [tool["function"]["name"] for tool in body["tools"]] == ["get_weather", "tool_search", "ns__f"]
        (call,) = body["messages"][1]["tool_calls"]
        assert call["function"] == {"name": "tool_search", "arguments": '{"query":"f"}'}
        results = [each["content"] for each in body["messages"] if each["role"] == "tool"]
        assert (results, given.dropped) == (["Tools found: ns__f"] * 2, ())

    @pytest.mark.parametrize("tools", [[], None, "x", [7]])
    def test_a_search_that_finds_nothing_says_so(self, tools: Any) -> None:
        if tools == [7]:
            with pytest.raises(InvalidRequestError):
                translated([USER, SEARCHED, {**FOUND, "tools": tools}], tools=[SEARCH])
            return
        found = messages(USER, SEARCHED, {**FOUND, "tools": tools}, tools=[SEARCH])
        assert found[-1]["content"] == "Tools found: none"

    @pytest.mark.parametrize("call_id", [None, "tsc_1"])
    def test_a_search_that_only_openai_runs_is_left_out(self, call_id: str | None) -> None:
        ran = {"call_id": call_id, "execution": "server"}
        items = [{**SEARCHED, **ran}, {**FOUND, **ran, "tools": []}]
        given = translated([USER, *items, USER], tools=[WEATHER, {"type": "tool_search"}])
        assert given.dropped == ("tools.tool_search", "input.tool_search_call", "input.tool_search_output")
        assert json.loads(given.body)["messages"] == [{"role": "user", "content": "hi\n\nhi"}]


class TestAgents:
    """Codex tells an agent its task, and the first agent the answers, in items of their own."""

    @staticmethod
    def told(sealed: str) -> dict[str, Any]:
        head = {"type": "input_text", "text": "Message Type: NEW_TASK\nPayload:"}
        parts = [head, {"type": "encrypted_content", "encrypted_content": sealed}]
        return {"type": "agent_message", "author": "/root", "recipient": "/root/list", "content": parts}

    def test_what_another_agent_says_is_a_message_of_the_user(self) -> None:
        found = messages(USER, assistant("so"), self.told("List the files."))
        assert found[2] == {"role": "user", "content": "Message Type: NEW_TASK\nPayload:\nList the files."}

    def test_what_another_provider_has_encrypted_is_refused_as_a_task_and_noted_later(self) -> None:
        with pytest.raises(InvalidRequestError, match=r"input\[1\]\.content\[1\].*begin a new conversation"):
            messages(USER, self.told("gAAAAABo"))
        assert "can't be read" in messages(self.told("gAAAAABo"), assistant("so"), USER)[0]["content"]

    def test_a_compaction_is_refused_with_its_cure(self) -> None:
        with pytest.raises(InvalidRequestError, match="not named `OpenAI`"):
            messages(USER, {"type": "compaction_trigger"})


class TestReferences:
    """Items that a client takes to be stored."""

    @staticmethod
    def reference(identity: str) -> dict[str, Any]:
        return {"type": "item_reference", "id": identity}

    def test_reasoning_and_what_was_said_beside_a_call_are_left_out_and_named(self) -> None:
        items = [USER, self.reference("rs_1"), self.reference("msg_1"), call(), result()]
        given = translated(items)
        assert given.dropped == ("input.item_reference",)
        assert json.loads(given.body)["messages"][1]["tool_calls"][0]["id"] == "c1"

    @pytest.mark.parametrize("rest", [[], [USER], [assistant("so"), USER]])
    def test_an_answer_is_refused_with_its_place(self, rest: list[Any]) -> None:
        with pytest.raises(InvalidRequestError) as refused:
            chat([USER, self.reference("rs_1"), self.reference("msg_1"), *rest])
        assert (refused.value.param, refused.value.code) == ("input[2]", "item_reference_not_found")


class TestCalls:
    def test_a_call_of_a_tool_that_openais_search_has_found_has_the_name_under_which_it_is_offered(self) -> None:
        found = messages(USER, call(name="get_weather", namespace="get_weather"), result(), tools=[WEATHER])
        assert found[1]["tool_calls"][0]["function"]["name"] == "get_weather"

    def test_a_call_of_a_namespace_has_the_functions_name(self) -> None:
        found = messages(USER, call(name="f", namespace="ns"), result(), tools=[NAMESPACE])
        assert found[1]["tool_calls"][0]["function"]["name"] == "ns__f"

    def test_a_custom_call_is_a_call_with_one_string(self) -> None:
        custom = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": 'a "b"\n'}
        found = messages(USER, custom, {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"})
        assert found[1]["tool_calls"][0]["function"] == {"name": "patch", "arguments": '{"input": "a \\"b\\"\\n"}'}
        assert found[2]["content"] == "ok"

    @pytest.mark.parametrize(("given", "expected"), [("", "{}"), ({"a": 1}, '{"a":1}'), ('{"a', '{"a')])
    def test_arguments_are_text_and_never_empty(self, given: Any, expected: str) -> None:
        found = messages(USER, call(arguments=given), result())
        assert found[1]["tool_calls"][0]["function"]["arguments"] == expected

    def test_calls_of_tools_that_only_openai_runs_stay_in_the_history(self) -> None:
        shell = {"type": "local_shell_call", "call_id": "c", "action": {"command": ["ls"]}}
        found = messages(USER, shell, {"type": "local_shell_call_output", "call_id": "c", "output": "a.txt"})
        assert found[1]["tool_calls"][0]["function"] == {"name": "local_shell", "arguments": '{"command":["ls"]}'}
        assert found[2]["content"] == "a.txt"

    @pytest.mark.parametrize(
        ("item", "name", "arguments", "said"),
        [
            (
                {"type": "mcp_call", "server_label": "docs", "name": "ask", "arguments": '{"q":"x"}', "output": "42"},
                "docs__ask", {"q": "x"}, "42",
            ),
            (
                {"type": "mcp_call", "server_label": "docs", "name": "ask", "arguments": "", "error": "away"},
                "docs__ask", {}, '{"error":"away"}',
            ),
            (
                {"type": "web_search_call", "action": {"type": "search", "query": "x", "sources": [{"url": "u"}]}},
                "web_search", {"type": "search", "query": "x"}, '[{"url":"u"}]',
            ),
            (
                {"type": "code_interpreter_call", "code": "1+1", "outputs": [{"type": "logs", "logs": "2"}]},
                "code_interpreter", {"code": "1+1"}, '[{"type":"logs","logs":"2"}]',
            ),
            (
                {"type": "file_search_call", "queries": ["x"], "results": [{"filename": "f", "text": "42"}]},
                "file_search", {"queries": ["x"]}, '[{"filename":"f","text":"42"}]',
            ),
        ],
    )  # fmt: skip
    def test_a_call_that_ran_elsewhere_stays_with_what_it_said_before_what_was_said_of_it(
        self, item: dict[str, Any], name: str, arguments: dict[str, Any], said: str
    ) -> None:
        given = translated([USER, {**item, "id": "h1"}, assistant("So it is."), call(), result()])
        found = json.loads(given.body)["messages"]
        assert [each["role"] for each in found] == ["user", "assistant", "tool", "assistant", "tool"]
        (made,) = found[1]["tool_calls"]
        assert (made["function"]["name"], json.loads(made["function"]["arguments"])) == (name, arguments)
        assert found[2] == {"role": "tool", "tool_call_id": made["id"], "content": said}
        assert (found[3]["content"], len(found[3]["tool_calls"]), given.dropped) == ("So it is.", 1, ())

    @pytest.mark.parametrize("action", [{"actions": [{"type": "wait"}]}, {"action": {"type": "wait"}}])
    def test_what_a_computer_was_told_and_showed_stays(self, action: dict[str, Any]) -> None:
        told = {"type": "computer_call", "call_id": "c", "pending_safety_checks": [], **action}
        screen = {"type": "computer_screenshot", "image_url": PIXEL}
        found = messages(USER, told, {"type": "computer_call_output", "call_id": "c", "output": screen})
        assert json.loads(found[1]["tool_calls"][0]["function"]["arguments"]) == action
        assert found[-1]["content"][-1] == {"type": "image_url", "image_url": {"url": PIXEL}}


class TestResults:
    def test_texts_are_joined(self) -> None:
        parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
        assert messages(USER, call(), result(output=parts))[2]["content"] == "a\nb"

    def test_an_image_follows_in_a_message_of_the_user_that_names_the_call(self) -> None:
        found = messages(USER, call(), result(output=[{"type": "input_image", "image_url": PIXEL, "detail": "high"}]))
        assert found[2]["content"]
        assert found[3]["role"] == "user"
        assert "c1" in found[3]["content"][0]["text"]
        assert found[3]["content"][1] == {"type": "image_url", "image_url": {"url": PIXEL, "detail": "high"}}

    @pytest.mark.parametrize("output", [{"a": 1}, [{"type": "table", "rows": []}], [1, 2], 3])
    def test_an_output_of_another_shape_is_kept_as_json(self, output: Any) -> None:
        content = messages(USER, call(), result(output=output))[2]["content"]
        assert json.loads(content) == output


class TestReasoning:
    @pytest.mark.parametrize(
        "item",
        [
            reasoning(content=[{"type": "reasoning_text", "text": "hm"}]),
            {**reasoning(), "summary": [{"type": "summary_text", "text": "hm"}]},
            reasoning(content="hm"),
            {**reasoning(content=""), "summary": "hm"},
            reasoning(encrypted_content=seal("hm")),
            reasoning(content=[], encrypted_content=seal("hm")),
        ],
    )
    def test_it_stays_with_its_turn_however_it_was_kept(self, item: dict[str, Any]) -> None:
        assert messages(USER, item, assistant("ok"))[1] == {"role": "assistant", "content": "ok", "reasoning": "hm"}

    @pytest.mark.parametrize("sealed", ["gAAAAABforeign", None, 3, "specgate-reasoning-v1:AAAA"])
    def test_that_of_other_providers_is_skipped(self, sealed: Any) -> None:
        found = messages(USER, reasoning(encrypted_content=sealed), assistant("ok"))
        assert found[1] == {"role": "assistant", "content": "ok"}


class TestParts:
    def test_a_file_of_text_is_read_and_every_other_file_refused(self) -> None:
        file = {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,aGk="}
        assert messages({"role": "user", "content": [file]})[0]["content"] == "a.txt:\nhi"
        for broken in ("data:application/pdf;base64,aGk=", "data:text/plain;base64,?", None):
            with pytest.raises(InvalidRequestError):
                messages({"role": "user", "content": [{**file, "file_data": broken}]})

    @pytest.mark.parametrize(
        "part",
        [{"type": "input_image", "file_id": "f"}, {"type": "hologram"}, 3, {"type": "input_video", "url": "x"}],
    )
    def test_a_part_that_cannot_be_read_is_refused_with_its_place(self, part: Any) -> None:
        with pytest.raises(InvalidRequestError) as refused:
            messages({"role": "user", "content": [part]})
        assert (refused.value.param or "").startswith("input[0].content[0]")

    @pytest.mark.parametrize(
        ("part", "reply"),
        [
            (
                {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="},
                "A file (a.pdf)",
            ),
            ({"type": "input_file", "file_id": "f"}, "A file"),
            ({"type": "input_file", "file_url": "https://a/b.pdf"}, "A file"),
            ({"type": "input_image", "file_id": "f"}, "An image"),
        ],
    )
    @pytest.mark.parametrize(
        "conversation",
        [
            lambda part: [{"role": "user", "content": [part]}, assistant("so"), USER],
            lambda part: [{"role": "user", "content": [part]}, USER],
            lambda part: [USER, call("c1"), result("c1", [part])],
            lambda part: [USER, result("c9", [part])],
        ],
    )
    def test_in_earlier_turns_and_results_a_note_stands_in_its_place(
        self, conversation: Any, part: Any, reply: str
    ) -> None:
        """An agent sends its whole conversation every time: one refused part would end it for good."""
        given = translated(input=conversation(part))
        assert f"[{reply} was here and can't be read." in given.body.decode()
        assert given.dropped == (f"input.{part['type']}",)

    def test_a_refusal_of_an_earlier_turn_is_its_text(self) -> None:
        said = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
        assert messages(USER, said)[1]["content"] == "no"
