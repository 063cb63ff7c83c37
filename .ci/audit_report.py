"""Says what pip-audit found: exits with 1 for vulnerabilities, with 2 for packages of which nothing is known."""

import json
import sys
from pathlib import Path


def main(report: Path, log: Path) -> int:
    """Prints the findings of one report; returns the exit code."""
    try:
        packages = json.loads(report.read_text())["dependencies"]
    except ValueError:
        print((log.read_text().strip().splitlines() or ["pip-audit said nothing"])[-1], file=sys.stderr)
        print("specgate: the vulnerability service could not be asked: nothing is known", file=sys.stderr)
        return 2
    unknown = [each["name"] for each in packages if "skip_reason" in each]
    affected = [each for each in packages if each.get("vulns")]
    for each in affected:
        for found in each["vulns"]:
            fixed = ", ".join(found["fix_versions"]) or "none yet"
            print(f"{each['name']} {each['version']}: {found['id']} (fixed in: {fixed})")
    print(f"{len(packages) - len(unknown)} versions asked for, {len(affected)} with known vulnerabilities")
    if unknown:
        print(f"specgate: nothing is known about {', '.join(unknown)}", file=sys.stderr)
        return 2
    return 1 if affected else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:3])))
