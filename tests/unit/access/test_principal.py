"""What a principal may ask for."""

import pytest

from serve.access.principal import Principal, Tenant
from serve.config.access import PRIORITIES, RIGHTS, RequestPriority
from serve.errors import InvalidRequestError


@pytest.mark.parametrize("ceiling", PRIORITIES)
@pytest.mark.parametrize("wanted", PRIORITIES)
def test_a_request_has_the_priority_that_it_asks_for_up_to_the_ceiling(
    wanted: RequestPriority, ceiling: RequestPriority
) -> None:
    got = Principal("k", Tenant("red"), RIGHTS, priority_ceiling=ceiling).priority(wanted)
    assert PRIORITIES.index(got) == max(PRIORITIES.index(wanted), PRIORITIES.index(ceiling))


@pytest.mark.parametrize("wanted", ["", "first", "Interactive", "interactive,batch"])
def test_a_priority_that_there_is_not_is_refused(wanted: str) -> None:
    with pytest.raises(InvalidRequestError, match="interactive, standard, batch") as raised:
        Principal("k", Tenant("red"), RIGHTS).priority(wanted)
    assert raised.value.param == "x-specgate-class"
