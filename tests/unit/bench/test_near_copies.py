"""What `bench.near_copies` plants and what it takes for right."""

import random
import subprocess
from collections.abc import Callable
from cProfile import Profile
from pathlib import Path

import pytest

from bench.drafted_slips import Vocabulary, found_shares, named, slips
from bench.near_copies import KINDS, PATHS, ROOT, SLIPS, costs_us, edits, found_share, listing, reads, suspects


@pytest.mark.parametrize("slip", SLIPS.values(), ids=SLIPS)
def test_a_slip_changes_a_name_that_can_have_it(slip: Callable[[str, random.Random], str]) -> None:
    chance = random.Random(3)
    name = "src/a_parts/b-list_7/Main_3-0042-7f3a.py"
    assert all(slip(name, chance) != name for _ in range(20))


@pytest.mark.parametrize("slip", ["one character", "two swapped", "one token", "two characters"])
@pytest.mark.parametrize("kind", ["path", "UUID", "call id", "ticket"])
def test_most_slips_are_found(kind: str, slip: str) -> None:
    assert (found_share(kind, slip, 200) or 0) >= 0.9


@pytest.mark.parametrize(("label", "path"), PATHS.items(), ids=PATHS)
def test_paths_whose_cost_is_measured_are_what_their_label_says(label: str, path: str) -> None:
    prompt = listing(100_000)
    assert (path in prompt) == (label == "as written")
    assert suspects(prompt, {"path": path}) == label.startswith("nearly")


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_looking_up_a_path_takes_few_calls_of_functions(path: str) -> None:
    """What is counted is the same on every machine: a call takes about 0.15 us, and 67 us are 5 % of an answer."""
    prompt = listing(100_000)
    suspects(prompt, {"path": path})  # so that its patterns are compiled
    with Profile(builtins=True) as profile:
        suspects(prompt, {"path": path})
    assert sum(entry.callcount for entry in profile.getstats()) < 440


def test_what_lookups_cost_is_told_for_every_near_copy() -> None:
    costs = costs_us(["UUID"], 2)
    assert {kind for kind, _ in costs} == {"UUID"}
    assert set(SLIPS) - {slip for _, slip in costs} == {"lost folder", "other stroke"}
    assert all(0 < cost_us < 1e6 for cost_us in costs.values())


@pytest.mark.parametrize("slip", ["one character", "lookalike", "other sign"])
@pytest.mark.parametrize("kind", KINDS)
def test_looking_up_a_near_copy_of_any_kind_takes_few_calls_of_functions(kind: str, slip: str) -> None:
    chance = random.Random(5)
    name = KINDS[kind](chance)
    prompt, wrong = f"{listing(100_000)}\nNow use {name}, please.", SLIPS[slip](name, chance)
    suspects(prompt, {"path": wrong})
    with Profile(builtins=True) as profile:
        suspects(prompt, {"path": wrong})
    assert sum(entry.callcount for entry in profile.getstats()) < 480


def test_names_that_cannot_have_a_slip_have_no_share() -> None:
    assert found_share("UUID", "lost folder", 5) is None
    assert (found_share("URL", "lost folder", 20) or 0) >= 0.9
    assert set(KINDS) >= {"path", "URL"}


def test_edits_are_the_commits_of_any_repository(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run(["git", "-C", tmp_path, *who, *arguments], check=True, capture_output=True)

    git("init", "-q")
    for text in ("one\ntwo\n", "one\nthree 9f2c41ab77d0e412\n"):
        (tmp_path / "a.txt").write_text(text)
        git("add", "a.txt")
        git("commit", "-q", "-m", "see 9f2c41ab77d0e413")
    found = [*edits(tmp_path, 5)]
    assert [sorted(call) for _, call in found] == [
        ["new_string", "old_string", "path"],
        ["line", "path"],
        ["content", "path"],
    ]
    assert not any(suspects(*each) for each in found)
    assert [call for _, call in reads(tmp_path, 5)] == [{"path": "a.txt"}]


def test_slips_of_drafters_change_tokens_or_signs_of_a_name_and_are_found_as_far_as_they_look_unmeant() -> None:
    path = "serve/guard/core/near_copies.py"
    call = (f"Read {path}, please.", {"path": path})
    vocabulary, (name,) = Vocabulary(ROOT / "models" / "tiny-kimi"), named([call, call], 5)
    made = dict(slips(name.name, vocabulary, random.Random(1)))
    assert name.name == path
    assert "".join(vocabulary.cut(path)) == path
    assert all(wrong != path for kind, wrong in made.items() if kind not in ("a word in other case", "another one"))
    found = found_shares([name], vocabulary)
    assert found["a hidden character"] == found["a wide character"] == (1, 1)
