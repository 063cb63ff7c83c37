"""The echo canary never takes more than its share, a little a round, and one debt."""

from hypothesis import given
from hypothesis import strategies as st

from serve.config.quarantine import EchoConfig
from serve.echo.canary import EchoBudget

HOUR = 3600.0


def test_an_idle_pool_is_asked_a_little_each_round() -> None:
    budget = EchoBudget(EchoConfig(), 1, due_s=0.0)
    assert [budget.due(now, 0.0) for now in (0.0, 1.0, HOUR - 1)] == [8, 0, 0]
    for _ in range(8):
        budget.spend(1000)
    assert budget.due(HOUR, 0.0) == 8


def test_replicas_share_the_least_of_it() -> None:
    budget = EchoBudget(EchoConfig(), 16, due_s=0.0)
    asked = []
    for number in range(4):
        asked.append(budget.due(number * HOUR, 0.0))
        for _ in range(asked[-1]):
            budget.spend(1000)
    assert asked == [0, 1, 0, 1]


def test_a_busy_pool_is_asked_for_its_share() -> None:
    budget = EchoBudget(EchoConfig(least=0), 1, due_s=0.0)
    assert budget.due(0.0, 36_000_000.0) == 36


def test_what_a_build_took_at_once_is_paid_back() -> None:
    budget = EchoBudget(EchoConfig(), 1, due_s=0.0)
    for _ in range(40):
        budget.spend(1000)
    assert [budget.due(number * HOUR, 0.0) for number in range(6)] == [0, 0, 0, 0, 0, 8]


@given(
    st.lists(st.tuples(st.integers(0, 10_000_000), st.integers(1, 3000)), min_size=1, max_size=60),
    st.integers(1, 5),
    st.integers(0, 400),
)
def test_all_that_is_spent_stays_within_share_least_and_one_debt(
    rounds: list[tuple[int, int]], gateways: int, at_once: int
) -> None:
    terms = EchoConfig()
    budget = EchoBudget(terms, gateways, due_s=0.0)
    answered = spent = 0
    allowed = 0.0
    for _ in range(at_once):  # a new build
        spent += 1000
        budget.spend(1000)
    for number, (tokens, cost) in enumerate(rounds):
        answered += tokens
        allowed += terms.least * max(budget.cost, 1.0) / gateways
        for _ in range(budget.due(number * HOUR, float(answered))):
            spent += cost
            budget.spend(cost)
        # The cost of a request is an estimate: a round whose requests are dearer is owed, too.
        assert spent <= terms.share * answered + allowed + 1000 * at_once + 400 * 3000
    if at_once == 0 and len({cost for _, cost in rounds} | {1000}) == 1:
        assert spent <= terms.share * answered + allowed
