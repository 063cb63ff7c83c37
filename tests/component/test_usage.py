"""Usage is what the engines themselves have counted, in each API, streamed and whole, plain and guarded."""

from bench.limits.counters import counted


async def test_usage_is_what_the_engines_have_counted() -> None:
    told = await counted(56)
    assert told["requests"] == 56
    assert told["unsettled"] == told["rerun"] == 0
    assert told["gateway"] == told["engines"] > 56 * 20


async def test_broken_attempts_are_the_platforms_and_nothing_is_lost() -> None:
    told = await counted(56, faulty=0.3)
    assert told["rerun"] > 0
    assert abs(told["off"]) < 0.02, "of an attempt that broke off, the end is estimated"
