"""`python -m lab.recall`: prints recall and over-bans of the shipped advisories; exit code 1 if anything is amiss."""

import sys
from pathlib import Path

import policies
from lab.recall.corpus import recall
from policies import load_advisories

if __name__ == "__main__":
    found = recall(load_advisories(Path(policies.__file__).parent / "advisories"))
    for name, requests in found.missed.items():
        print(f"missed   {name}: {', '.join(requests)}")
    for name, requests in found.banned.items():
        print(f"over-ban {name}: {', '.join(requests)}")
    hits = found.hazards - len(found.missed)
    print(
        f"recall {hits} of {found.hazards} ({hits / found.hazards:.1%}), over-bans {len(found.banned)} of {found.sound}"
    )
    sys.exit(1 if found.banned else 0)
