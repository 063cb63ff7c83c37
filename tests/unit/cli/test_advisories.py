import json
import os
import subprocess
import sys
from pathlib import Path

from support.signer import Signer

from policies import load_advisories
from serve.cli.advisories import to_markdown
from serve.config.compiled_policy import SHIPPED_ADVISORIES, read_advisories

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "advisories.md"


def test_list_names_all(specgate):
    code, out = specgate("advisories", "list", "--json")
    assert code == 0
    assert [each["id"] for each in json.loads(out)] == [path.stem for path in sorted(SHIPPED_ADVISORIES.glob("*.yaml"))]
    assert "kimi-counting-tool-parser" in specgate("advisories", "list")[1]


def test_a_reader_that_has_gone_is_no_error_to_report():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "serve.cli", "advisories", "list", "--json"]
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_show_gives_evidence_and_cures(specgate):
    code, out = specgate("advisories", "show", "ngram-small-lookup-min")
    assert code == 0
    assert "16/30" in out
    assert "Refuted" in out
    assert json.loads(specgate("advisories", "show", "ngram-small-lookup-min", "--json")[1])["severity"] == "high"


def test_show_of_an_unknown_one_is_wrong_input(specgate):
    assert specgate("advisories", "show", "nope")[0] == 2


def test_list_fails_on_an_unreadable_one(specgate, tmp_path):
    (tmp_path / "broken.yaml").write_text("{")
    code, out = specgate("advisories", "list", "--folder", tmp_path)
    assert (code, "broken.yaml can't be read: line 1: expected" in out) == (1, True)
    assert specgate("advisories", "list", "--folder", tmp_path / "none")[0] == 2


def test_the_page_in_docs_is_current():
    assert PAGE.read_text(encoding="utf-8") == to_markdown(load_advisories(SHIPPED_ADVISORIES))


def test_the_page_begins_with_what_is_certain_and_gravest():
    headings = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("## ")]
    assert headings[0] == "## Confirmed, critical"
    assert headings.index("## Confirmed, low") < headings.index("## Suspected, critical")


def test_stale_ones_are_listed_with_the_reason(specgate):
    code, out = specgate("advisories", "list", "--stale", "--engine", "vllm==99.0", "--json")
    reasons = {each["id"]: each["why"] for each in json.loads(out)}
    assert code == 1
    assert "99.0 is in use" in reasons["kimi-counting-tool-parser"]
    assert "sglang-relaxed-penalties" not in reasons
    assert specgate("advisories", "list", "--stale", "--engine", "vllm")[0] == 2


def test_an_engine_that_no_advisory_knows_is_a_typing_error(specgate):
    code, out = specgate("advisories", "list", "--stale", "--engine", "vlm==0.40")
    assert (code, out) == (2, "specgate: --engine: no advisory was checked against 'vlm', only sglang and vllm\n")


def test_a_check_on_a_day_to_come_counts_as_none(specgate, tmp_path):
    whole = (SHIPPED_ADVISORIES / "mimo-mtp-async.yaml").read_text()
    (tmp_path / "mimo-mtp-async.yaml").write_text(whole.replace('date: "20', 'date: "21'))
    code, out = specgate("advisories", "list", "--stale", "--folder", tmp_path)
    assert (code, "a day that has not come" in " ".join(out.split())) == (1, True)


def test_none_is_stale_for_the_engine_they_were_checked_against(specgate):
    fresh = specgate("advisories", "list", "--stale", "--engine", "vllm==0.33.0", "--max-age-days", 100_000)
    assert fresh == (0, "no advisory is stale\n")


def test_list_names_a_text_that_a_comment_has_cut(specgate, tmp_path):
    whole = (SHIPPED_ADVISORIES / "ngram-gpu-with-grammar.yaml").read_text()
    (tmp_path / "ngram-gpu-with-grammar.yaml").write_text(whole.replace("vllm#49694, vllm#52620", "vllm#49694, #52620"))
    code, out = specgate("advisories", "list", "--folder", tmp_path)
    assert code == 1
    assert "quote the text" in out


def test_pack_signs_a_folder(specgate, tmp_path):
    signer = Signer(tmp_path)
    code, out = specgate("advisories", "pack", "--folder", signer.folder, "--key", signer.private, "--days", 3)
    assert (code, out.startswith("signed 2 advisories until ")) == (0, True)
    assert [each.id for each in read_advisories(signer.config, strict=True)] == [signer.first.stem, signer.second.stem]
    code, out = specgate("advisories", "pack", "--folder", tmp_path, "--key", signer.private)
    assert (code, "holds no advisories" in out) == (2, True)
