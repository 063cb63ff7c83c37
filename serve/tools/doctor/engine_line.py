"""Examines the command line of an engine, without a configuration."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from policies import PolicyError, PolicySettings, compile_policy
from policies.command_facts import facts_of_command
from policies.command_line import read_command
from policies.vllm_options import full_names
from serve.config.compiled_policy import read_advisories
from serve.config.gateway import PolicyConfig
from serve.config.lint import uncovered_steps
from serve.tools.doctor.checkup import examine_engine


def examine_line(words: Sequence[str], stated: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts that a command line tells, and what the shipped advisories forbid there.

    Raises:
        PolicyError: The line starts no known engine or can't be read, or a stated fact is none.
    """
    command = read_command(words)
    facts = facts_of_command(command, stated)
    policy = compile_policy((facts,), read_advisories(PolicyConfig()), PolicySettings())
    graphs = uncovered_steps(facts, full_names(command.args)) if command.engine == "vllm" else ()
    return {
        "engine": command.engine,
        "model": command.model,
        "left_open": sorted(command.unknown),
        **examine_engine(policy, graphs),
    }


def stated_facts(texts: Sequence[str]) -> dict[str, Any]:
    """Returns facts from texts such as `engine_version=0.32.0` and `settings.page_size=1`.

    Raises:
        PolicyError: A text has no `=`.
    """
    stated: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise PolicyError(f"--fact {text!r}: write NAME=VALUE, for example engine_version=0.32.0")
        read = value if name.endswith("_version") else yaml.safe_load(value)
        if name.startswith("settings."):
            stated.setdefault("settings", {})[name.removeprefix("settings.")] = read
        else:
            stated[name] = read
    return stated
