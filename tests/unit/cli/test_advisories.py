import json
from pathlib import Path

from policies import load_advisories
from serve.cli.advisories import to_markdown
from serve.live_policy import SHIPPED_ADVISORIES

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "advisories.md"


def test_list_names_all(specgate):
    code, out = specgate("advisories", "list", "--json")
    assert code == 0
    assert [each["id"] for each in json.loads(out)] == [path.stem for path in sorted(SHIPPED_ADVISORIES.glob("*.yaml"))]
    assert "kimi-counting-tool-parser" in specgate("advisories", "list")[1]


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
    assert specgate("advisories", "list", "--folder", tmp_path)[0] == 1
    assert specgate("advisories", "list", "--folder", tmp_path / "none")[0] == 2


def test_the_page_in_docs_is_current():
    assert PAGE.read_text(encoding="utf-8") == to_markdown(load_advisories(SHIPPED_ADVISORIES))
