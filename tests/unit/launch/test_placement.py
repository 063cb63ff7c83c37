"""Replicas on nodes."""

from hypothesis import given
from hypothesis import strategies as st

from serve.launch.placement import Demand, Node, place, why_unplaced


def gpus(number: float, name: str = "pool") -> Demand:
    return Demand(name, ({"GPU": number},))


NODES = [Node("a", {"GPU": 8.0}), Node("b", {"GPU": 8.0})]


def test_small_engines_share_a_node_so_that_a_whole_one_stays_free() -> None:
    placement = place([gpus(2, "small"), gpus(2, "small"), gpus(8, "large")], NODES)
    assert placement.unplaced == ()
    assert sorted(placement.on.values()) == [("large",), ("small", "small")]


def test_a_replica_does_not_straddle_nodes() -> None:
    placement = place([gpus(6), gpus(6), gpus(4, "last")], NODES)
    assert [each.name for each in placement.unplaced] == ["last"]
    assert why_unplaced(gpus(4), NODES) == "every node that is large enough is taken by other replicas"


def test_a_placement_group_may() -> None:
    spread = Demand("pp2", ({"GPU": 8.0}, {"GPU": 8.0}), spread=True)
    assert place([spread], NODES).on == {"a": ("pp2",), "b": ("pp2",)}
    packed = Demand("pp2", ({"GPU": 8.0}, {"GPU": 8.0}))
    assert place([packed], NODES).unplaced == (packed,)
    assert why_unplaced(packed, NODES) == "it asks for 16 GPU on one node, and no node has more than 8"


def test_a_resource_that_no_node_has_is_named() -> None:
    assert why_unplaced(Demand("x", ({"h20_141gb": 1.0},)), NODES) == "it asks for 1 h20_141gb, and no node offers any"


def test_cpus_that_nobody_stated_are_not_limited() -> None:
    assert place([Demand("x", ({"CPU": 500.0},))], [Node("a", {})]).unplaced == ()
    assert place([Demand("x", ({"CPU": 500.0},))], [Node("a", {"CPU": 4.0})]).unplaced != ()


@given(st.lists(st.integers(1, 8), max_size=12), st.integers(1, 4))
def test_no_node_is_filled_beyond_what_it_has_and_nobody_is_lost(sizes: list[int], count: int) -> None:
    demands = [gpus(size, f"{place_}:{size}") for place_, size in enumerate(sizes)]
    placement = place(demands, [Node(str(each), {"GPU": 8.0}) for each in range(count)])
    for names in placement.on.values():
        assert sum(int(name.split(":")[1]) for name in names) <= 8
    placed = [name for names in placement.on.values() for name in names]
    assert sorted(placed + [each.name for each in placement.unplaced]) == sorted(each.name for each in demands)
