"""Quarantine among gateway replicas: views that share a detector, lose it, and give it back what it knew."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from policies import Candidate, Cell, Decision, Policy, RequestFeatures, Trial, choose, decide
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig
from serve.config.guard import GuardConfig
from serve.config.quarantine import QuarantineConfig
from serve.errors import SharedStateError
from serve.guard.attempt_result import AttemptResult
from serve.guard.core import Outcome, Verdict
from serve.quarantine.detector import Order
from serve.quarantine.live_policy import QuarantinedPolicy
from serve.quarantine.shared_detector import QuarantineActor
from serve.shared.link import Link, LocalLink

TOOLS = RequestFeatures("m", tools=1, tool_choice="auto")
FAST = Cell("m", "speculative", True, "tools_auto")
SAFE = Cell("m", "standard", False, "tools_auto")


def compiled() -> Policy:
    facts = {"engine": "vllm", "engine_version": "0.32.0", "method": "draft_model"}
    speculative = {"kind": "remote", "url": "http://a", "facts": facts}
    standard = {
        "kind": "remote",
        "url": "http://b",
        "facts": {"engine": "vllm", "engine_version": "0.32.0", "method": "none"},
    }
    pools = {"speculative": speculative, "standard": standard}
    model = {"family": "qwen3", "grammar": "hermes", "pools": pools}
    advisories = str(Path(__file__).parents[1] / "support" / "advisories")
    return compile_for(GatewayConfig.parse({"models": {"m": model}, "policy": {"advisories": advisories}}))


POLICY = compiled()


@dataclass
class Flaky:
    """A detector that can be killed, with its response to the last report, and restarted without its memory."""

    actor: QuarantineActor = field(default_factory=QuarantineActor)
    dead: bool = False
    dies_after_the_next: bool = False

    async def call(self, method: str, *arguments: Any) -> Any:
        self._live()
        result = await LocalLink(self.actor).call(method, *arguments)
        if self.dies_after_the_next:
            self.dead = True
            self._live()
        return result

    def _live(self) -> None:
        if self.dead:
            raise SharedStateError("gone")

    def restart(self) -> None:
        self.actor, self.dead, self.dies_after_the_next = QuarantineActor(), False, False


def view(detector: Link, mode: str = "heal", **settings: float) -> QuarantinedPolicy:
    guards = {"m": GuardConfig(mode=mode)}  # type: ignore[arg-type]
    chance = Random(1).random
    return QuarantinedPolicy(QuarantineConfig(**settings), guards, POLICY, detector, chance)  # type: ignore[arg-type]


def tell(replica: QuarantinedPolicy, cell: Cell, outcome: Outcome, times: int = 1, counts: bool = True) -> None:
    verdict = Verdict(outcome, (), counts)
    for _ in range(times):
        replica(AttemptResult(*_names(cell), verdict, 0, outcome, "r", ""))


CANDIDATES = (Candidate("speculative", False, True), Candidate("standard", False, False))


def find(replica: QuarantinedPolicy, first: int, finding: str, times: int, share: float = 0.98) -> None:
    """So many trials of the speculative pool, all with one finding; `first` is 0 if it answered first, else 1."""
    for _ in range(times):
        replica.found(Trial(FAST, *CANDIDATES, share, CANDIDATES[first], paired=True), finding)


def _names(cell: Cell) -> tuple[str, str, str, bool]:
    return cell.model, cell.pool, cell.request_class, cell.speculative


def breaks(replica: QuarantinedPolicy) -> None:
    """The speculative pool is broken, the standard one is not."""
    find(replica, 0, "bad", 490)
    find(replica, 0, "good", 490)
    find(replica, 1, "good", 20)


def pool_of(replica: QuarantinedPolicy) -> str | None:
    return decide(replica.policy, TOOLS, None).pool


def drawn(replica: QuarantinedPolicy, features: RequestFeatures = TOOLS) -> tuple[Decision, Trial | None]:
    decision = decide(replica.policy, features, features.preference)
    decision = choose(decision, draw=replica.draw("m"))
    return decision, decision.trial


async def test_what_one_replica_saw_all_replicas_act_on() -> None:
    detector = Flaky()
    first, second = view(detector), view(detector)
    breaks(first)
    assert pool_of(first) == pool_of(second) == "speculative"
    await first.sync()
    await second.sync()
    assert pool_of(first) == pool_of(second) == "standard"
    assert decide(second.policy, TOOLS, None).reasons[0].advisory == "quarantine"


async def test_what_no_replica_is_sure_of_they_are_sure_of_together() -> None:
    detector = Flaky()
    replicas = [view(detector) for _ in range(6)]
    for replica in replicas:
        find(replica, 0, "bad", 90)
        find(replica, 0, "good", 90)
        find(replica, 1, "good", 4)
        await replica.sync()
    assert pool_of(replicas[0]) == "speculative"
    for replica in replicas:
        await replica.sync()
    assert {pool_of(replica) for replica in replicas} == {"standard"}


async def test_without_the_judge_a_replica_judges_by_its_own_counts(caplog: pytest.LogCaptureFixture) -> None:
    detector = Flaky(dead=True)
    alone, other = view(detector), view(detector)
    breaks(alone)
    for _ in range(3):
        await alone.sync()
        await other.sync()
    assert (pool_of(alone), pool_of(other)) == ("standard", "speculative")
    assert sum("judges by its own counts" in record.message for record in caplog.records) == 2, "once for each replica"


async def test_what_was_counted_meanwhile_reaches_the_judge_when_it_is_back() -> None:
    detector = Flaky(dead=True)
    first, second = view(detector), view(detector)
    for _ in range(5):
        find(first, 0, "bad", 98)
        find(first, 0, "good", 98)
        find(first, 1, "good", 4)
        await first.sync()
    detector.dead = False
    await first.sync()
    await second.sync()
    assert pool_of(first) == pool_of(second) == "standard"


async def test_the_judges_age_grows_while_it_is_away() -> None:
    now = [0.0]
    detector = Flaky(dead=True)
    replica = QuarantinedPolicy(QuarantineConfig(), {}, POLICY, detector, clock=lambda: now[0])
    now[0] = 100.0
    await replica.sync()
    assert replica.detector_age_s() == 100
    detector.dead = False
    await replica.sync()
    assert replica.detector_age_s() == 0


async def test_a_judge_that_forgot_gets_back_what_it_told() -> None:
    detector = Flaky()
    first, second = view(detector), view(detector)
    breaks(first)
    await first.sync()
    await second.sync()
    tell(second, FAST, Outcome.CLEAN, 3)
    tell(second, SAFE, Outcome.CLEAN, 7)
    detector.restart()
    await first.sync()
    await second.sync()
    await first.sync()
    assert pool_of(first) == pool_of(second) == "standard"
    assert {cell["pool"]: cell["answers"] for cell in first.cells()} == {"speculative": 3, "standard": 7}


async def test_a_report_whose_receipt_was_lost_is_counted_once() -> None:
    detector = Flaky()
    replica = view(detector)
    await replica.sync()
    tell(replica, SAFE, Outcome.CLEAN, 10)
    detector.dies_after_the_next = True
    await replica.sync()
    tell(replica, SAFE, Outcome.CLEAN, 5)
    detector.dead = detector.dies_after_the_next = False
    await replica.sync()
    assert [cell["answers"] for cell in replica.cells()] == [15]


async def test_a_report_of_trials_whose_receipt_was_lost_is_counted_once() -> None:
    detector = Flaky()
    replica = view(detector)
    await replica.sync()
    find(replica, 0, "bad", 98)
    detector.dies_after_the_next = True
    await replica.sync()
    find(replica, 1, "good", 2)
    detector.dead = detector.dies_after_the_next = False
    await replica.sync()
    assert [cell["trials"] for cell in replica.cells()] == [{"own": 98, "reference": 2}]


async def test_the_state_in_a_file_outlives_everything(tmp_path: Path) -> None:
    file = tmp_path / "state" / "q.json"
    before = view(LocalLink(QuarantineActor(str(file))))
    breaks(before)
    await before.sync()
    after = view(LocalLink(QuarantineActor(str(file))))
    await after.sync()
    assert pool_of(after) == "standard"


@pytest.mark.parametrize("content", ["{", "[]", '{"version": 1, "entries": []}', '{"version": 2}'])
def test_a_file_that_cannot_be_used_is_set_aside(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "q.json"
    file.write_text(content)
    QuarantineActor(str(file))
    assert not file.exists()
    assert (tmp_path / "q.unreadable").read_text() == content
    assert "can't be used" in caplog.text


NEVER = [-1, 2**60, 10**400, float("nan"), float("inf"), "1", None, [], {}]


@pytest.mark.parametrize("value", NEVER, ids=repr)
@pytest.mark.parametrize("place", ["outcomes", "trials", "own_share", "since_s", "decided_by", "revision", "reports"])
async def test_numbers_that_can_not_be_true_are_no_state(tmp_path: Path, place: str, value: Any) -> None:
    file = tmp_path / "q.json"
    before = view(LocalLink(QuarantineActor(str(file))))
    breaks(before)
    await before.sync()
    state = json.loads(file.read_text())
    entry = state["entries"][0]
    if place == "outcomes":
        entry["outcomes"] = {"clean": value}
    elif place == "trials":
        entry["trials"] = [[value] * 12]
    elif place == "reports":
        state["reports"] = {"r": value}
    elif place == "revision":
        state["revision"] = value
    else:
        entry[place] = value
    file.write_text(json.dumps(state))
    after = view(LocalLink(QuarantineActor(str(file))))
    await after.sync()
    assert pool_of(after) == "speculative"
    assert (tmp_path / "q.unreadable").exists()
    breaks(after)
    await after.sync()
    assert pool_of(after) == "standard"


@pytest.mark.parametrize("name", ["q.json", "q.draft", "q.unreadable"])
@pytest.mark.parametrize("kind", ["folder", "full folder", "fifo", "bytes", "deep", "nowhere"])
async def test_whatever_is_in_the_place_of_its_files_the_detector_goes_on(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / name
    if kind.endswith("folder"):
        path.mkdir()
        if kind == "full folder":
            (path / "x").touch()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "nowhere":
        path.symlink_to(tmp_path / "none" / "x")
    else:
        path.write_bytes(b"\xff\xfe" if kind == "bytes" else b"[" * 200_000)
    if name == "q.unreadable":
        (tmp_path / "q.json").write_text("{")
    replica = view(LocalLink(QuarantineActor(str(tmp_path / "q.json"))))
    breaks(replica)
    await replica.sync()
    assert pool_of(replica) == "standard"


async def test_a_share_of_the_requests_probes_what_is_out_and_brings_it_back() -> None:
    replica = view(Flaky(), probe_share=0.05)
    breaks(replica)
    await replica.sync()
    trials = [each for each in (drawn(replica) for _ in range(4000)) if each[1] is not None]
    probes = [decision for decision, _ in trials if decision.pool == "speculative"]
    assert 150 <= len(probes) <= 250, "a twentieth"
    assert 300 <= len(trials) <= 500, "and as many that the reference answers"
    assert [each.pool for each in probes[0].candidates] == ["speculative", "standard"]
    assert {"quarantine", "quarantine-probe"} <= {reason.advisory for reason in probes[0].reasons}
    assert {(trial.share, trial.paired) for _, trial in trials if trial} == {(0.5, False)}
    find(replica, 0, "good", 150, share=0.5)
    find(replica, 1, "good", 150, share=0.5)
    await replica.sync()
    assert pool_of(replica) == "speculative"


@pytest.mark.parametrize("mode", ["off", "observe"])
async def test_without_reruns_to_protect_it_nothing_is_probed(mode: str) -> None:
    replica = view(Flaky(), mode, probe_share=0.5)
    breaks(replica)
    await replica.sync()
    assert {drawn(replica)[0].pool for _ in range(20)} == {"standard"}


async def test_what_an_operator_took_out_is_not_probed_and_only_an_operator_brings_it_back() -> None:
    detector = Flaky()
    first, second = view(detector, probe_share=0.5), view(detector, probe_share=0.5)
    await first.order(Order(FAST, "quarantine", "incident 17"))
    await second.sync()
    find(second, 0, "good", 500, share=0.5)
    find(second, 1, "good", 500, share=0.5)
    await second.sync()
    assert {drawn(second)[0].pool for _ in range(20)} == {"standard"}
    await second.order(Order(FAST, "lift", "fixed"))
    await first.sync()
    assert pool_of(first) == "speculative"


async def test_an_order_without_the_judge_is_refused() -> None:
    with pytest.raises(SharedStateError):
        await view(Flaky(dead=True)).order(Order(FAST, "quarantine", "x"))


async def test_a_share_of_the_requests_measures_the_reference() -> None:
    replica = view(Flaky(), reference_share=0.02)
    trials = [drawn(replica) for _ in range(10_000)]
    samples = [decision for decision, _ in trials if decision.pool == "standard"]
    assert 140 <= len(samples) <= 260
    assert [each.pool for each in samples[0].candidates] == ["standard", "speculative"]
    assert samples[0].evidence == "none"
    assert {trial and (trial.cell, trial.share, trial.paired) for _, trial in trials} == {(FAST, 0.98, True)}
    assert all(trial is not None and trial.first.pool == decision.pool for decision, trial in trials)


async def test_which_requests_measure_the_reference_cannot_be_foreseen() -> None:
    """Whoever knew it could send his broken requests to one pool and the sound ones to the other."""
    config = QuarantineConfig(reference_share=0.5)
    replicas = [QuarantinedPolicy(config, {"m": GuardConfig()}, POLICY, Flaky()) for _ in range(2)]
    first, second = ([drawn(replica)[0].pool for _ in range(200)] for replica in replicas)
    assert first != second


@pytest.mark.parametrize("reruns", [0, 1])
async def test_pools_are_each_others_rerun_where_the_guard_reruns(reruns: int) -> None:
    replica = QuarantinedPolicy(QuarantineConfig(), {"m": GuardConfig(reruns=reruns)}, POLICY, Flaky())
    trial = drawn(replica)[1]
    assert trial is not None
    assert trial.paired == bool(reruns)


@pytest.mark.parametrize(
    "features",
    [RequestFeatures("m"), RequestFeatures("m", tools=1, tool_choice="auto", preference=True)],
    ids=["free text", "speculation asked for"],
)
async def test_such_requests_are_no_trials(features: RequestFeatures) -> None:
    replica = view(Flaky(), reference_share=0.5)
    trials = [drawn(replica, features) for _ in range(20)]
    assert {(decision.pool, trial) for decision, trial in trials} == {("speculative", None)}


async def test_what_does_not_count_is_not_counted() -> None:
    replica = view(Flaky())
    tell(replica, FAST, Outcome.TRUNCATED, counts=False)
    await replica.sync()
    assert replica.cells() == []


async def test_a_rerun_is_no_measure_of_a_pool_because_only_failures_run_again() -> None:
    replica = view(Flaky())
    replica(AttemptResult(*_names(SAFE), Verdict(Outcome.CLEAN), 1, Outcome.RERUN, "r", ""))
    await replica.sync()
    assert replica.cells() == []


async def test_pools_that_are_gone_are_not_shown() -> None:
    replica = view(Flaky())
    tell(replica, FAST._replace(pool="gone"), Outcome.TRUNCATED)
    tell(replica, SAFE, Outcome.CLEAN)
    await replica.sync()
    assert [cell["pool"] for cell in replica.cells()] == ["standard"]


async def test_another_policy_keeps_the_quarantine() -> None:
    replica = view(Flaky())
    breaks(replica)
    await replica.sync()
    replica.adopt(compiled())
    assert pool_of(replica) == "standard"
