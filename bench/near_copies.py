"""Slips in names that are found, and right calls that are suspected: `python -m bench.near_copies [--bfcl DIR]`.

False alarms: gold calls of BFCL, and edits of real source files, which are the commits of git repositories (`--repo`,
this one by default): the prompt has a commit's message, the tree before it and the old file, the calls write each hunk.
Harder: reads of files that are there, of which the prompt lists half.
Slips: names of many kinds in a prompt of 20 kB among others of their kind, changed as `SLIPS` says. Last the time that
looking up a path takes, and one name of each kind with each slip at the end of a prompt of 100 kB (`--cost` alone).
"""

from __future__ import annotations

import argparse
import json
import random
import re
import string
import subprocess
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations, pairwise
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import Any

from bench.public import bfcl
from bench.public.suites import tau2_cases
from serve.guard.core.near_copies import NearCopies
from serve.guard.core.prompt_text import PromptText
from serve.guard.core.slip import Slip

ROOT = Path(__file__).parents[1]
_FILLING = ROOT / "docs" / "explanation" / "policy.md"
_HUNKS, _FILES, _LINES = 10, 40, 3  # of a commit, at most
_PEOPLE = ("yusuf", "mia", "rossi", "chen", "garcia", "ivan", "santos", "noah", "emma", "lopez")
_TURNS = 1000  # whose shortest counts
_LONG_PROMPT = 100_000  # characters, of which the goal speaks
_DEAREST = 20  # near copies that are told
PATHS = {
    "as written": "/home/user/project/serve/guard/plain.py",
    "absent": "weights/llama-70b/tokenizer.model",
    "new in a known folder": "serve/guard/new_module_here.py",
    "the same, short": "serve/guard/path.py",
    "of two halves": "serve/guard/core/server.py",
    "nearly": "serve/guard/attempt_resolt.py",
    "nearly, with all folders": "/home/user/project/serve/guard/core/schemx.py",
}  # that a call names

Call = tuple[str, Mapping[str, Any]]
Source = Callable[[random.Random], str]


def _of(alphabet: str, length: int) -> Source:
    return lambda chance: "".join(chance.choice(alphabet) for _ in range(length))


def _hex(length: int) -> Source:
    return _of("0123456789abcdef", length)


def _number(length: int) -> Source:
    return _of("123456789", length)


def _mixed(length: int) -> Source:
    return _of(string.ascii_letters + string.digits, length)


def _person(chance: random.Random) -> str:
    return f"{chance.choice(_PEOPLE)}_{chance.choice(_PEOPLE)}"


_WORDS = (
    "parse", "render", "cache", "widget", "order", "queue", "session", "billing", "export", "schema", "token", "worker",
)  # fmt: skip


def _paths(chance: random.Random) -> str:
    return chance.choice(_TREE)


_TREE = [str(path.relative_to(ROOT)) for name in ("serve", "policies", "lab") for path in (ROOT / name).rglob("*.py")]
KINDS: Mapping[str, Source] = {
    "path": _paths,
    "URL": lambda chance: f"https://git.example.com/acme/{_paths(chance)}",
    "UUID": lambda chance: str(uuid.UUID(int=chance.getrandbits(128))),
    "hash": _hex(40),
    "short hash": _hex(12),
    "call id": lambda chance: f"call_{_mixed(24)(chance)}",
    "order": lambda chance: f"#W{_number(7)(chance)}",
    "user": lambda chance: f"{_person(chance)}_{_number(4)(chance)}",
    "ticket": lambda chance: f"TCK-2024-{_number(6)(chance)}",
    "number, 6 digits": _number(6),
    "number, 12 digits": _number(12),
    "amount": lambda chance: f"{_number(4)(chance)}.{_number(2)(chance)}",
    "IBAN": lambda chance: f"DE{_number(20)(chance)}",
    "telephone": lambda chance: f"+1-{_number(3)(chance)}-{_number(3)(chance)}-{_number(4)(chance)}",
    "mail": lambda chance: f"{_person(chance)}{_number(2)(chance)}@example.com",
    "card, in groups": lambda chance: " ".join(_number(4)(chance) for _ in range(4)),
    "MAC address": lambda chance: ":".join(_hex(2)(chance) for _ in range(6)),
    "S3 address": lambda chance: (
        f"s3://acme-{_hex(4)(chance)}/runs/{_number(5)(chance)}/part-{_number(4)(chance)}.parquet"
    ),
    "branch": lambda chance: f"fix/{chance.choice(_WORDS)}-{chance.choice(_WORDS)}-{_number(4)(chance)}",
    "symbol": lambda chance: "_".join(chance.sample(_WORDS, 3)),
    "key of a cloud": lambda chance: f"AKIA{_of(string.ascii_uppercase + string.digits, 16)(chance)}",
    "ARN": lambda chance: f"arn:aws:iam::{_number(12)(chance)}:role/{chance.choice(_WORDS)}-{chance.choice(_WORDS)}",
    "path of Windows": lambda chance: (
        f"C:\\Users\\{_person(chance)}\\{chance.choice(_WORDS)}_{_number(4)(chance)}.xlsx"
    ),
    "coordinates": lambda chance: f"{_number(2)(chance)}.{_number(6)(chance)}",
    "host": lambda chance: f"{chance.choice(_WORDS)}-{_hex(5)(chance)}.internal.example.com",
    "date": lambda chance: f"{chance.randint(1990, 2029)}-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}",
    "port": lambda chance: (
        f"http://{chance.choice(_WORDS)}.{chance.choice(_WORDS)}.svc:{chance.randint(1100, 9900)}/v1"
    ),
    "IP address": lambda chance: ".".join(str(chance.randint(11, 250)) for _ in range(4)),
}


def one_character(name: str, chance: random.Random) -> str:
    """Returns a name with one letter or digit replaced, added or lost."""
    place = chance.choice([index for index, sign in enumerate(name) if sign.isalnum()])
    other = chance.choice([sign for sign in _alphabet(name[place]) if sign != name[place]])
    return chance.choice(
        (
            f"{name[:place]}{other}{name[place + 1 :]}",
            f"{name[:place]}{other}{name[place:]}",
            name[:place] + name[place + 1 :],
        )
    )


def swapped(name: str, chance: random.Random) -> str:
    """Returns a name with two neighbours in each other's place, digits if there are such."""
    pairs = [(index, name[index : index + 2]) for index in range(len(name) - 1)]
    differing = [(index, pair) for index, pair in pairs if pair.isalnum() and pair[0] != pair[1]]
    digits = [(index, pair) for index, pair in differing if pair.isdigit()]
    place, pair = chance.choice(digits or differing)
    return name[:place] + pair[::-1] + name[place + 2 :]


def one_token(name: str, chance: random.Random) -> str:
    """Returns a name with a piece of two to four characters replaced by another of its kind."""
    found = chance.choice([*re.finditer(r"[a-z]{2,4}|[A-Z]{2,4}|\d{2,3}|[A-Za-z0-9]{2,3}", name)])
    other = "".join(chance.choice(_alphabet(sign)) for sign in found[0])
    return name[: found.start()] + other + name[found.end() :]


def two_characters(name: str, chance: random.Random) -> str:
    """Returns a name with two letters or digits replaced that stand far apart."""
    signs = [index for index, sign in enumerate(name) if sign.isalnum()]
    first, last = chance.choice(signs[: len(signs) // 3]), chance.choice(signs[-(len(signs) // 3) :])
    for place in (first, last):
        other = chance.choice([sign for sign in _alphabet(name[place]) if sign != name[place]])
        name = f"{name[:place]}{other}{name[place + 1 :]}"
    return name


def lost_folder(name: str, chance: random.Random) -> str:
    """Returns a path without one of the folders within it; as it is if it has none."""
    strokes = [found.end() for found in re.finditer(r"(?<![/\\:])[/\\](?![/\\])", name)]
    folders = [*pairwise(strokes)]
    if not folders:
        return name
    start, end = chance.choice(folders)
    return name[:start] + name[end:]


def doubled(name: str, chance: random.Random) -> str:
    """Returns a name with one letter or digit twice."""
    place = chance.choice([index for index, sign in enumerate(name) if sign.isalnum()])
    return name[:place] + name[place] + name[place:]


def added_digit(name: str, chance: random.Random) -> str:
    """Returns a name with one digit more, beside one if it has some."""
    digits = [index for index, sign in enumerate(name) if sign.isdigit()]
    place = chance.choice(digits or range(1, len(name)))
    return name[:place] + chance.choice(string.digits) + name[place:]


def other_case(name: str, chance: random.Random) -> str:
    """Returns a name with one letter in the other case; as it is if it has none."""
    return _at(name, str.isalpha, str.swapcase, chance)


def lookalike(name: str, chance: random.Random) -> str:
    """Returns a name with one letter of another script that looks the same; as it is if it has none."""
    return _at(name, _LOOKALIKES.__contains__, _LOOKALIKES.__getitem__, chance)


def other_sign(name: str, chance: random.Random) -> str:
    """Returns a name with one hyphen, underscore or space replaced by another; as it is if it has none."""
    return _at(name, "-_ ".__contains__, lambda sign: "_" if sign == "-" else "-", chance)


def lost_sign(name: str, chance: random.Random) -> str:
    """Returns a name without one of its hyphens or underscores; as it is if it has none."""
    return _at(name, "-_ ".__contains__, lambda _: "", chance)


def lost_begin(name: str, chance: random.Random) -> str:
    """Returns a name without its first two to four characters."""
    return name[chance.randint(2, 4) :]


def lost_end(name: str, chance: random.Random) -> str:
    """Returns a name without its last two to four characters."""
    return name[: -chance.randint(2, 4)]


def lost_digit(name: str, chance: random.Random) -> str:
    """Returns a name without one of its digits; as it is if it has none."""
    return _at(name, str.isdigit, lambda _: "", chance)


def other_stroke(name: str, chance: random.Random) -> str:
    """Returns a name with a dot for a stroke or the other way round; as it is if it has none within it."""
    inner = [found.start() for found in re.finditer(r"(?<=\w)[/.](?=\w)", name)]
    if not inner:
        return name
    place = chance.choice(inner)
    return f"{name[:place]}{'.' if name[place] == '/' else '/'}{name[place + 1 :]}"


def swapped_groups(name: str, chance: random.Random) -> str:
    """Returns a name with two groups of one length between its hyphens swapped; as it is if it has no two."""
    groups = name.split("-")
    pairs = [
        (a, b) for a, b in combinations(range(len(groups)), 2)
        if len(groups[a]) == len(groups[b]) > 2 and groups[a] != groups[b]
    ]  # fmt: skip
    if not pairs:
        return name
    a, b = chance.choice(pairs)
    groups[a], groups[b] = groups[b], groups[a]
    return "-".join(groups)


def swapped_letters(name: str, chance: random.Random) -> str:
    """Returns a name with two neighbouring letters in each other's place; as it is if it has none."""
    pairs = [at for at, (a, b) in enumerate(pairwise(name)) if a.isalpha() and b.isalpha() and a != b]
    if not pairs:
        return name
    place = chance.choice(pairs)
    return name[:place] + name[place + 1] + name[place] + name[place + 2 :]


_LOOKALIKES = dict(
    zip(
        "aceopxyABCEHKMOPTX",
        "\u0430\u0441\u0435\u043e\u0440\u0445\u0443\u0410\u0412\u0421\u0415\u041d\u041a\u041c\u041e\u0420\u0422\u0425",
        strict=True,
    )
)


def _at(name: str, fits: Callable[[str], bool], change: Callable[[str], str], chance: random.Random) -> str:
    places = [index for index, sign in enumerate(name) if fits(sign)]
    if not places:
        return name
    place = chance.choice(places)
    return name[:place] + change(name[place]) + name[place + 1 :]


SLIPS: Mapping[str, Callable[[str, random.Random], str]] = {
    "one character": one_character, "two swapped": swapped, "one token": one_token,
    "two characters": two_characters, "lost folder": lost_folder, "doubled": doubled, "added digit": added_digit,
    "other case": other_case, "lookalike": lookalike, "other sign": other_sign, "lost sign": lost_sign,
    "lost begin": lost_begin, "lost end": lost_end,
    "lost digit": lost_digit, "other stroke": other_stroke, "swapped groups": swapped_groups,
    "swapped letters": swapped_letters,
}  # fmt: skip


def _alphabet(sign: str) -> str:
    if sign.isdigit():
        return string.digits
    return string.ascii_lowercase if sign.islower() else string.ascii_uppercase


def found_share(kind: str, slip: str, trials: int, seed: int = 1) -> float | None:
    """Returns the share of slips of one sort that are found in names of one kind; None if these can't have them."""
    chance, filling = random.Random(seed), _FILLING.read_text()[:20_000]
    found = made = 0
    for _ in range(4 * trials):
        if made == trials:
            break
        others, name = [KINDS[kind](chance) for _ in range(10)], KINDS[kind](chance)
        wrong = SLIPS[slip](name, chance)
        prompt = f"{filling}\n{', '.join(others)}\nNow use {name}, please."
        if re.search(rf"(?<!\w){re.escape(wrong)}(?!\w)", prompt):
            continue
        made += 1
        value = int(wrong) if wrong.isdigit() and wrong[0] != "0" and chance.random() < 0.5 else wrong
        found += suspects(prompt, {"value": value})
    return found / made if 2 * made >= trials else None


def suspects(prompt: str, arguments: Mapping[str, Any]) -> bool:
    """Returns whether a call is suspected."""
    return _slip(prompt, arguments) is not None


def _slip(prompt: str, arguments: Mapping[str, Any]) -> Slip | None:
    body = json.dumps({"messages": [{"role": "user", "content": prompt}]}, ensure_ascii=False)
    return NearCopies(PromptText(body.encode(errors="replace"))).first(arguments)


def gold_calls(data: Path) -> Iterator[Call]:
    """Yields each of BFCL's gold calls after its prompt."""
    for case in bfcl.cases(data):
        prompt = "\n".join(_texts([case.messages, case.functions, case.others]))
        yield from ((prompt, arguments) for _, arguments in case.calls)


def tau2_calls(folder: Path) -> Iterator[Call]:
    """Yields each of tau2-bench's gold calls after what the user says."""
    for case in tau2_cases(folder):
        yield from ((case.body["messages"][0]["content"], arguments) for _, arguments in case.calls or ())


def edits(repo: Path, commits: int) -> Iterator[Call]:
    """Yields the edits of a repository's last commits: each hunk as a whole, and lines of it alone."""
    for commit in _git(repo, "log", "--format=%H", "--no-merges", f"-{commits}").split():
        tree = _git(repo, "ls-tree", "-r", "--name-only", f"{commit}^")
        message, *files = re.split(r"^diff --git ", _git(repo, "show", "--no-renames", commit), flags=re.MULTILINE)
        for file in files[:_FILES]:
            head, *hunks = re.split(r"^@@.*@@.*$", file, flags=re.MULTILINE)
            path = head.split("\n", 1)[0].rpartition(" b/")[2]
            is_new = "\nnew file" in head
            prompt = f"{message}\n{tree}\n{'' if is_new else _git(repo, 'show', f'{commit}^:{path}')}"
            for hunk in hunks[:_HUNKS]:
                yield from ((prompt, {"path": path, **call}) for call in _calls(hunk, is_new=is_new))


def reads(repo: Path, commits: int, seed: int = 4) -> Iterator[Call]:
    """Yields reads of a repository's files where the prompt lists half of them, as an agent has seen a part."""
    chance = random.Random(seed)
    for commit in _git(repo, "log", "--format=%H", "--no-merges", f"-{commits}").split():
        files = _git(repo, "ls-tree", "-r", "--name-only", f"{commit}^").splitlines()
        listed = [file for file in files if chance.random() < 0.5]
        prompt = "\n".join([_git(repo, "show", "-s", "--format=%B", commit), *listed])
        yield from ((prompt, {"path": path}) for path in chance.sample(files, min(len(files), _HUNKS)))


def _calls(hunk: str, *, is_new: bool) -> Iterator[dict[str, str]]:
    lines = hunk.strip("\n").split("\n")
    before, after = ("\n".join(line[1:] for line in lines if line[:1] in signs) for signs in (" -", " +"))
    if is_new:
        yield {"content": f"{after}\n"}
        return
    yield {"old_string": before, "new_string": after}
    yield from ({"line": line[1:]} for line in [line for line in lines if line[:1] == "+"][:_LINES])


def _git(repo: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", repo, *arguments], capture_output=True, text=True, errors="replace", check=False
    )
    return done.stdout


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)
    else:
        yield str(value)


def listing(length: int) -> str:
    """Returns a prompt of so many characters that lists files and has what is in them."""
    files = sorted((ROOT / "serve" / "guard").rglob("*.py")) + sorted((ROOT / "serve").rglob("*.py"))
    paths = "\n".join(f"/home/user/project/{file.relative_to(ROOT)}" for file in files)
    return (paths + "".join(file.read_text() for file in files))[:length]


def lookup_us(name: str, prompt: str, turns: int = _TURNS) -> float:
    """Returns the least time of looking up a call's name in a prompt, in microseconds."""
    body = json.dumps({"messages": [{"role": "user", "content": prompt}]}).encode()
    least_s = 1.0
    for _ in range(turns):
        began_s = perf_counter()
        NearCopies(PromptText(body)).first({"path": name})
        least_s = min(least_s, perf_counter() - began_s)
    return least_s * 1e6


def costs_us(kinds: Iterable[str], turns: int, seed: int = 5) -> dict[tuple[str, str], float]:
    """Returns what near copies of names of some kinds cost with each slip that is found, in microseconds."""
    chance, filling = random.Random(seed), listing(_LONG_PROMPT)
    costs = {}
    for kind in kinds:
        name, *others = [KINDS[kind](chance) for _ in range(11)]
        prompt = f"{filling}\n{', '.join(others)}\nNow use {name}, please."
        for slip, change in SLIPS.items():
            wrong = change(name, chance)
            if suspects(prompt, {"path": wrong}):
                costs[kind, slip] = lookup_us(wrong, prompt, turns)
    return costs


def _print_costs() -> None:
    print("\n| prompt | path | looked up in |\n|---|---|---|")
    for length in (10_000, _LONG_PROMPT, 1_000_000):
        for label, path in PATHS.items():
            print(f"| {length // 1000} kB | {label} | {lookup_us(path, listing(length)):,.0f} us |", flush=True)
    costs = costs_us(KINDS, _TURNS // 4)
    half, most = (quantiles(costs.values(), n=10)[tenth] for tenth in (4, 8))
    print(f"\n{len(costs)} near copies: half of them in {half:.0f} us or less, 90 % in {most:.0f} us")
    for (kind, slip), cost_us in sorted(costs.items(), key=lambda cost: -cost[1])[:_DEAREST]:
        print(f"| {kind}, {slip} | {cost_us:.0f} us |")


def _alarms(name: str, calls: Iterable[Call], *, show: bool) -> None:
    found = [_slip(*call) for call in calls]
    slips = [slip for slip in found if slip is not None]
    print(f"| {name} | {len(found):,} | {len(slips)} |", flush=True)
    if show:
        print("".join(f"  {slip.name!r} for {slip.source!r}\n" for slip in slips), end="", flush=True)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bfcl", type=Path, default=bfcl.folder(), help="the folder of BFCL_v4_*.json")
    parser.add_argument("--tau2", type=Path, help="the folder of tau2-bench's domains")
    parser.add_argument("--show", action="store_true", help="the names that are suspected")
    parser.add_argument("--repo", type=Path, action="append", help="a git repository whose commits are edits")
    parser.add_argument("--commits", type=int, default=150, help="of each repository")
    parser.add_argument("--trials", type=int, default=400, help="of each kind of name and slip")
    parser.add_argument("--cost", action="store_true", help="what lookups cost, and nothing else")
    asked = parser.parse_args()
    if asked.cost:
        return _print_costs()
    print("| calls of | calls | suspected |\n|---|---|---|")
    if asked.bfcl is not None:
        _alarms("BFCL v4, gold", gold_calls(asked.bfcl), show=asked.show)
    if asked.tau2 is not None:
        _alarms("tau2-bench, gold", tau2_calls(asked.tau2), show=asked.show)
    for repo in asked.repo or [ROOT]:
        _alarms(f"{repo.resolve()}, edits", edits(repo, asked.commits), show=asked.show)
        _alarms(f"{repo.resolve()}, reads", reads(repo, asked.commits), show=asked.show)
    print(f"\n| names | {' | '.join(SLIPS)} |\n|---|{'---|' * len(SLIPS)}")
    for kind in KINDS:
        shares = (found_share(kind, slip, asked.trials) for slip in SLIPS)
        print(f"| {kind} | {' | '.join('' if share is None else f'{share:.0%}' for share in shares)} |", flush=True)
    _print_costs()


if __name__ == "__main__":
    main()
