"""`python -m lab.recall`: prints recall and over-bans of the shipped advisories; exit code 1 short of the goal."""

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
    share = f"recall {found.hits} of {found.hazards} ({found.hits / found.hazards:.1%})"
    print(f"{share}, over-bans {len(found.banned)} of {found.sound}")
    sys.exit(0 if found.holds else 1)
