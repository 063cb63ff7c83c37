"""The corpus of public hazards, and what the shipped advisories make of it."""

from dataclasses import replace
from pathlib import Path

import pytest

import policies
from lab.recall.corpus import drafted, load, recall, request_of
from policies import load_advisories
from policies.classes import masks_of
from policies.freshness import newest_checked

SHIPPED = load_advisories(Path(policies.__file__).parent / "advisories")
HAZARDS, SOUND = load("hazards.yaml"), load("sound.yaml")


def test_nineteen_of_twenty_public_hazards_are_not_drafted_into_and_no_sound_configuration_is_banned():
    found = recall(SHIPPED)
    assert found.holds, (found.banned, found.missed)
    assert found.hazards >= 355
    assert found.sound >= 109
    assert set(found.missed) == {entry.id for entry in HAZARDS if entry.reason}
    one = dict.fromkeys(["one"], ("plain",))
    assert not found._replace(banned=one).holds
    assert not found._replace(hazards=10, missed=one).holds


@pytest.mark.parametrize("entries", [HAZARDS, SOUND], ids=["hazards", "sound"])
def test_every_entry_has_a_name_of_its_own_and_requests_that_are_classes(entries):
    assert len({entry.id for entry in entries}) == len(entries)
    for entry in entries:
        assert entry.requests
        for classes in entry.requests:
            assert any(mask & request_of(classes).mask == mask for mask in masks_of(classes)), (entry.id, classes)


def test_every_hazard_says_where_to_read_of_it_and_speculates():
    for entry in HAZARDS:
        assert entry.source, entry.id
        assert entry.pools[0].speculative
        assert not entry.pools[1].speculative


def test_nothing_is_found_without_advisories_nor_by_facts_that_nobody_knows():
    harmless = tuple(replace(each, affects=({"engine": "another"},)) for each in SHIPPED)
    for entry in HAZARDS:
        if entry.pools[0].engine in newest_checked(harmless):  # another is held by not being known
            assert drafted(entry, harmless) == entry.requests, entry.id
    known = ("engine_version", "hybrid", "prefix_caching", "async_scheduling", "tool_parser", "num_speculative_tokens")
    assert all(getattr(entry.pools[0], name) is not None for entry in HAZARDS for name in known)
