"""The audit log: whatever is done to its lines afterwards is found."""

import json
from pathlib import Path

import pytest

from serve.admin.audit import GENESIS, AuditEntry, AuditLog, verify
from serve.errors import ConfigError

ENTRY = AuditEntry("k1", "team", "10.0.0.1", "quarantine.lift", "m/p tools_auto", [], [{"status": "open"}], "r1", "why")


def written(folder: Path, count: int = 5, max_file_bytes: int = 16 * 2**20) -> list[Path]:
    log = AuditLog(folder, max_file_bytes)
    for _ in range(count):
        log.write(ENTRY)
    log.close()
    return sorted(folder.glob("*.jsonl"))


def test_a_line_tells_who_did_what_to_what_and_why(tmp_path: Path) -> None:
    (path,) = written(tmp_path, 1)
    line = json.loads(path.read_text())
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "key": "k1", "tenant": "team", "source": "10.0.0.1", "action": "quarantine.lift", "object": "m/p tools_auto",
        "before": [], "after": [{"status": "open"}], "request_id": "r1", "reason": "why", "previous": GENESIS,
    }  # fmt: skip


def test_an_untouched_log_is_whole_over_files_and_restarts(tmp_path: Path) -> None:
    written(tmp_path, 4, max_file_bytes=600)
    files = written(tmp_path, 3)
    checked = verify(tmp_path)
    assert len(files) > 2
    assert (checked.lines, checked.faults) == (7, ())


@pytest.mark.parametrize("line", range(4))
def test_a_changed_line_is_found(tmp_path: Path, line: int) -> None:
    (path,) = written(tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    lines[line] = lines[line].replace("why", "because")
    path.write_text("".join(lines))
    assert verify(tmp_path).faults == (
        f"{path.name}:{line + 2}: does not follow the line before it: one was changed, added or taken out",
    )


@pytest.mark.parametrize("line", range(1, 4))
def test_a_line_that_was_taken_out_is_found(tmp_path: Path, line: int) -> None:
    (path,) = written(tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:line] + lines[line + 1 :]))
    assert len(verify(tmp_path).faults) == 1


def test_the_first_lines_cannot_be_taken_out_of_the_first_file(tmp_path: Path) -> None:
    (path,) = written(tmp_path)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[2:]))
    assert "not the first line" in verify(tmp_path).faults[0]


def test_a_missing_end_is_found_by_the_hash_of_an_earlier_check(tmp_path: Path) -> None:
    (path,) = written(tmp_path)
    last = verify(tmp_path).last
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert verify(tmp_path).faults == ()
    assert "no line has the hash" in verify(tmp_path, last).faults[0]


def test_a_line_that_a_crash_cut_is_told_and_the_chain_goes_on(tmp_path: Path) -> None:
    (path,) = written(tmp_path, 2)
    path.write_bytes(path.read_bytes()[:-20])
    written(tmp_path, 2)
    assert verify(tmp_path).faults == (f"{path.name}:2: not a whole line of an audit log",)


def test_files_are_for_their_owner_only_and_one_process_writes(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    assert {path.stat().st_mode & 0o77 for path in tmp_path.glob("*.jsonl")} == {0}
    with pytest.raises(ConfigError, match="another admin API"):
        AuditLog(tmp_path)
    log.close()


def test_where_there_is_no_log_the_check_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no audit log"):
        verify(tmp_path)


def test_without_a_folder_the_newest_lines_are_kept_newest_first() -> None:
    log = AuditLog(None)
    for number in range(3):
        log.write(AuditEntry("", "", "", "refused", f"GET /{number}"))
    assert [line["object"] for line in log.recent(2)] == ["GET /2", "GET /1"]


def test_what_a_client_sends_is_cut_and_stays_on_its_line(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    log.write(AuditEntry("", "", "", "refused", "GET /\r\n" + "x" * 10_000))
    log.close()
    (path,) = tmp_path.glob("*.jsonl")
    assert path.read_bytes().count(b"\n") == 1
    assert len(json.loads(path.read_text())["object"]) == 1024


@pytest.mark.parametrize("line", [b"[" * 100_000, b"\xff\xfe", b'"previous"', b'{"previous":5}', b""])
def test_a_line_that_no_log_has_is_a_fault_and_no_crash(tmp_path: Path, line: bytes) -> None:
    (path,) = written(tmp_path, 2)
    path.write_bytes(path.read_bytes() + line + b"\n")
    assert verify(tmp_path).faults == (f"{path.name}:3: not a whole line of an audit log",)


def test_two_lines_that_changed_places_are_found(tmp_path: Path) -> None:
    (path,) = written(tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    lines[1], lines[2] = lines[2], lines[1]
    path.write_text("".join(lines))
    assert verify(tmp_path).faults


def test_a_first_file_that_was_emptied_is_found_by_the_next(tmp_path: Path) -> None:
    first, *_ = written(tmp_path, 6, max_file_bytes=600)
    first.write_bytes(b"")
    assert verify(tmp_path).faults
