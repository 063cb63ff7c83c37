"""Brings the generated parts of `docs/reference/` up to date: `python -m docs._generate`, or `make reference`."""

import sys

from docs._generate.pages import PAGES, stale, write


def main() -> int:
    """Rewrites the pages. With `--check` it only names the ones that are out of date, and fails if there are any."""
    if "--check" in sys.argv[1:]:
        outdated = stale()
        for path in outdated:
            print(f"{path} is out of date: run `make reference`")
        return 1 if outdated else 0
    for path in write():
        print(f"wrote {path}")
    print(f"{len(PAGES)} pages are current")
    return 0


sys.exit(main())
