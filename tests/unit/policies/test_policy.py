from datetime import date

import pytest

from policies import Override, PolicyError, PolicySettings, compile_policy


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"action": "pin", "reason": "r"}, "names a pool"),
        ({"action": "forbid", "reason": " "}, "reason"),
        ({"action": "waive", "reason": "r", "advisory": "a"}, "expires"),
        ({"action": "forbid", "reason": "r", "advisory": "a"}, "takes no advisory"),
        ({"action": "forbid", "reason": "r", "classes": ["x"]}, "unknown request class"),
    ],
)
def test_an_override_that_makes_no_sense_is_refused(values, says):
    with pytest.raises(PolicyError, match=says):
        Override(**values)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (Override("waive", "r", advisory="nope", expires=date(2999, 1, 1)), "no advisory 'nope'"),
        (Override("pin", "r", pool="nope"), "no pool 'nope'$"),
        (Override("pin", "r", model="nope", pool="standard"), "no pool 'standard' of model 'nope'"),
        (Override("forbid", "r", model="nope"), "no model 'nope'$"),
    ],
)
def test_an_override_of_something_that_is_not_there_is_refused(pools, override, says):
    with pytest.raises(PolicyError, match=says):
        compile_policy(pools(), (), PolicySettings(overrides=(override,)))


def test_two_pools_of_one_name_are_refused(pools):
    with pytest.raises(PolicyError, match="same name"):
        compile_policy(pools() + pools(), (), PolicySettings())


def test_the_digest_names_what_decides(pools, advisory):
    day = date(2026, 11, 21)
    base = compile_policy(pools(), (advisory(),), PolicySettings(), day)
    assert base.digest == compile_policy(pools(), (advisory(),), PolicySettings(), date(2026, 12, 24)).digest
    others = [
        compile_policy(pools(hybrid=True), (advisory(),), PolicySettings(), day),
        compile_policy(pools(), (advisory(unsafe=("json",)),), PolicySettings(), day),
        compile_policy(pools(), (advisory(),), PolicySettings(mode="advise"), day),
    ]
    assert len({base.digest, *(each.digest for each in others)}) == 4
    assert base.to_dict()["models"]["m"][0] == {"pool": "speculative", "way": "speculative", "rules": ["a"]}
