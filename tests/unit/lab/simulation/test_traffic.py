"""Traffic files: what they may hold, and what is refused with its line."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lab.simulation.request import ACCEPTANCE
from lab.simulation.traffic import Traffic, lines_of, read_traffic
from serve.errors import ConfigError

LINE: dict[str, Any] = {"t_s": 0.5, "session": "s", "class": "tools", "prompt_tokens": 1200, "output_tokens": 150}


def read(*lines: Any) -> Traffic:
    return read_traffic([json.dumps(line).encode() for line in lines])


def test_a_line_is_a_request_whose_prefix_is_shared_and_whose_conversation_grows() -> None:
    first, second = read(
        LINE | {"prefix": ["sys", 800]}, LINE | {"prefix": ["sys", 800], "prompt_tokens": 1600}
    ).requests
    assert [part.tokens for part in first.prompt] == [800, 400]
    assert first.prompt[0] == second.prompt[0]
    assert first.answer == (second.prompt[1].key, 550)


def test_the_first_line_may_say_what_drafters_accept_and_when_that_changes() -> None:
    header = {"acceptance": {"prose": [0.5]}, "acceptance_at": [[10, {"prose": [0.0], "tools": [1.0]}]]}
    drafter = read(header, LINE).drafter
    assert drafter.length("prose", 2, 0.0) == 1 + 0.5 + 0.25
    assert drafter.length("prose", 2, 10.0) == 1.0
    assert drafter.length("tools", 3, 11.0) == 4.0
    assert drafter.length("tools", 1, 0.0) == 1 + ACCEPTANCE["tools"][0]
    assert drafter.length("tools", 0, 0.0) == 1.0


def test_requests_without_a_session_share_nothing() -> None:
    one = {key: value for key, value in LINE.items() if key != "session"}
    first, second = read(one, one).requests
    assert first.session != second.session


@pytest.mark.parametrize("session", [None, 7, "7"])
def test_a_session_may_be_a_number_and_optional_fields_may_be_null(session: Any) -> None:
    first, second = read(LINE | {"session": session, "prefix": None}, LINE | {"session": session}).requests
    assert (first.session == second.session) == (session is not None)
    assert first.prefix == ("", 0)


def test_a_byte_order_mark_and_other_ends_of_lines_are_no_part_of_the_traffic() -> None:
    line = json.dumps(LINE).encode()
    assert len(read_traffic([b"\xef\xbb\xbf" + line + b"\r\n", b"\r\n", line]).requests) == 2


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ([LINE | {"class": "poetry"}], "line 1"),
        ([LINE | {"output_tokens": 0}], "line 1"),
        ([LINE | {"t_s": -1}], "line 1"),
        ([LINE, LINE | {"t_s": 0.1}], "line 2"),
        ([{"acceptance": {"tools": [1.5]}}, LINE], "line 1"),
        ([{"acceptance": {"poetry": [0.5]}}, LINE], "line 1"),
        ([{"acceptance": {"tools": []}}, LINE], "line 1"),
        ([[1]], "line 1"),
        ([LINE, {"acceptance": {"tools": [0.5]}}], "line 2 .* only the first line"),
        ([{"t_s": 1.0}], "line 1 .*`prompt_tokens`"),
        ([LINE, LINE | {"t_s": 0.1}], "sort the lines"),
        ([], "no request"),
    ],
)
def test_what_is_no_traffic_is_refused_with_its_line(lines: Sequence[Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        read(*lines)


SESSION: dict[str, Any] = {
    "id": "a",
    "block_size": 64,
    "requests": [
        {"t": 0.0, "in": 1000, "out": 10, "hash_runs": [[1, 15]]},
        {"t": 30.0, "requests": [{"t": 10.0, "in": 500, "out": 0, "hash_runs": [[90, 7]]}]},
        {"t": 60.0, "in": 2000, "out": 20, "hash_runs": [[1, 10], [40, 21]]},
    ],
}


def test_a_line_may_be_a_recorded_session_whose_prompts_share_what_was_shared() -> None:
    begin, sub_agent, end = read_traffic([json.dumps(SESSION).encode(), b""], speed=2.0).requests
    assert [sub_agent.at_s - begin.at_s, end.at_s - begin.at_s] == [20.0, 30.0]
    assert [sum(part.tokens for part in one.prompt) for one in (begin, sub_agent, end)] == [1000, 500, 2000]
    assert [one.output_tokens for one in (begin, sub_agent, end)] == [10, 1, 20]
    shared = {part.key for part in begin.prompt} & {part.key for part in end.prompt}
    assert shared == {begin.prompt[0].key}
    assert not {part.key for part in begin.prompt} & {part.key for part in sub_agent.prompt}


def test_a_file_of_sessions_may_be_compressed(tmp_path: Path) -> None:
    path = tmp_path / "sessions.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(SESSION).encode()))
    assert len(read_traffic(lines_of(path)).requests) == 3
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(ConfigError, match="can't be read"):
        lines_of(path)


@pytest.mark.parametrize("line", [{"id": "a", "requests": [{"t": -1.0}]}, {"id": "a", "requests": []}])
def test_a_session_that_is_none_is_refused(line: Any) -> None:
    with pytest.raises(ConfigError, match="session"):
        read(line)
