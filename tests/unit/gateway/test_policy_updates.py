"""The policy in force follows its sources; what can't be adopted is refused as a whole, and said."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.clock import until
from support.signer import Signer

from policies import Policy
from policies.freshness import EXPIRED
from serve.config.compiled_policy import INDEX, SHIPPED_ADVISORIES, compile_for, sign
from serve.config.gateway import GatewayConfig
from serve.config.signed_verdicts import EngineVerdict, key_of, write_qualification
from serve.errors import ConfigError, PoolUnavailableError
from serve.gateway.policy_updates import PolicyUpdates, Stamp, read_sources, stamp_of
from serve.gateway.pools import Scale
from serve.shadow.copies import Learned, NullShadows

POOLS = {"p": {"kind": "remote", "url": "http://192.0.2.1:8000"}}
CONFIG = GatewayConfig.parse({"models": {"m": {"family": "qwen3", "grammar": "hermes", "pools": POOLS}}})
FORBID = {"action": "forbid", "reason": "not proven", "pool": "p"}


class Engine:
    """A pool whose engine reports what the test says; nothing if it is down."""

    def __init__(self) -> None:
        self.reports: dict[str, Any] | None = None
        self.asked = asyncio.Event()

    async def facts(self) -> dict[str, Any]:
        self.asked.set()
        if self.reports is None:
            raise PoolUnavailableError("down")
        return self.reports


class Listening(NullShadows):
    """Shadows that keep what they are told of the candidates' engines."""

    def __init__(self) -> None:
        self.learned: Learned = {}

    def adopt(self, learned: Learned) -> None:
        self.learned = dict(learned)


class Rig:
    """Updates, and what came of them."""

    def __init__(self, config: GatewayConfig = CONFIG) -> None:
        self.engine = Engine()
        self.adopted: list[Policy] = []
        self.modes: list[str] = []
        self.scale = Scale(config)
        self.shadows = Listening()
        pools: Any = {("m", "p"): self.engine}
        self.updates = PolicyUpdates(
            config, read_sources(config.policy), self.scale, pools, self.adopted.append, self._switch, self.shadows
        )
        self.first = compile_for(config).digest

    def _switch(self, mode: str) -> None:
        if mode == "route":
            raise ConfigError("no load here")
        self.modes.append(mode)


def test_an_update_is_adopted_and_the_configured_policy_comes_back_without_one() -> None:
    rig = Rig()
    rig.updates.reconfigure({"policy": {"overrides": [FORBID]}})
    rig.updates.reconfigure({})
    digests = [policy.digest for policy in rig.adopted]
    assert digests[0] != rig.first == digests[1]
    assert rig.updates.refused is None


def test_what_is_in_force_already_is_adopted_again_only_for_another_version() -> None:
    rig = Rig()
    rig.updates.reconfigure({})
    assert not rig.adopted
    rig.updates.reconfigure({"version": "2"})
    assert len(rig.adopted) == 1


def test_an_update_says_how_many_replicas_pools_should_have() -> None:
    rig = Rig()
    rig.updates.reconfigure({"least_replicas": {"m": {"p": 0}}})
    assert rig.scale.may_sleep("m", "p")


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"polici": {}}, "unknown keys"),
        ({"policy": {"mode": "enforced"}}, "mode"),
        ({"policy": {"advisories": "/nowhere"}}, "nowhere"),
        ({"policy": {"load": "route"}}, "no load here"),
        ({"least_replicas": {"m": {"p": -1}}}, "greater than or equal"),
        ({"least_replicas": {"m": {"p": 0, "q": 1}}}, "there is no pool m/q; there are m/p"),
    ],
)
def test_a_bad_update_is_refused_and_the_next_good_one_adopted(update: dict[str, Any], message: str) -> None:
    rig = Rig()
    rig.updates.reconfigure({"least_replicas": {"m": {"p": 0}}, **update})
    assert message in (rig.updates.refused or "")
    assert not rig.adopted
    assert not rig.scale.may_sleep("m", "p"), "nothing of a bad update takes effect"
    rig.updates.reconfigure({})
    assert rig.updates.refused is None
    assert [policy.digest for policy in rig.adopted] == [rig.first]


def test_what_engines_report_makes_another_policy_once() -> None:
    rig = Rig()
    report = {("m", "p"): {"engine": "vllm", "engine_version": "0.32.0"}}
    for _ in range(2):
        rig.updates.learn(report)
    assert rig.updates.facts == rig.shadows.learned == report
    assert [policy.digest != rig.first for policy in rig.adopted] == [True]


def test_what_engines_report_leaves_an_adopted_policy_in_force() -> None:
    rig = Rig()
    rig.updates.reconfigure({"policy": {"overrides": [FORBID]}})
    rig.updates.learn({("m", "p"): {"engine": "vllm", "engine_version": "0.32.0"}})
    assert len({policy.digest for policy in rig.adopted}) == 2
    assert rig.first not in {policy.digest for policy in rig.adopted}


def test_a_report_that_can_not_be_compiled_is_tried_again_and_the_policy_stays_until_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any) -> Policy:
        raise ConfigError("no policy")

    rig = Rig()
    report = {("m", "p"): {"engine": "vllm", "engine_version": "0.32.0"}}
    with monkeypatch.context() as broken:
        broken.setattr("serve.gateway.policy_updates.compile_for", fails)
        with pytest.raises(ConfigError):
            rig.updates.learn(report)
    assert (rig.updates.facts, rig.adopted) == ({}, [])
    rig.updates.learn(report)
    assert [policy.facts[0].engine_version for policy in rig.adopted] == ["0.32.0"]


def test_an_engine_that_reports_no_drafter_is_one_without_whatever_the_configuration_left_open() -> None:
    rig = Rig()
    rig.updates.learn({("m", "p"): {"engine": "vllm", "engine_version": "0.33.0", "method": "none"}})
    assert [(facts.engine_version, facts.method) for policy in rig.adopted for facts in policy.facts] == [
        ("0.33.0", None)
    ]


async def test_engines_are_asked_until_they_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.gateway.policy_updates.FACTS_RETRY_S", 0.005)
    rig = Rig()
    watching = asyncio.create_task(rig.updates.run())
    await rig.engine.asked.wait()
    assert not rig.adopted
    rig.engine.reports = {"engine": "vllm", "engine_version": "0.32.0"}
    await until(lambda: rig.adopted)
    watching.cancel()
    assert rig.updates.facts == {("m", "p"): rig.engine.reports}


async def test_a_folder_of_advisories_takes_effect_when_it_changes_and_a_broken_file_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.gateway.policy_updates.PERIOD_S", 0.01)
    first, *others = sorted(SHIPPED_ADVISORIES.glob("*.yaml"))
    shutil.copy(first, tmp_path)
    rig = Rig(CONFIG.model_copy(update={"policy": CONFIG.policy.model_copy(update={"advisories": str(tmp_path)})}))
    watching = asyncio.create_task(rig.updates.run())
    await asyncio.sleep(0.05)
    assert not rig.adopted
    shutil.copy(others[0], tmp_path)
    await until(lambda: rig.adopted)
    assert {first.stem, others[0].stem} <= {advisory.id for advisory in rig.adopted[-1].advisories}
    (tmp_path / "broken.yaml").write_text("{")
    await until(lambda: rig.updates.refused)
    watching.cancel()
    assert "broken" in (rig.updates.refused or "")
    assert len(rig.adopted) == 1


def watching_folder(folder: Path) -> dict[str, Any]:
    """The policy of a folder with two advisories."""
    folder.mkdir()
    for path in sorted(SHIPPED_ADVISORIES.glob("*.yaml"))[:2]:
        shutil.copy(path, folder)
    return {"advisories": str(folder)}


def names_in(policy: Policy) -> set[str]:
    return {advisory.id for advisory in policy.advisories}


@pytest.mark.parametrize("reconfigured", [False, True])
async def test_what_leaves_a_folder_between_its_reading_and_the_first_look_is_noticed(
    reconfigured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.gateway.policy_updates.PERIOD_S", 0.01)
    one, other = watching_folder(tmp_path / "one"), watching_folder(tmp_path / "other")
    rig = Rig(CONFIG.model_copy(update={"policy": CONFIG.policy.model_copy(update=one)}))
    watching = asyncio.create_task(rig.updates.run())
    if reconfigured:
        await asyncio.sleep(0.05)
        rig.updates.reconfigure({"policy": other})
        assert len(rig.adopted) == 1
    gone = tmp_path / ("other" if reconfigured else "one") / min(SHIPPED_ADVISORIES.glob("*.yaml")).name
    gone.unlink()
    await until(lambda: len(rig.adopted) > reconfigured)
    watching.cancel()
    assert gone.stem not in names_in(rig.adopted[-1])


@pytest.mark.parametrize("restored", [False, True])
async def test_a_folder_that_was_refused_is_read_again_until_it_can_be_and_said_once(
    restored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever was wrong, such as a mount or a key, need not show in the folder."""
    monkeypatch.setattr("serve.gateway.policy_updates.PERIOD_S", 0.01)
    rig = Rig(CONFIG.model_copy(update={"policy": CONFIG.policy.model_copy(update=watching_folder(tmp_path / "a"))}))
    readings: list[str] = []

    def failing(*_: Any, **__: Any) -> Any:
        readings.append("failed")
        raise ConfigError("permission denied")

    with monkeypatch.context() as broken:
        broken.setattr("serve.gateway.policy_updates.read_advisories", failing)
        watching = asyncio.create_task(rig.updates.run())
        more = tmp_path / "a" / sorted(SHIPPED_ADVISORIES.glob("*.yaml"))[3].name
        shutil.copy(SHIPPED_ADVISORIES / more.name, more)
        await until(lambda: len(readings) > 2)
        assert rig.updates.refused == "permission denied"
        assert not rig.adopted
        if restored:
            more.unlink()
    await until(lambda: rig.adopted)
    watching.cancel()
    assert rig.updates.refused is None
    assert (more.stem in names_in(rig.adopted[-1])) is not restored
    assert caplog.text.count("permission denied") == 1


def test_a_file_that_became_readable_is_another_state_of_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.touch(mode=0)
    before = stamp_of(tmp_path)
    path.chmod(0o644)
    assert stamp_of(tmp_path) != before


async def test_a_folder_of_verdicts_takes_effect_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.gateway.policy_updates.PERIOD_S", 0.01)
    signer, verdicts = Signer(tmp_path), tmp_path / "verdicts"
    verdicts.mkdir()
    facts = {"engine": "vllm", "engine_version": "9.9", "method": "ngram"}
    config = GatewayConfig.parse(
        {
            "models": {"m": {"family": "qwen3", "grammar": "hermes", "pools": {"p": {**POOLS["p"], "facts": facts}}}},
            "policy": {"qualifications": str(verdicts), "qualifications_key": str(signer.public)},
        }
    )
    key = key_of(config, config.pool_facts()[0])
    assert key is not None
    verdict = EngineVerdict(finding="passed", n=9, bad=0, at_least=0.0, at_most=0.1)
    looks: list[Path] = []

    def look(folder: Path) -> Stamp:
        looks.append(folder)
        return stamp_of(folder)

    monkeypatch.setattr("serve.gateway.policy_updates.stamp_of", look)
    rig = Rig(config)
    watch = asyncio.create_task(rig.updates.run())
    await until(lambda: len(looks) > 1)  # at the empty folder
    path = write_qualification(verdicts, key, {"tools": verdict}, {}, signer.private, days=3)
    await until(lambda: rig.adopted)
    qualification = rig.adopted[-1].facts[0].qualification
    assert qualification is not None
    assert qualification.tests == {"tools": "passed"}
    path.write_text("none")
    await until(lambda: rig.updates.refused)
    assert "is not signed by" in (rig.updates.refused or "")
    assert rig.adopted[-1].facts[0].qualification == qualification
    watch.cancel()


def test_a_link_to_itself_is_a_state_of_a_folder_as_well(tmp_path: Path) -> None:
    before = stamp_of(tmp_path)
    (tmp_path / "a.yaml").symlink_to("a.yaml")
    assert stamp_of(tmp_path) != before


async def test_a_signed_index_is_watched_expires_and_never_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("serve.gateway.policy_updates.PERIOD_S", 0.01)
    now = [1_000_000.0]
    monkeypatch.setattr("serve.config.compiled_policy.time.time", lambda: now[0])
    signer = Signer(tmp_path)
    sign(signer.folder, signer.private, days=1)
    old = (signer.folder / INDEX).read_bytes()
    rig = Rig(CONFIG.model_copy(update={"policy": signer.config}))
    watching = asyncio.create_task(rig.updates.run())
    await asyncio.sleep(0.05)

    now[0] += 10
    shutil.copy(SHIPPED_ADVISORIES / "thinking-budget-not-kept.yaml", signer.folder)
    sign(signer.folder, signer.private, days=1)
    with caplog.at_level("WARNING"):
        await until(lambda: rig.adopted)
    assert "new advisories concern your pools: thinking-budget-not-kept" in caplog.text

    (signer.folder / "thinking-budget-not-kept.yaml").unlink()
    (signer.folder / INDEX).write_bytes(old)
    await until(lambda: rig.updates.refused)
    assert "older than the one in force" in (rig.updates.refused or "")
    watching.cancel()

    rig.updates.learn({})
    assert len(rig.adopted) == 1
    now[0] += 86_400
    rig.updates.learn({})
    rig.updates.learn({})
    assert [EXPIRED in {each.id for each in policy.advisories} for policy in rig.adopted] == [False, True]

    sign(signer.folder, signer.private, days=1)
    rig.updates.reconfigure({"policy": signer.config.model_dump(), "version": "renewed"})
    assert rig.updates.refused is None
    assert EXPIRED not in {each.id for each in rig.adopted[-1].advisories}
