"""Attacks on a real replica while a second client asks for its health: `python -m bench.attacks [--only TEXT]`.

Prints for each attack the longest hold of the event loop (CPU time), the worst `/health` of the bystander and the
memory afterwards; at the end what was wrong, and the memory before and after each round of all of them. Memory that the
first round costs and the second does not is caches and the allocator's; what each round costs is a leak.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from bench.attacks import bodies, engines, framing, leaks, schemas, slow
from bench.attacks.answers import HELLO
from bench.attacks.attack import Attack
from bench.attacks.lab import Gateway, gateway

_ALL = (*schemas.ATTACKS, *bodies.ATTACKS, *leaks.ATTACKS, *framing.ATTACKS, *engines.ATTACKS, *slow.ATTACKS)
_LONG_HOLD_S = 0.02
_SETTLE_S = 0.05
_CALM_S = 3.0  # after a round: what its attacks left open has ended by then
_MS = 1e3


async def attack(target: Gateway, each: Attack) -> tuple[str, float, float]:
    """Runs one; returns what was wrong, the longest hold and the worst wait, in seconds."""
    target.engine.script = each.script
    target.engine.forget()
    await target.vitals()
    target.worst_health_s()
    wrong = await each.run(target)
    await asyncio.sleep(_SETTLE_S)
    vitals = await target.vitals()
    worst_s = target.worst_health_s()
    target.engine.forget()
    return wrong, vitals["hold_s"], worst_s


async def run(attacks: list[Attack], *, rounds: int, verbose: bool) -> int:
    """Runs attacks; returns how often one did harm."""
    found: list[str] = []
    holds: list[tuple[float, float, str]] = []
    async with gateway(HELLO) as target:
        for _ in range(3):
            await attack(target, schemas.ATTACKS[0])
        memory_mb = [target.rss_mb()]
        for number, each in enumerate(attacks * rounds, 1):
            wrong, hold_s, worst_s = await attack(target, each)
            holds.append((worst_s, hold_s, each.name))
            if wrong:
                found.append(f"{each.name}: {wrong}")
            if verbose or wrong or hold_s > _LONG_HOLD_S:
                print(
                    f"{each.name:60} hold {hold_s * _MS:5.1f} ms  health {worst_s * _MS:6.1f} ms  "
                    f"{target.rss_mb():5.0f} MB  {wrong}",
                    flush=True,
                )
            if number % len(attacks) == 0:
                await asyncio.sleep(_CALM_S)
                memory_mb.append(target.rss_mb())
        traces = target.log.read_text(errors="replace").count("Traceback")
    print(f"{len(holds)} attacks, {len(found)} did harm; {traces} tracebacks in the log")
    print(f"memory before and after each round: {', '.join(f'{each:.0f}' for each in memory_mb)} MB")
    for worst_s, hold_s, name in sorted(holds, reverse=True)[:5]:
        print(f"worst /health: {worst_s * _MS:.1f} ms (hold {hold_s * _MS:.1f} ms) in {name}")
    for worst_s, hold_s, name in sorted(holds, key=lambda row: -row[1])[:8]:
        print(f"longest hold: {hold_s * _MS:.1f} ms (health {worst_s * _MS:.1f} ms) in {name}")
    return len(found)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", default="", metavar="TEXT", help="attacks whose names hold it")
    options.add_argument("--rounds", type=int, default=1, help="how often all of them are played (%(default)s)")
    options.add_argument("--verbose", action="store_true", help="a line for every attack")
    given = options.parse_args()
    attacks = [each for each in _ALL if given.only in each.name]
    sys.exit(bool(asyncio.run(run(attacks, rounds=given.rounds, verbose=given.verbose))))


if __name__ == "__main__":
    main()
