"""`python -m lab.claims.sglang_options`: the options of a version of SGLang, beside those that `policies` knows.

Nothing of SGLang is imported: its options are read from the source that declares them, which a wheel of 12 MB holds.
"""

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from lab.claims.other_vllm import unpacked
from policies.sglang_options import READ, VERSION, WITHOUT_EFFECT


def options(folder: Path) -> frozenset[str]:
    """Returns the names of all options, with underscores.

    Args:
        folder: `sglang/srt` of a version from 0.5.14 on, whose options are annotated fields: `A[type, Arg(...)]`.
    """
    fields = (folder / "arg_groups" / "fields").glob("*.py")
    declared = (name for path in fields for name in _declared(ast.parse(path.read_text(encoding="utf-8"))))
    added = _added(ast.parse((folder / "server_args.py").read_text(encoding="utf-8")))
    return frozenset(name.lstrip("-").replace("-", "_") for names in (declared, added) for name in names)


def _declared(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        about = node.annotation
        if isinstance(about, ast.Subscript) and isinstance(about.value, ast.Name) and about.value.id == "A":
            calls = [call for call in ast.walk(about.slice) if isinstance(call, ast.Call)]
            named = {call.func.id: call.keywords for call in calls if isinstance(call.func, ast.Name)}
            said = {each.arg: each.value for each in named.get("Arg", ())}
            if "no_cli" not in said and "Derived" not in named:
                yield ast.literal_eval(said["cli_name"]) if "cli_name" in said else node.target.id
                yield from ast.literal_eval(said["aliases"]) if "aliases" in said else ()


def _added(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            yield from (str(name.value) for name in node.args if isinstance(name, ast.Constant))


def main(arguments: list[str] | None = None) -> int:
    """Prints what a version has and `policies` does not know, and the reverse; returns 1 if there is any."""
    parser = argparse.ArgumentParser(prog="python -m lab.claims.sglang_options", description=__doc__)
    parser.add_argument("version", nargs="?", default=VERSION, help=f"of SGLang; {VERSION} if not given")
    version = parser.parse_args(arguments).version
    with unpacked(version, "sglang") as folder:
        has, knows = options(folder / "sglang" / "srt"), READ | WITHOUT_EFFECT
    for sign, names in (("+", has - knows), ("-", knows - has)):
        for name in sorted(names):
            print(f"{sign} {name}")
    return int(has != knows)


if __name__ == "__main__":
    sys.exit(main())
