"""A pool that did badly and has not been heard of gets a request now and then, and no more than that."""

from collections.abc import Callable

import pytest

from lab.simulation.site import Shape, config_of
from policies import Decision, RequestFeatures, choose, decide
from policies.acceptance import Acceptance, AnswerLength
from policies.ranking import PoolLoad, RankedOption
from policies.step_times import PUBLISHED, StepModel, step_times
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig
from serve.load.exploration import UNHEARD_ANSWERS, UNHEARD_S, Exploration
from serve.load.live_load import LiveLoad

PROSE = RequestFeatures("m")
POOLS = {"speculative": Shape(3, 1, 64), "standard": Shape(0, 1, 64)}
DRAFTED = 3


class Answer:
    """The end of an answer of 400 tokens."""

    def __init__(self, accepted_per_step: float | None) -> None:
        usage = b'{"usage":{"completion_tokens":400}'
        if accepted_per_step is not None:
            steps = round(400 / (1 + accepted_per_step))
            usage += (
                b',"metrics":{"speculative_decoding":{"num_spec_steps":%d,"num_accepted_draft_tokens":%d,'
                b'"num_draft_tokens":%d}}' % (steps, 400 - steps, DRAFTED * steps)
            )
        self.last = (usage + b"}",)


class Rig:
    """A speculative and a standard pool, whose answers take the table's time."""

    def __init__(self, load: str = "route", accepted: float = 0.0) -> None:
        config: GatewayConfig = config_of(POOLS)
        config = config.model_copy(update={"policy": config.policy.model_copy(update={"load": load})})
        self.policy = compile_for(config)
        self.now_s = 0.0
        self.load = LiveLoad(config, self.policy, clock=lambda: self.now_s)
        self.accepted = accepted
        self.slower = 1.0
        self.standard_slower = 1.0

    def send(self) -> Decision:
        """One request is answered; nothing else happens meanwhile."""
        decision = decide(self.policy, PROSE, None)
        ordered = choose(decision, order=self.load.order(decision, PROSE, 400))
        sent = self.load.begin(ordered, PROSE, ordered.candidates[0], 400)
        there = ordered.candidates[0]
        drafting_s, standard_s = 0.00884 * 400 / (1 + self.accepted) * self.slower, 0.00652 * 400 * self.standard_slower
        self.now_s += drafting_s if there.speculative else standard_s
        sent.response = Answer(self.accepted if there.speculative else None)
        sent.end()
        self.load.check()
        return ordered

    def shares(self, requests: int) -> float:
        return sum(self.send().speculative for _ in range(requests)) / requests


@pytest.fixture(params=["it accepts nothing", "its steps take long"])
def worse(request: pytest.FixtureRequest) -> Callable[[Rig, bool], None]:
    def change(rig: Rig, bad: bool) -> None:
        if request.param == "it accepts nothing":
            rig.accepted = 0.0 if bad else 1.7
        else:
            rig.accepted, rig.slower = 1.7, 8.0 if bad else 1.0

    return change


def test_a_bad_drafter_is_left_and_tried_seldom(worse: Callable[[Rig, bool], None]) -> None:
    rig = Rig()
    worse(rig, True)
    rig.shares(60)
    rig.shares(300)  # until the prior counts no more
    assert 0 < rig.shares(20 * UNHEARD_ANSWERS) < 2.5 / UNHEARD_ANSWERS


def test_one_that_has_recovered_is_used_again(worse: Callable[[Rig, bool], None]) -> None:
    rig = Rig()
    worse(rig, True)
    rig.shares(300)
    worse(rig, False)
    rig.shares(12 * UNHEARD_ANSWERS)
    assert rig.shares(40) > 0.9


def test_what_is_only_observed_is_never_tried() -> None:
    rig = Rig("observe")
    rig.shares(3 * UNHEARD_ANSWERS)
    assert rig.load.moves.keys() <= {("m", "speculative", "standard")}


def test_a_request_that_explores_says_so_and_no_other_does() -> None:
    rig = Rig()
    rig.accepted = 1.7
    assert not any("explored" in reason.summary for _ in range(300) for reason in rig.send().reasons)
    rig.accepted, rig.standard_slower = 0.0, 8.0
    decisions = [rig.send() for _ in range(300 + 4 * UNHEARD_ANSWERS)][300:]
    explored = [each for each in decisions if any("standard is explored" in reason.summary for reason in each.reasons)]
    assert explored
    assert {each.pool for each in explored} == {"standard"}


def test_a_class_is_tried_again_although_its_pool_goes_on_answering_another() -> None:
    """The others' answers say how fast the pool is, and nothing of what its drafter accepts of this class."""
    prior, learned = Acceptance(2.7, 3), Acceptance(2.7, 3)
    learned.learn(4000, 400)
    elsewhere = AnswerLength()
    loads = PoolLoad(step_times(PUBLISHED, 3, 64)), PoolLoad(step_times(PUBLISHED, 0, 64))
    exploration, steps = Exploration(), [StepModel(), StepModel()]
    keys = [("m", "speculative", "prose"), ("m", "standard", "prose")]
    options = (
        RankedOption("speculative", loads[0], learned, elsewhere),
        RankedOption("standard", loads[1], Acceptance(1.0), elsewhere),
    )
    assert learned.length < prior.length
    for second in range(round(UNHEARD_S) + 1):
        hopes = exploration.hopes(keys, options, steps, float(second))
        steps[0].learn(4, 1.0)  # an answer to a request with tools
        for _ in range(UNHEARD_ANSWERS):
            elsewhere.learn(300)
    assert [hope.key for hope in hopes] == keys[:1]
