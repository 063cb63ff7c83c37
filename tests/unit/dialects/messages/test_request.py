"""Messages requests to chat requests, and answers that come back in the next one."""

import contextlib
import json
import re
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.chat_chunks import ChatAnswer, answers

from serve.dialects.chat import MISSING_RESULT
from serve.dialects.dialect import Identity, Translated
from serve.dialects.messages import MESSAGES
from serve.dialects.messages.conversation import client_id, engine_id
from serve.errors import InvalidRequestError
from serve.request.completion import parse
from serve.request.features import features_of

PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQ="}
USER = {"role": "user", "content": "hello"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"name": "f", "description": "d", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}
CHAT_TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
TOOLSET = {"type": "mcp_toolset", "mcp_server_name": "docs"}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0="}
PNG_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0="}}


def translated(**fields: Any) -> Translated:
    body = {"model": "m", "max_tokens": 9, "messages": [USER], **fields}
    return MESSAGES.decode(json.dumps(body).encode())


def chat(**fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(translated(**fields).body)
    return body


def messages(*given: Any, **fields: Any) -> list[dict[str, Any]]:
    conversation: list[dict[str, Any]] = chat(messages=list(given), **fields)["messages"]
    return conversation


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def call(call_id: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "f", "input": arguments}


def result(call_id: str, content: Any = "ok", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def tool(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


class TestFields:
    def test_fields_that_chat_has_too_keep_their_values(self) -> None:
        body = chat(temperature=0.5, top_p=0.9, top_k=7, stop_sequences=["END"], enable_speculative=False)
        assert body == {
            "model": "m", "messages": [USER], "max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 7,
            "stop": ["END"], "enable_speculative": False,
        }  # fmt: skip

    def test_a_stream_asks_for_its_usage(self) -> None:
        assert chat(stream=True)["stream_options"] == {"include_usage": True}
        assert translated(stream=True).stream

    def test_fields_that_nobody_knows_are_named_and_left_out(self) -> None:
        given = translated(context_management={}, betas=["x"], metadata={"user_id": "u"}, service_tier="auto")
        assert given.dropped == ("context_management", "betas", "service_tier")
        assert set(json.loads(given.body)) == {"model", "messages", "max_tokens"}

    def test_members_that_have_no_effect_are_named_too(self) -> None:
        given = translated(
            thinking={"type": "enabled", "budget_tokens": 2000, "display": "omitted"},
            output_config={"effort": "low", "task_budget": {"total": 5}, "format": None, "later": None},
        )
        assert given.dropped == ("thinking.budget_tokens", "output_config.task_budget")

    @pytest.mark.parametrize(
        ("thinking", "switch", "sent"),
        [
            ({"type": "enabled", "budget_tokens": 1024}, True, True),
            ({"type": "disabled"}, False, False),
            ({"type": "adaptive"}, None, True),
            (None, None, False),
        ],
    )
    def test_thinking_is_switched_by_the_templates_arguments(self, thinking: Any, switch: Any, sent: bool) -> None:
        given = translated(thinking=thinking)
        expected = None if switch is None else {"thinking": switch, "enable_thinking": switch}
        assert json.loads(given.body).get("chat_template_kwargs") == expected
        assert given.memo.thinking is sent

    def test_effort_and_format_of_the_output_become_chats(self) -> None:
        older = chat(output_format={"type": "json_schema", "schema": SCHEMA})
        body = chat(output_config={"effort": "high", "format": {"type": "json_schema", "schema": SCHEMA}})
        assert older["response_format"] == body["response_format"]
        assert body["reasoning_effort"] == "high"
        assert body["response_format"]["json_schema"] == {"name": "output", "schema": SCHEMA, "strict": True}

    @pytest.mark.parametrize(
        ("user_id", "key"),
        [
            (None, None),
            ("alice", None),
            ('{"device_id": "d", "session_id": "s1"}', "s1"),
            ("user_1_account__session_2", "user_1_account__session_2"),
            ("{broken", None),
        ],
    )
    def test_a_conversation_is_known_by_what_its_client_calls_it(self, user_id: Any, key: Any) -> None:
        given = translated(metadata={"user_id": user_id})
        assert json.loads(given.body).get("prompt_cache_key") == key

    def test_a_begun_answer_is_continued(self) -> None:
        body = chat(messages=[USER, {"role": "assistant", "content": "{"}])
        assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)

    @pytest.mark.parametrize("content", ["", " \n", [], [{"type": "redacted_thinking", "data": "x"}]])
    def test_an_answer_that_the_client_has_not_begun_is_not_continued(self, content: Any) -> None:
        body = chat(messages=[USER, {"role": "assistant", "content": content}])
        assert body["messages"] == [USER]
        assert "continue_final_message" not in body

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"messages": None}, "messages: must be a list"),
            ({"messages": []}, "at least one message"),
            ({"messages": ["x"]}, r"messages\.0: must be an object"),
            ({"messages": [{"role": "tool", "content": ""}]}, r"messages\.0\.role"),
            ({"messages": [{"role": "user"}]}, r"messages\.0\.content: Field required"),
            ({"messages": [{"role": "user", "content": 7}]}, r"messages\.0\.content: must be a string or a list"),
            ({"messages": [user({"text": "x"})]}, r"messages\.0\.content\.0: must be an object with a `type`"),
            ({"messages": [user({"type": "audio"})]}, r"messages\.0\.content\.0: Input tag 'audio'"),
            ({"messages": [user({"type": "text"})]}, "text: Field required"),
            ({"messages": [user({"type": "document", "source": PNG})]}, "a document of type image/png can't be read"),
            ({"messages": [user({"type": "image", "source": {"type": "file"}})]}, "base64 or url"),
            ({"messages": [assistant({"type": "tool_use"})]}, "`id` and a `name`"),
            ({"max_tokens": 0}, "max_tokens: must be at least 1"),
            ({"max_tokens": "9"}, "max_tokens: must be an integer"),
            ({"max_tokens": True}, "max_tokens: must be an integer"),
            ({"model": None}, "model: must be a string"),
            ({"system": 7}, "system: must be a string or a list"),
            ({"system": [{"type": "image"}]}, r"system\.0: must be a block of text"),
            ({"stream": "yes"}, "stream: must be true or false"),
            ({"thinking": {"type": 1}}, "thinking: must be"),
            ({"thread": {"type": "continue", "previous_message_id": "msg_1"}}, "no conversation is stored"),
            ({"compaction": {"type": "summarize"}}, "compaction: is not done here"),
            ({"tools": {}}, "tools: must be a list"),
            ({"tools": ["f"]}, r"tools\.0: must be an object"),
            ({"tools": [{"input_schema": {}}]}, r"tools\.0\.name: Field required"),
            ({"tools": [{"name": "f"}]}, r"tools\.0\.input_schema: Field required"),
            ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice: must be"),
            ({"output_config": {"format": {"type": "xml"}}}, "must be of type json_schema"),
        ],
    )
    def test_what_cannot_be_translated_is_named(self, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidRequestError, match=message):
            translated(**fields)

    @pytest.mark.parametrize("missing", ["model", "messages", "max_tokens"])
    def test_a_required_field_that_is_missing_is_named(self, missing: str) -> None:
        body = {"model": "m", "max_tokens": 9, "messages": [USER]}
        del body[missing]
        with pytest.raises(InvalidRequestError, match=f"{missing}: Field required"):
            MESSAGES.decode(json.dumps(body).encode())


class TestSystem:
    def test_blocks_become_one_text_without_the_billing_line_that_changes_every_time(self) -> None:
        system = [
            text("x-anthropic-billing-header: cc_version=1;"),
            {**text("One."), "cache_control": {}},
            text("Two."),
        ]
        assert messages(USER, system=system) == [{"role": "system", "content": "One.\n\nTwo."}, USER]

    def test_system_messages_at_the_front_join_it_and_later_ones_are_told_by_the_user(self) -> None:
        leading, later = {"role": "system", "content": "Two."}, {"role": "system", "content": "Mind."}
        given = messages(leading, USER, later, assistant(text("yes")), later, system="One.")
        assert given == [
            {"role": "system", "content": "One.\n\nTwo."},
            {"role": "user", "content": "hello\n\nMind."},
            {"role": "assistant", "content": "yes"},
            {"role": "user", "content": "Mind."},
        ]

    def test_a_developers_message_is_one_of_the_system(self) -> None:
        assert messages({"role": "developer", "content": "Two."}, USER, system="One.") == [
            {"role": "system", "content": "One.\n\nTwo."}, USER
        ]  # fmt: skip

    def test_one_that_ends_with_the_next_message_of_the_user_is_gone_when_that_has_come(self) -> None:
        passing = {"role": "system", "content": "Once.", "clear_at": "next_user_message"}
        assert messages(USER, passing) == [{"role": "user", "content": "hello\n\nOnce."}]
        assert messages(USER, passing, assistant(text("yes")), USER) == [
            USER, {"role": "assistant", "content": "yes"}, USER
        ]  # fmt: skip

    def test_one_that_changes_options_only_is_no_message(self) -> None:
        quiet = {"role": "system", "output_config": {"effort": "low"}}
        assert messages(USER, quiet, assistant(text("yes")), USER, quiet) == [
            USER, {"role": "assistant", "content": "yes"}, USER
        ]  # fmt: skip


class TestCompaction:
    SUMMARY = {"type": "compaction", "content": "They met.", "signature": "s"}  # noqa: RUF012

    def test_the_summary_that_stands_for_a_conversation_is_told_by_the_user(self) -> None:
        [message] = messages(assistant(self.SUMMARY), USER)
        assert message["role"] == "user"
        assert "They met." in message["content"]

    def test_a_summary_within_a_turn_stays_there(self) -> None:
        given = messages(USER, assistant(self.SUMMARY, text("Go on.")), USER)
        assert given[1]["content"] == "Summary of the conversation so far:\nThey met.\nGo on."

    def test_one_that_failed_says_nothing(self) -> None:
        assert messages(assistant({"type": "compaction", "content": None}), USER) == [USER]


class TestContent:
    def test_a_turn_that_a_client_sends_back_as_null_is_an_empty_one(self) -> None:
        lost = {"role": "assistant", "content": None}
        assert messages(USER, lost, USER) == messages(USER, {**lost, "content": ""}, USER)

    def test_turns_of_one_side_become_one_and_empty_text_is_left_out(self) -> None:
        assert messages(USER, user(text(""), text("you")), USER) == [
            {"role": "user", "content": "hello\n\nyou\n\nhello"}
        ]

    def test_an_image_makes_the_content_a_list_of_parts(self) -> None:
        [message] = messages(user(text("see"), {"type": "image", "source": PNG}))
        assert message["content"] == [text("see"), PNG_PART]
        [message] = messages(user({"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}))
        assert message["content"][0]["image_url"]["url"] == "https://a/b.png"

    def test_a_document_is_introduced_by_its_title_and_what_is_said_about_it(self) -> None:
        source = {"type": "text", "media_type": "text/plain", "data": "D"}
        [message] = messages(user({"type": "document", "title": "T", "context": "written in 1990", "source": source}))
        assert message["content"] == "Document: T\n\nAbout the document: written in 1990\n\nD"

    def test_citations_that_no_answer_will_have_are_named(self) -> None:
        for enabled, named in ((True, ("messages.citations",)), (False, ())):
            found = {"type": "search_result", "content": [text("F")], "citations": {"enabled": enabled}}
            assert translated(messages=[user(found)]).dropped == named

    def test_documents_and_search_results_become_their_text(self) -> None:
        plain = {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "D"}}
        listed = {"type": "document", "source": {"type": "content", "content": [text("L")]}}
        found = {"type": "search_result", "title": "S", "source": "https://s", "content": [text("F")]}
        [message] = messages(user(plain, listed, found))
        assert message["content"] == "Document: T\n\nD\n\nL\n\nSearch result: S, https://s\n\nF"

    @pytest.mark.parametrize("media_type", ["text/csv; charset=utf-8", "application/json", "application/ld+json"])
    def test_a_document_of_text_in_base64_is_its_text(self, media_type: str) -> None:
        source = {"type": "base64", "media_type": media_type, "data": "YSxi\nCg=="}
        [message] = messages(user({"type": "document", "source": source}))
        assert message["content"] == "a,b\n"

    def test_blocks_of_an_assistant_that_ran_elsewhere_are_left_out_and_named(self) -> None:
        given = translated(messages=[USER, assistant({"type": "server_tool_use"}, text("so")), USER])
        assert given.dropped == ("messages.server_tool_use",)
        assert json.loads(given.body)["messages"][1] == {"role": "assistant", "content": "so"}

    @pytest.mark.parametrize(
        ("asked", "kind", "content", "name", "said"),
        [
            (
                {"type": "server_tool_use", "name": "web_search"},
                "web_search_tool_result",
                [{"type": "web_search_result", "title": "T", "url": "u", "encrypted_content": "E"}],
                "web_search",
                '[{"type":"web_search_result","title":"T","url":"u"}]',
            ),
            (
                {"type": "server_tool_use", "name": "web_fetch"},
                "web_fetch_tool_result",
                {"type": "web_fetch_result", "url": "u", "content": {"type": "document", "source": {
                    "type": "text", "media_type": "text/plain", "data": "Page"}}},
                "web_fetch",
                "u:\nPage",
            ),
            (
                {"type": "server_tool_use", "name": "bash_code_execution"},
                "bash_code_execution_tool_result",
                {"type": "bash_code_execution_result", "stdout": "2", "return_code": 0},
                "bash_code_execution",
                '{"type":"bash_code_execution_result","stdout":"2","return_code":0}',
            ),
            (
                {"type": "mcp_tool_use", "name": "ask", "server_name": "docs"},
                "mcp_tool_result", [text("42")], "docs__ask", "42",
            ),
        ],
    )  # fmt: skip
    def test_a_call_that_ran_elsewhere_stays_with_what_it_said_before_what_was_said_of_it(
        self, asked: dict[str, Any], kind: str, content: Any, name: str, said: str
    ) -> None:
        ran = {**asked, "id": "s1", "input": {"q": "x"}}
        answered = {"type": kind, "tool_use_id": "s1", "content": content}
        turn = assistant(text("Let me see."), call("c1"), ran, answered, text("So it is."))
        given = translated(messages=[USER, turn, user(result("c1"))])
        found = json.loads(given.body)["messages"]
        assert [each["role"] for each in found] == ["user", "assistant", "tool", "assistant", "tool"]
        assert found[1]["content"] == "Let me see."
        assert [each["function"] for each in found[1]["tool_calls"]] == [{"name": name, "arguments": '{"q":"x"}'}]
        assert found[2:] == [
            tool("s1", said),
            {"role": "assistant", "content": "So it is.", "tool_calls": found[3]["tool_calls"]},
            tool("c1", "ok"),
        ]
        assert given.dropped == ()

    @pytest.mark.parametrize(
        "blocks",
        [
            ({"type": "server_tool_use", "id": "s1"}, {"type": "x_tool_result", "tool_use_id": "s2"}),
            ({"type": "mcp_tool_use", "id": ["s1"]}, {"type": "x_tool_result", "tool_use_id": {}}),
            ({"type": "x_tool_result", "tool_use_id": "s1"}, {"type": "x_tool_result"}),
        ],
    )
    def test_a_call_that_ran_elsewhere_without_a_result_is_left_out_and_so_is_a_result_without_a_call(
        self, blocks: Any
    ) -> None:
        given = translated(messages=[USER, assistant(*blocks, text("so")), USER])
        assert set(given.dropped) == {f"messages.{block['type']}" for block in blocks}
        assert json.loads(given.body)["messages"][1] == {"role": "assistant", "content": "so"}

    def test_foreign_signatures_and_redacted_thinking_are_skipped(self) -> None:
        foreign = {"type": "thinking", "thinking": "", "signature": "EqQBCgIYAhIM"}
        given = messages(USER, assistant(foreign, {"type": "redacted_thinking", "data": "x"}, text("so")), USER)
        assert given[1] == {"role": "assistant", "content": "so"}

    def test_thinking_without_a_signature_is_kept(self) -> None:
        given = messages(USER, assistant({"type": "thinking", "thinking": "hm"}, text("so")), USER)
        assert given[1] == {"role": "assistant", "content": "so", "reasoning": "hm"}


class TestResults:
    def test_results_follow_their_calls_in_the_order_of_the_calls_and_the_users_words_come_after(self) -> None:
        given = messages(
            USER, assistant(call("c1", a=1), call("c2")), user(text("go on"), result("c2"), result("c1", "one"))
        )
        assert given[1]["content"] is None
        assert [each["function"]["arguments"] for each in given[1]["tool_calls"]] == ['{"a":1}', "{}"]
        assert given[2:] == [tool("c1", "one"), tool("c2", "ok"), {"role": "user", "content": "go on"}]

    def test_of_two_results_the_last_counts_and_a_missing_one_is_said_to_be_missing(self) -> None:
        given = messages(USER, assistant(call("c1"), call("c2")), user(result("c1", "old"), result("c1", "new")))
        assert given[2:] == [tool("c1", "new"), tool("c2", MISSING_RESULT)]

    def test_calls_that_have_one_id_have_the_results_in_their_order(self) -> None:
        given = messages(USER, assistant(call("c1"), call("c1")), user(result("c1", "1"), result("c1", "2")))
        assert given[2:] == [tool("c1", "1"), tool("c1", "2")]

    def test_arguments_that_a_client_kept_as_text_are_not_encoded_again(self) -> None:
        given = messages(USER, assistant({**call("c1"), "input": '{"a": 1}'}), user(result("c1")))
        assert given[1]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'

    @pytest.mark.parametrize("rest", [[], [assistant(text("so"))], [USER]])
    def test_calls_without_any_result_have_missing_ones(self, rest: list[Any]) -> None:
        given = messages(USER, assistant(call("c1")), *rest)
        assert tool("c1", MISSING_RESULT) in given or given[1]["content"] == "so"

    def test_the_encoders_know_the_ids_of_the_calls_so_far(self) -> None:
        given = translated(messages=[USER, assistant(call("c1"), call("c2")), user(result("c1"))])
        assert given.memo.taken_ids == {"c1", "c2"}

    def test_a_result_without_its_call_is_told_by_the_user(self) -> None:
        assert messages(user(result("c9"))) == [{"role": "user", "content": "Result of the tool call c9:\n\nok"}]

    def test_several_parts_of_a_result_are_lines_and_no_content_is_an_empty_result(self) -> None:
        parts = [text("one"), {"type": "tool_reference", "tool_name": "g"}]
        given = messages(USER, assistant(call("c1"), call("c2")), user(result("c1", parts), result("c2", None)))
        assert given[2:] == [tool("c1", "one\nTool: g"), tool("c2", "")]

    @pytest.mark.parametrize(
        ("content", "reply"),
        [
            ("no such file", "Error: no such file"),
            ("Error: gone", "Error: gone"),
            ("Errors: 0, warnings: 3", "Error: Errors: 0, warnings: 3"),
            ("ErrorBoundary.tsx", "Error: ErrorBoundary.tsx"),
            ("", "Error: the tool failed."),
        ],
    )
    def test_a_failed_tool_is_told_as_an_error(self, content: str, reply: str) -> None:
        given = messages(USER, assistant(call("c1")), user(result("c1", content, is_error=True)))
        assert given[2] == tool("c1", reply)

    def test_images_of_a_result_follow_in_a_message_that_names_the_call(self) -> None:
        picture = {"type": "image", "source": PNG}
        given = messages(USER, assistant(call("c1")), user(result("c1", [text("shot"), picture]), text("see")))
        assert given[2]["content"].startswith("shot\n")
        assert "c1" in given[2]["content"]
        named, image, words = given[3]["content"]
        assert "c1" in named["text"]
        assert (image, words) == (PNG_PART, text("see"))


class TestUnreadable:
    """An agent sends its whole conversation every time: one refused block would end it for good."""

    @pytest.mark.parametrize(
        ("block", "reply"),
        [
            ({"type": "document", "source": PDF, "title": "Plan"}, "A document of type application/pdf"),
            ({"type": "document", "source": {"type": "url", "url": "https://a/b.pdf"}}, "A document of type url"),
            ({"type": "image", "source": {"type": "file", "file_id": "f"}}, "An image"),
            ({"type": "hologram"}, "A block of type hologram"),
        ],
    )
    @pytest.mark.parametrize(
        "conversation",
        [
            lambda block: [user(block), assistant(text("so")), user(text("go on"))],
            lambda block: [user(block), user(text("without it, then"))],
            lambda block: [USER, assistant(call("c1")), user(result("c1", [block]))],
            lambda block: [USER, assistant(call("c1")), user(result("c1", "read"), block)],
        ],
    )
    def test_in_earlier_turns_and_results_a_note_stands_in_its_place(
        self, conversation: Any, block: Any, reply: str
    ) -> None:
        given = translated(messages=conversation(block))
        assert f"[{reply} was here and can't be read." in given.body.decode()
        assert given.dropped == (f"messages.{block['type']}",)

    @pytest.mark.parametrize("later", [[], [{"role": "system", "content": "Be brief."}]])
    def test_in_what_the_user_says_now_it_is_an_error_that_says_what_to_do(self, later: list[Any]) -> None:
        asked = user(text("Sum it up"), {"type": "document", "source": PDF})
        with pytest.raises(
            InvalidRequestError, match=r"messages\.2\.content\.1: .*pdf can't be read here; send its text"
        ):
            translated(messages=[USER, assistant(text("yes?")), asked, *later])


class TestTools:
    def test_tools_become_functions(self) -> None:
        assert chat(tools=[TOOL, {**TOOL, "type": "custom", "strict": True}])["tools"] == [
            CHAT_TOOL,
            {"type": "function", "function": {**CHAT_TOOL["function"], "strict": True}},  # type: ignore[dict-item]
        ]

    def test_examples_of_a_tools_input_are_in_its_description(self) -> None:
        [given] = chat(tools=[{**TOOL, "input_examples": [{"a": 1}, {"a": 2}]}])["tools"]
        assert given["function"]["description"] == 'd\n\nExamples of its input:\n{"a":1}\n{"a":2}'

    @pytest.mark.parametrize(
        ("choice", "members"),
        [
            ({"type": "auto"}, {"tool_choice": "auto"}),
            ({"type": "any"}, {"tool_choice": "required"}),
            ({"type": "none"}, {"tool_choice": "none"}),
            ({"type": "tool", "name": "f"}, {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
            (
                {"type": "any", "disable_parallel_tool_use": True},
                {"tool_choice": "required", "parallel_tool_calls": False},
            ),
        ],
    )
    def test_the_choice_becomes_chats(self, choice: Any, members: dict[str, Any]) -> None:
        body = chat(tools=[TOOL], tool_choice=choice)
        assert {name: body[name] for name in members} == members
        features_of(parse(json.dumps(body).encode()), {})  # raises where the two contradict each other

    @pytest.mark.parametrize("choice", [{"type": "auto"}, {"type": "none"}])
    def test_a_choice_among_no_tools_is_left_out(self, choice: Any) -> None:
        assert "tool_choice" not in chat(tool_choice=choice)

    def test_a_hosted_tool_beside_others_is_left_out_and_named(self) -> None:
        given = translated(tools=[SEARCH, TOOL])
        assert given.dropped == ("tools.web_search_20250305",)
        assert json.loads(given.body)["tools"] == [CHAT_TOOL]

    @pytest.mark.parametrize(
        "choice", [{"type": "auto"}, {"type": "any"}, {"type": "none"}, {"type": "tool", "name": "f"}]
    )
    @pytest.mark.parametrize("hosted", [SEARCH, TOOLSET])
    def test_a_hosted_tool_that_no_choice_names_is_left_out_with_a_name_or_without(
        self, hosted: Any, choice: Any
    ) -> None:
        given = translated(tools=[hosted, TOOL], tool_choice=choice)
        assert given.dropped == (f"tools.{hosted['type']}",)
        assert json.loads(given.body)["tools"] == [CHAT_TOOL]

    @pytest.mark.parametrize(
        ("tool", "fitting", "wrong"),
        [
            ({"type": "bash_20250124", "name": "bash"}, [{"command": "ls"}, {"restart": True}], [{"command": ["ls"]}]),
            (
                {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 9},
                [
                    {"command": "view", "path": "a", "view_range": [1, -1]},
                    {"command": "insert", "path": "a", "insert_line": 0, "insert_text": "x"},
                ],
                [{"command": "undo_edit", "path": "a"}, {"command": "view"}],
            ),
            (
                {"type": "text_editor_20241022", "name": "str_replace_editor"},
                [{"command": "undo_edit", "path": "a"}],
                [{"path": "a"}],
            ),
            (
                {"type": "memory_20250818", "name": "memory"},
                [{"command": "rename", "old_path": "a", "new_path": "b"}],
                [{"command": "undo_edit", "path": "a"}],
            ),
            (
                {"type": "computer_20241022", "name": "computer", "display_width_px": 9, "display_height_px": 9},
                [{"action": "left_click", "coordinate": [1, 2]}],
                [{"action": "scroll"}],
            ),
            (
                {"type": "computer_20251124", "name": "computer", "display_width_px": 9, "display_height_px": 9,
                 "enable_zoom": True},
                [{"action": "scroll", "scroll_direction": "up", "scroll_amount": 3}, {"action": "zoom"}],
                [{"action": "fly"}, {}],
            ),
        ],
    )  # fmt: skip
    def test_a_tool_of_anthropics_that_the_client_runs_is_a_function_with_its_arguments(
        self, tool: dict[str, Any], fitting: list[Any], wrong: list[Any]
    ) -> None:
        choice = {"type": "tool", "name": tool["name"]}
        given = translated(tools=[{**tool, "cache_control": {"type": "ephemeral"}}], tool_choice=choice)
        (function,) = [each["function"] for each in json.loads(given.body)["tools"]]
        assert (function["name"], given.dropped) == (tool["name"], ())
        assert function["description"]
        judged = jsonschema_rs.validator_for(function["parameters"])
        assert [judged.is_valid(each) for each in (*fitting, *wrong)] == [True] * len(fitting) + [False] * len(wrong)

    @pytest.mark.parametrize(
        ("kind", "fields"),
        [
            ("web_search_20250305", {"tools": [SEARCH]}),
            ("web_search_20250305", {"tools": [TOOL, SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}}),
            ("browser_toolset_20260801", {"tools": [{"type": "browser_toolset_20260801"}]}),
        ],
    )
    def test_a_tool_that_is_not_run_here_alone_or_forced_is_an_error_that_names_the_way_out(
        self, kind: str, fields: Any
    ) -> None:
        with pytest.raises(InvalidRequestError, match=f"{kind}.* Offer one with an `input_schema`"):
            translated(**fields)


class TestToolChanges:
    ADDED = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {**TOOL, "name": "g"}}}  # noqa: RUF012

    @staticmethod
    def names(*changes: Any, **fields: Any) -> list[str]:
        body = chat(messages=[USER, *({"role": "system", "content": [change]} for change in changes)], **fields)
        assert body["messages"] == [USER]
        return [tool["function"]["name"] for tool in body.get("tools", ())]

    @staticmethod
    def removed(name: str) -> dict[str, Any]:
        return {"type": "tool_removal", "tool": {"type": "tool_reference", "name": name}}

    def test_tools_come_and_go_in_system_messages(self) -> None:
        again = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}}
        assert self.names(self.ADDED, tools=[TOOL]) == ["f", "g"]
        assert self.names(self.ADDED, self.removed("g"), tools=[TOOL]) == ["f"]
        assert self.names(self.removed("f"), tools=[TOOL]) == []
        assert self.names(self.removed("f"), again, tools=[TOOL]) == ["f"]

    def test_one_that_is_defined_again_is_the_later_one(self) -> None:
        other = {**TOOL, "description": "other"}
        change = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": other}}
        body = chat(messages=[USER, {"role": "system", "content": [change]}], tools=[TOOL])
        assert [tool["function"]["description"] for tool in body["tools"]] == ["other"]

    def test_a_change_of_a_tool_without_a_name_changes_no_other(self) -> None:
        added = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": TOOLSET}}
        removed = {"type": "tool_removal", "tool": {"type": "tool_reference"}}
        other = {**TOOLSET, "type": "mcp_toolset_2"}
        system = {"role": "system", "content": [added, removed]}
        given = translated(messages=[USER, system], tools=[other, TOOL, {**TOOL, "name": "None"}])
        assert given.dropped == ("tools.mcp_toolset_2", "tools.mcp_toolset")
        assert [tool["function"]["name"] for tool in json.loads(given.body)["tools"]] == ["f", "None"]

    def test_a_summary_brings_the_changes_of_what_it_stands_for(self) -> None:
        summary = {"type": "compaction", "content": "They met.", "tool_changes": [self.ADDED]}
        assert [tool["function"]["name"] for tool in chat(messages=[assistant(summary), USER])["tools"]] == ["g"]


@given(st.text(st.characters(codec="utf-8")))
def test_ids_come_back_as_the_engine_made_them(call_id: str) -> None:
    given = client_id(call_id)
    assert engine_id(given) == call_id
    assert re.fullmatch("[A-Za-z0-9_-]+", given)


@given(answers())
def test_an_answer_that_the_client_sends_back_is_the_chat_message_that_it_was(answer: ChatAnswer) -> None:
    given = translated(thinking={"type": "enabled", "budget_tokens": 1024})
    sent = json.loads(MESSAGES.encode_whole(answer.completion(), given.memo, Identity("r", "m")))
    results = [result(block["id"]) for block in sent["content"] if block["type"] == "tool_use"]
    conversation = messages(USER, assistant(*sent["content"]), user(*results, text("next")))
    original = answer.completion()["choices"][0]["message"]
    echoed = conversation[1]
    assert echoed.get("reasoning") == original.get("reasoning")
    assert echoed["content"] == (original["content"] or ("" if not answer.calls else None))
    calls = [(each["id"], each["function"]["name"]) for each in original.get("tool_calls", ())]
    assert [(each["id"], each["function"]["name"]) for each in echoed.get("tool_calls", ())] == calls
    for sent_call, call_back in zip(original.get("tool_calls", ()), echoed.get("tool_calls", ()), strict=True):
        assert json.loads(call_back["function"]["arguments"]) == json.loads(sent_call["function"]["arguments"])
    assert [message["tool_call_id"] for message in conversation[2:-1]] == [call_id for call_id, _ in calls]


KEYS = st.sampled_from(["type", "text", "content", "role", "id", "name", "input", "source", "data", "tool_use_id"])
WORDS = st.sampled_from(
    ["text", "image", "tool_use", "tool_result", "server_tool_use", "mcp_tool_result", "thinking", "document", "user",
     "assistant"]
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner | WORDS, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from(["messages", "system", "tools", "tool_choice", "thinking", "output_config", "output_format"])


@given(st.dictionaries(FIELDS, JSON))
@example({"tool_choice": {"type": []}})
def test_any_body_is_translated_or_refused(fields: dict[str, Any]) -> None:
    body = msgspec.json.encode({"model": "m", "max_tokens": 9, "messages": [USER], **fields})
    with contextlib.suppress(InvalidRequestError):
        assert isinstance(MESSAGES.decode(body), Translated)
