"""Usage is what the engines themselves have counted, in each API, streamed and whole, plain and guarded."""

from bench.limits.counters import counted


async def test_usage_is_what_the_engines_have_counted() -> None:
    reply = await counted(56)
    assert reply["requests"] == 56
    assert reply["unsettled"] == reply["rerun"] == 0
    assert reply["gateway"] == reply["engines"] > 56 * 20


async def test_broken_attempts_are_the_platforms_and_nothing_is_lost() -> None:
    reply = await counted(56, faulty=0.3)
    assert reply["rerun"] > 0
    assert abs(reply["off"]) < 0.02, "of an attempt that broke off, the end is estimated"
