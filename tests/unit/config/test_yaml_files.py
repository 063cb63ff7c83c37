"""Files that extend one another."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.config.yaml_files import overlay, read
from serve.errors import ConfigError

SCALARS = st.one_of(st.booleans(), st.integers(), st.text(max_size=3))
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
)


def test_mappings_merge_and_everything_else_is_replaced() -> None:
    base = {"http": {"host": "a", "port": 1}, "ips": [1, 2], "kept": True}
    layer = {"http": {"port": 2}, "ips": [3], "new": 4}
    assert overlay(base, layer) == {"http": {"host": "a", "port": 2}, "ips": [3], "kept": True, "new": 4}


def test_null_removes_what_the_base_has_at_any_depth() -> None:
    assert overlay({"docker": {"image": "x"}, "a": {"b": 1, "c": 2}}, {"docker": None, "a": {"b": None}}) == {
        "a": {"c": 2}
    }


def test_lists_of_named_items_merge_by_name() -> None:
    base = {"applications": [{"name": "specgate", "import_path": "serve.app:build", "args": {"replicas": 1}}]}
    layer = {"applications": [{"name": "specgate", "args": {"replicas": 4}}]}
    assert overlay(base, layer)["applications"] == [
        {"name": "specgate", "import_path": "serve.app:build", "args": {"replicas": 4}}
    ]


@pytest.mark.parametrize("base", [["10.0.0.1"], [{"name": "x"}]])
def test_an_empty_list_empties(base: list[object]) -> None:
    assert overlay({"a": base}, {"a": []}) == {"a": []}


@given(DOCUMENTS)
def test_a_document_over_itself_or_over_nothing_is_itself(document: object) -> None:
    assert overlay(document, document) == document
    assert overlay(None, document) == document


@given(st.dictionaries(st.text(max_size=2), DOCUMENTS, max_size=3))
def test_an_empty_layer_changes_nothing(document: dict[str, object]) -> None:
    assert overlay(document, {}) == document


def test_a_file_extends_another_relative_to_itself(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "base.yaml").write_text("a: {b: 1, c: 2}\n")
    (tmp_path / "deep" / "middle.yaml").write_text("extends: ../base.yaml\na: {b: 3}\n")
    (tmp_path / "deep" / "top.yaml").write_text("extends: middle.yaml\nd: 4\n")
    assert read(tmp_path / "deep" / "top.yaml") == {"a": {"b": 3, "c": 2}, "d": 4}


def test_a_key_beside_a_merged_one_is_no_second_key(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: &a {b: 1, c: 2}\nd: &d {<<: *a, b: 3}\ne: {<<: *d, c: 4}\n")
    assert read(tmp_path / "a.yaml")["e"] == {"b": 3, "c": 4}


def test_a_version_is_what_is_written(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("version: 2.10\nfacts: {engine_version: 0.20}\nshare: 0.20\n")
    assert read(tmp_path / "a.yaml") == {"version": "2.10", "facts": {"engine_version": "0.20"}, "share": 0.2}


@pytest.mark.parametrize("name", ["no", "on", "1.5", "0x10", "2024-01-01", "1_000", "~", "null"])
def test_a_key_is_what_is_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.yaml").write_text(f"models: {{{name}: 1}}\n")
    assert read(tmp_path / "a.yaml") == {"models": {name: 1}}


def test_a_circle_is_told_with_its_way(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    with pytest.raises(ConfigError, match=r"extends itself, by way of .*b\.yaml"):
        read(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n", "holds no mapping"),
        ("a: [\n", "is not YAML"),
        ("a:\n\tb: 1\n", "with spaces, not with tabs"),
        ("a:\n  b: 1\n  c: 2\n  b: 3\n", r"the key 'b' stands twice\n.*line 4"),
        ("a: {1: x, '1': y}\n", "the key '1' stands twice"),
        pytest.param("a: " + "[" * 5000, "is not YAML: it is nested too deeply", id="deep"),
        ("url: {{ .Values.url }}\n", "render it first"),
        ("a: 1\n---\nb: 2\n", "one document"),
        ("a: !env NAME\n", "variables are not filled in"),
        ("extends: [x, y]\n", "the path of one file"),
        ("extends: nowhere.yaml\n", r"nowhere\.yaml can't be read"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read(tmp_path / "a.yaml")


def test_bytes_that_are_no_text_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read(tmp_path / "a.yaml")


def test_links_in_a_circle_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").symlink_to(tmp_path / "b.yaml")
    (tmp_path / "b.yaml").symlink_to(tmp_path / "a.yaml")
    with pytest.raises(ConfigError, match=r"a\.yaml can't be read"):
        read(tmp_path / "a.yaml")
