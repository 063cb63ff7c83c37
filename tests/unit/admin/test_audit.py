"""The audit log: whatever is done to its lines afterwards is found."""

import json
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from support.clock import ManualClock
from support.disks import full_disk

from serve.admin.audit import GENESIS, AuditEntry, AuditLog, ChainCheck, Refusals, verify
from serve.errors import ConfigError, StorageError

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
    with pytest.raises(ConfigError, match=r"no audit log in .*`admin.audit_dir` names a folder"):
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


@pytest.mark.parametrize("room_bytes", [0, 1, 100, 299])
def test_a_line_that_finds_no_room_is_refused_and_the_chain_stays_whole(tmp_path: Path, room_bytes: int) -> None:
    folder, key = tmp_path / "audit", tmp_path / "audit.key"
    log = AuditLog(folder, key_file=key)
    log.write(ENTRY)
    (path,) = folder.glob("*.jsonl")
    with full_disk(after=path, room_bytes=room_bytes):
        for _ in range(3):
            with pytest.raises(StorageError, match=r"Nothing was changed.*Make room"):
                log.write(ENTRY)
    before = log.last
    log.write(ENTRY)
    log.close()
    assert [line["object"] for line in log.recent(9)] == [ENTRY.object] * 2
    assert verify(folder, before, key_file=key) == ChainCheck(2, log.last, (), True)


def test_a_folder_that_cannot_be_used_at_first_is_used_once_it_can(tmp_path: Path) -> None:
    place = tmp_path / "audit"
    place.write_text("a file in the folder's place")
    log = AuditLog(place)
    with pytest.raises(StorageError, match="audit"):
        log.write(ENTRY)
    place.unlink()
    log.write(ENTRY)
    log.close()
    assert verify(place).lines == 1


ODD = ["audit-foo.jsonl", "audit-.jsonl", "audit-1.jsonl", "audit-000001.jsonl.gz", "audit-¹²³⁴⁵⁶.jsonl", "x"]
LATER = ["audit-000007.jsonl", "audit-999999999999999999.jsonl"]


@pytest.mark.parametrize("name", [*ODD, *LATER, "audit.lock"])
@pytest.mark.parametrize("kind", ["file", "folder", "fifo", "lost"])
def test_odd_files_in_its_folder_keep_nobody_from_writing(tmp_path: Path, name: str, kind: str) -> None:
    written(tmp_path, 2)
    (tmp_path / name).unlink(missing_ok=True)
    made = {
        "file": Path.touch,
        "folder": Path.mkdir,
        "fifo": os.mkfifo,
        "lost": lambda path: path.symlink_to("/nowhere/x"),
    }
    made[kind](tmp_path / name)
    log = AuditLog(tmp_path)
    if name == "audit.lock" and kind != "file":
        with pytest.raises(StorageError, match="audit log"):
            log.write(ENTRY)
    else:
        log.write(ENTRY)
        checked = verify(tmp_path)
        assert checked.faults == ((f"{name}: not a file",) if name in LATER and kind != "file" else ())
        assert checked.lines == 3
    log.close()


@pytest.fixture
def sealed(tmp_path: Path) -> tuple[Path, Path]:
    """Returns the folder of a sealed log of three files, and its key."""
    folder, key = tmp_path / "audit", tmp_path / "audit.key"
    for _ in range(3):
        log = AuditLog(folder, key_file=key)
        for _ in range(3):
            log.write(ENTRY)
        log.close()
    return folder, key


def test_a_sealed_log_is_whole_and_its_key_is_its_owners(sealed: tuple[Path, Path]) -> None:
    folder, key = sealed
    assert verify(folder, key_file=key).faults == ()
    assert verify(folder) == ChainCheck(9, verify(folder, key_file=key).last, (), True)
    assert {path.stat().st_mode & 0o77 for path in (*folder.iterdir(), key, key.with_name("audit.key.head"))} == {0}


def forged(folder: Path) -> None:
    """Writes all lines anew, as whoever can write in the folder may."""
    for path in sorted(folder.glob("*.jsonl"))[1:]:
        path.unlink()
    (path,) = folder.glob("*.jsonl")
    lines, last = [], GENESIS
    for line in map(json.loads, path.read_text().splitlines()):
        line = {**line, "reason": "another", "previous": last}
        lines.append(json.dumps(line, separators=(",", ":")))
        last = sha256(lines[-1].encode()).hexdigest()
    path.write_text("".join(f"{line}\n" for line in lines))


def unsealed(folder: Path) -> None:
    forged(folder)
    (path,) = folder.glob("*.jsonl")
    lines, last = [], GENESIS
    for line in map(json.loads, path.read_text().splitlines()):
        line = {name: value for name, value in line.items() if name != "seal"} | {"previous": last}
        lines.append(json.dumps(line, separators=(",", ":")))
        last = sha256(lines[-1].encode()).hexdigest()
    path.write_text("".join(f"{line}\n" for line in lines))


def tail_cut(folder: Path) -> None:
    path = max(folder.glob("*.jsonl"))
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def last_file_gone(folder: Path) -> None:
    max(folder.glob("*.jsonl")).unlink()


def head_cut_and_renamed(folder: Path) -> None:
    path = min(folder.glob("*.jsonl"))
    path.unlink()


def head_of_a_file_cut(folder: Path) -> None:
    first, second, *_ = sorted(folder.glob("*.jsonl"))
    first.unlink()
    second.write_text("".join(second.read_text().splitlines(keepends=True)[1:]))


TAMPERED = [forged, unsealed, tail_cut, last_file_gone, head_cut_and_renamed, head_of_a_file_cut]


@pytest.mark.parametrize("tamper", TAMPERED)
def test_without_an_earlier_hash_the_key_finds_what_was_done(
    sealed: tuple[Path, Path], tamper: Callable[[Path], None]
) -> None:
    folder, key = sealed
    tamper(folder)
    assert verify(folder, key_file=key).faults


@pytest.mark.parametrize("tamper", TAMPERED)
def test_what_was_done_before_a_restart_is_found_after_it(
    sealed: tuple[Path, Path], tamper: Callable[[Path], None]
) -> None:
    folder, key = sealed
    tamper(folder)
    log = AuditLog(folder, key_file=key)
    log.write(ENTRY)
    log.close()
    assert verify(folder, key_file=key).faults


def test_files_that_were_put_elsewhere_are_named_by_the_hash_of_their_last_line(sealed: tuple[Path, Path]) -> None:
    folder, key = sealed
    first = min(folder.glob("*.jsonl"))
    last = verify(first).last
    first.unlink()
    assert "not the first line" in verify(folder, key_file=key).faults[0]
    assert verify(folder, key_file=key, follows=last).faults == ()


def test_a_log_that_was_begun_without_a_key_goes_on_with_one(tmp_path: Path) -> None:
    folder, key = tmp_path / "audit", tmp_path / "keys" / "audit.key"
    written(folder, 3)
    for count in (0, 2):
        log = AuditLog(folder, key_file=key)
        for _ in range(count):
            log.write(ENTRY)
        log.close()
        assert verify(folder, key_file=key).faults == ()


def without(key: Path) -> Path:
    key.unlink()
    return key


@pytest.mark.parametrize("name", ["audit.key", "audit.key.head"])
@pytest.mark.parametrize("kind", ["folder", "fifo", "text"])
def test_what_is_no_key_keeps_changes_from_happening_and_is_named(tmp_path: Path, name: str, kind: str) -> None:
    log = AuditLog(tmp_path / "audit", key_file=tmp_path / "audit.key")
    log.close()
    path = without(tmp_path / name)
    made = {"folder": Path.mkdir, "fifo": os.mkfifo, "text": lambda path: path.write_text("nonsense")}
    made[kind](path)
    log = AuditLog(tmp_path / "audit", key_file=tmp_path / "audit.key")
    if (name, kind) == ("audit.key.head", "text"):
        log.write(ENTRY)  # as if no line had been written yet
    else:
        with pytest.raises(StorageError, match=str(path)):
            log.write(ENTRY)
    log.close()


def test_a_sealed_log_goes_on_with_its_own_key_alone(sealed: tuple[Path, Path]) -> None:
    folder, key = sealed
    for log, says in [
        (AuditLog(folder), r"is sealed: set `admin\.audit_key_file`"),
        (AuditLog(folder, key_file=without(key)), f"gone from {key}: put it back"),
    ]:
        with pytest.raises(StorageError, match=says):
            log.write(ENTRY)
        log.close()
    with pytest.raises(ConfigError, match="no key of the audit log"):
        verify(folder, key_file=key)


def test_a_line_whose_head_was_not_noted_any_more_is_no_fault(sealed: tuple[Path, Path]) -> None:
    folder, key = sealed
    head = key.with_name("audit.key.head")
    before = head.read_bytes()
    log = AuditLog(folder, key_file=key)
    log.write(ENTRY)
    log.close()
    head.write_bytes(before)  # as if the power had failed between the two
    assert verify(folder, key_file=key).faults == ()


def test_a_log_that_cannot_be_written_is_known_before_a_change_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    log = AuditLog(folder)
    assert not log.failing
    folder.rename(tmp_path / "away")
    assert log.failing
    (tmp_path / "away").rename(folder)
    assert not log.failing
    with full_disk(after=next(folder.glob("*.jsonl"))):
        assert log.failing
    assert not log.failing
    log.write(ENTRY)
    log.close()
    assert verify(folder).lines == 1
    assert sorted(path.suffix for path in folder.iterdir()) == [".jsonl", ".lock"]


def test_a_folder_that_comes_later_is_taken(tmp_path: Path) -> None:
    (tmp_path / "audit").write_text("")
    log = AuditLog(tmp_path / "audit")
    assert log.failing
    (tmp_path / "audit").unlink()
    assert not log.failing
    log.write(ENTRY)
    log.close()


def moved(path: Path) -> None:
    path.rename(path.with_suffix(".jsonl.1"))


def copied_and_cut(path: Path) -> None:
    path.with_suffix(".jsonl.1").write_bytes(path.read_bytes())
    os.truncate(path, 0)


def replaced(path: Path) -> None:
    moved(path)
    path.touch()


def lengthened(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"{}\n")


@pytest.mark.parametrize("change", [Path.unlink, moved, copied_and_cut, replaced, lengthened])
def test_what_is_done_to_the_file_under_a_process_loses_no_later_line(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    log = AuditLog(tmp_path)
    log.write(ENTRY)
    change(tmp_path / "audit-000001.jsonl")
    for _ in range(2):
        log.write(ENTRY)
    log.close()
    later = verify(tmp_path / "audit-000002.jsonl")
    assert (later.lines, later.faults) == (2, ())


def call(source: str = "10.0.0.1", key: str = "") -> AuditEntry:
    return AuditEntry(key, "team" if key else "", source, "refused", "GET /admin/v1/keys", reason="invalid_api_key")


def test_a_few_calls_have_lines_of_their_own() -> None:
    log = AuditLog(None)
    refusals = Refusals(log, ManualClock())
    for _ in range(5):
        refusals.write(call())
    refusals.tell()
    assert len(log.recent(99)) == 5


@pytest.mark.parametrize("key", ["", "k1"])
def test_a_flood_of_one_caller_is_a_few_lines_and_a_number(key: str) -> None:
    log, clock = AuditLog(None), ManualClock()
    refusals = Refusals(log, clock)
    for _ in range(60):
        for _ in range(1000):
            refusals.write(call(key=key))
        clock.now_s += 1.0
    refusals.write(call("10.0.0.2"))
    refusals.tell()
    newest, other, *lines = log.recent(999)
    assert (other["source"], len(lines)) == ("10.0.0.2", 31)
    assert newest["object"] == "59969 more calls of 1 callers, 59969 of them of this one"
    assert newest["key"] == key


def test_a_flood_from_ever_new_addresses_is_bounded_too() -> None:
    log, clock = AuditLog(None), ManualClock()
    refusals = Refusals(log, clock)
    for number in range(20_000):
        refusals.write(call(f"2001:db8::{number:x}"))
    refusals.tell()
    newest, *lines = log.recent(999)
    assert len(lines) == 200
    assert newest["object"].startswith("19800 more calls of ")
    clock.now_s += 100.0
    refusals.write(call())
    assert log.recent(1)[0]["source"] == "10.0.0.1", "there is room again"


def test_what_cannot_be_written_is_counted_until_it_can(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    refusals = Refusals(log, ManualClock())
    with full_disk(after=tmp_path / "audit-000001.jsonl"):
        for _ in range(30):
            refusals.write(call())
        refusals.tell()
    refusals.tell()
    log.close()
    (line,) = log.recent(9)
    assert line["object"] == "30 more calls of 1 callers, 30 of them of this one"
