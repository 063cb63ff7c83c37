"""An engine that was restarted, or is another one, is not used before it has been asked, and is what it then tells."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.discovery.identity import AGAIN_S, ASK_PERIOD_S, PERIOD_S, EngineIdentity, agreed
from serve.discovery.reading import EngineMetrics, Finding, Findings

STATED = {"engine": "vllm", "engine_version": "0.32.0", "method": "none", "tool_parser": "hermes"}


def metrics(
    started: float | None = 1.0, drafts: bool | None = False, length: int | None = None, **cache: str
) -> EngineMetrics:
    return EngineMetrics(frozenset() if started is None else frozenset({started}), drafts, length, cache)


def told(drafts: bool = False, **facts: Any) -> Findings:
    method = {} if drafts else {"method": "none"}
    all_facts = {"engine": "vllm", "engine_version": "0.32.0", "speculates": drafts, **method, **facts}
    return {name: Finding(value, "test", "certain") for name, value in all_facts.items()}


def asked(identity: EngineIdentity, seen: EngineMetrics, findings: Findings, now_s: float = 0.0) -> None:
    assert identity.must_be_asked(seen, now_s)
    identity.learn(seen, findings)


def known_engine(stated: dict[str, Any] = STATED) -> EngineIdentity:
    identity = EngineIdentity(stated)
    asked(identity, metrics(), told())
    return identity


def test_an_engine_that_is_what_is_stated_is_asked_once() -> None:
    identity = known_engine()
    assert (identity.facts, identity.told) == (STATED, "")
    assert not identity.must_be_asked(metrics(), 1e9)


def test_a_statement_that_nothing_is_drafted_falls_when_counters_of_drafts_are_there() -> None:
    identity = EngineIdentity(STATED)
    asked(identity, metrics(drafts=True), told(drafts=True))
    assert identity.facts == {**STATED, "method": "unknown"}
    assert identity.told


def test_an_engine_is_fresh_when_another_process_answers() -> None:
    identity = EngineIdentity(STATED)
    asked(identity, metrics(), told())
    assert not identity.is_fresh  # nobody knows of one before it
    identity.gone()
    asked(identity, metrics(), told())
    assert not identity.is_fresh  # the network was away
    asked(identity, metrics(started=2.0), told())
    assert identity.is_fresh  # seen or not, it was restarted
    identity.must_be_asked(metrics(started=2.0), 0.0)
    assert not identity.is_fresh


def test_an_engine_that_does_not_tell_its_start_is_fresh_when_it_was_away() -> None:
    identity = EngineIdentity(STATED)
    asked(identity, metrics(started=None), {})
    asked(identity, metrics(started=None), {}, ASK_PERIOD_S)
    assert not identity.is_fresh
    identity.gone()
    identity.must_be_asked(metrics(started=None), ASK_PERIOD_S)
    assert identity.is_fresh


def test_a_restart_makes_an_engine_unusable_until_it_has_told_that_it_is_the_same() -> None:
    identity = known_engine()
    again = metrics(started=2.0)
    assert identity.must_be_asked(again, 0.0)
    assert identity.facts is None
    identity.learn(again, told())
    assert identity.facts == STATED
    assert "is what it was before" in identity.told


def test_an_engine_that_comes_back_with_a_drafter_is_nothing_but_what_it_tells() -> None:
    identity = known_engine()
    identity.gone()
    assert identity.facts is None
    asked(identity, metrics(started=2.0, drafts=True, length=5), told(drafts=True))
    assert identity.facts == {"engine": "vllm", "engine_version": "0.32.0", "method": "unknown"}


def test_an_engine_that_comes_back_and_tells_nothing_is_unknown() -> None:
    identity = known_engine()
    asked(identity, metrics(started=2.0, drafts=None), {})
    assert identity.facts == {"method": "unknown"}


def test_an_engine_that_tells_nothing_for_a_while_is_what_it_was_once_it_tells_again() -> None:
    """As while its key is a new one that the gateway does not have yet."""
    identity, again = known_engine(), metrics(started=2.0)
    asked(identity, again, {})
    assert not identity.must_be_asked(again, ASK_PERIOD_S - 1)
    asked(identity, again, {}, ASK_PERIOD_S)
    identity.did_not_answer()
    asked(identity, again, told(), ASK_PERIOD_S + 1)
    assert identity.facts == STATED
    assert not identity.must_be_asked(again, 10 * ASK_PERIOD_S)


def test_an_engine_that_was_down_from_the_start_is_believed_when_it_comes() -> None:
    identity = EngineIdentity(STATED)
    identity.gone()
    asked(identity, metrics(), told())
    assert identity.facts == STATED


def test_answers_of_another_process_behind_the_same_url_prove_nothing() -> None:
    identity = known_engine()
    assert identity.must_be_asked(metrics(started=2.0), 0.0)
    identity.learn(metrics(started=3.0), told())
    assert identity.facts == {"method": "unknown"}


@pytest.mark.parametrize("drafts", [None, False])
def test_an_engine_that_does_not_tell_its_start_is_asked_again_and_used_meanwhile(drafts: bool | None) -> None:
    unseen = metrics(started=None, drafts=drafts)
    identity = EngineIdentity(STATED)
    for look in range(3):
        asked(identity, unseen, told(), look * ASK_PERIOD_S)
        assert identity.facts == STATED
        assert not identity.must_be_asked(unseen, look * ASK_PERIOD_S + PERIOD_S)
        assert identity.facts == STATED
    happened = []
    for look in (3, 4):
        asked(identity, unseen, told(engine_version="0.33.0"), look * ASK_PERIOD_S)
        assert identity.facts == {**STATED, "engine_version": "0.33.0"}
        happened.append(bool(identity.told))
    assert happened == [True, False], "it is told once"
    asked(identity, unseen, told(), 5 * ASK_PERIOD_S)
    assert identity.facts == STATED


def test_an_engine_that_did_not_answer_a_request_is_asked_at_once_unless_its_metrics_show_a_restart() -> None:
    unseen = metrics(started=None)
    hidden, open_one = EngineIdentity(STATED), known_engine()
    asked(hidden, unseen, told())
    for identity in (hidden, open_one):
        identity.did_not_answer()
    assert hidden.must_be_asked(unseen, 0.1)
    assert not open_one.must_be_asked(metrics(), 0.1)


def test_engines_of_one_url_that_tell_no_start_prove_nothing_against_one_another() -> None:
    one, other = metrics(started=None, blocks="1"), metrics(started=None, blocks="2")
    identity = EngineIdentity(STATED)
    asked(identity, one, told())
    asked(identity, other, told())
    assert identity.must_be_asked(one, ASK_PERIOD_S)
    identity.learn(other, told())
    assert (identity.facts, identity.told) == (STATED, "")
    assert identity.must_be_asked(one, ASK_PERIOD_S + PERIOD_S), "it has still not been heard"


def test_an_engine_is_looked_at_often_as_long_as_that_may_show_something() -> None:
    silent, telling, away = EngineIdentity(STATED), known_engine(), known_engine()
    asked(silent, metrics(started=None, drafts=None), told())
    away.gone()
    assert [each.look_again_s for each in (silent, telling, away)] == [ASK_PERIOD_S, PERIOD_S, AGAIN_S]


def test_another_version_than_stated_is_taken_from_the_engine() -> None:
    identity = EngineIdentity({**STATED, "engine_version": "0.19.1"})
    asked(identity, metrics(), told())
    assert identity.facts == STATED


def test_a_build_of_the_version_that_is_stated_is_no_other_engine() -> None:
    one, other = EngineIdentity(STATED), EngineIdentity(STATED)
    asked(one, metrics(), told())
    asked(other, metrics(), told(engine_version="0.32.0+cu129"))
    assert agreed({"a": one, "b": other}, STATED) == (["a", "b"], STATED)


@pytest.mark.parametrize("method", ["qwen3_next_mtp", "MTP"])
def test_a_method_of_another_name_is_no_other(method: str) -> None:
    stated = {**STATED, "method": method}
    identity = EngineIdentity(stated)
    asked(identity, metrics(drafts=True), told(drafts=True, method="mtp"))
    assert (identity.facts, identity.told) == (stated, "")


def test_a_stated_drafter_is_believed_although_no_drafts_are_counted() -> None:
    stated = {**STATED, "method": "eagle3"}
    assert known_engine(stated).facts == stated


def test_a_pool_leaves_out_the_engine_that_is_another_one() -> None:
    one, other = known_engine(), known_engine()
    asked(other, metrics(started=2.0, drafts=True), told(drafts=True))
    assert agreed({"a": one, "b": other}, STATED) == (["a"], STATED)


def test_a_pool_whose_engines_are_all_others_is_what_they_agree_in() -> None:
    one, other = known_engine(), known_engine()
    asked(one, metrics(started=2.0, drafts=True), told(drafts=True))
    asked(other, metrics(started=2.0, drafts=True), told(drafts=True, engine_version="0.33.0"))
    common = {"engine": "vllm", "engine_version": None, "method": "unknown"}
    assert agreed({"a": one, "b": other}, STATED) == (["a", "b"], common)


@pytest.mark.parametrize("place", ["at the same address", "at another one"])
@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_pool_that_is_upgraded_one_by_one_never_idles_more_than_half(count: int, place: str) -> None:
    identities = {str(number): known_engine() for number in range(count)}
    for number in range(count):
        new = identities[str(number)] if place == "at the same address" else EngineIdentity(STATED, is_new=True)
        identities[str(number)] = new
        asked(new, metrics(started=2.0), told(engine_version="0.33.0"))
        used, facts = agreed(identities, STATED)
        assert 2 * len(used) >= count
        versions = {"0.33.0" if int(url) <= number else "0.32.0" for url in used}
        assert [facts] == [{**STATED, "engine_version": version} for version in versions]


def test_engines_that_are_more_than_another_version_never_outvote_one_that_is_as_stated() -> None:
    identities = {str(number): known_engine() for number in range(5)}
    for number in range(1, 5):
        asked(identities[str(number)], metrics(2.0, drafts=True), told(drafts=True, engine_version="0.33.0"))
    assert agreed(identities, STATED) == (["0"], STATED)


def test_a_pool_of_which_no_engine_is_known_has_none() -> None:
    identity = known_engine()
    identity.gone()
    assert agreed({"a": identity}, STATED) == ([], STATED)


_LIVES = st.lists(
    st.one_of(
        st.just("gone"), st.tuples(st.integers(1, 3), st.booleans(), st.booleans())  # process, drafts, it tells
    ),
    max_size=12,
)  # fmt: skip


@given(_LIVES)
def test_whatever_happens_an_engine_that_drafts_never_counts_as_one_that_does_not(lives: list[Any]) -> None:
    identity = EngineIdentity(STATED)
    for life in lives:
        if life == "gone":
            identity.gone()
            continue
        process, drafts, tells = life
        seen = metrics(float(process) + 10 * drafts, drafts)
        if identity.must_be_asked(seen, 0.0):
            identity.learn(seen, told(drafts) if tells else {})
        if drafts and tells and identity.facts is not None:
            assert identity.facts.get("method") != "none"
