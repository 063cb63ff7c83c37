"""What `bench.real_engine` makes of its turns."""

from bench.real_engine.measure import added, ratios


def test_ratios_are_of_the_pairs_and_not_of_the_medians() -> None:
    reply = ratios([100.0, 50.0, 10.0], [50.0, 50.0, 10.0])
    assert (reply["p50"], reply["at_least"], reply["at_most"]) == (1.0, 0.5, 1.0)


def test_added_time_is_of_the_pairs() -> None:
    reply = added([10.0, 20.0, 30.0], [11.0, 22.0, 33.0])
    assert (reply["direct_p50_ms"], reply["gateway_p50_ms"], reply["added_p50_ms"]) == (20.0, 22.0, 2.0)
