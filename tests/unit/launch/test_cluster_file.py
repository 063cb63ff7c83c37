"""Start commands and docker options, as shells and Docker read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.errors import ConfigError
from serve.launch.cluster_file import deployed_configs, docker_options, option_values, start_commands

WORDS = st.lists(
    st.sampled_from(
        [
            "ray",
            "start",
            "--head",
            "--num-gpus=8",
            "--num-gpus=$N",
            "--resources=8",
            "--address",
            "x:1",
            "A=1",
            ";",
            "&&",
            "'",
            '"',
            "$X",
            "|",
        ]
    ),
    max_size=8,
).map(" ".join)


def started(*lines: str) -> list[dict[str, str]]:
    return [dict(each.options) for each in start_commands({"head_start_ray_commands": lines}, "head")]


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("ray start --head --port=6379", {"head": "true", "port": "6379"}),
        ("ulimit -n 65536; A=1 B='x y' ray start --head", {"head": "true"}),
        ("cd /x && /usr/local/bin/ray start --address $RAY_HEAD_IP:6379", {"address": "$RAY_HEAD_IP:6379"}),
        ("""ray start --resources='{"h20": 8}' --block""", {"resources": '{"h20": 8}', "block": "true"}),
    ],
)
def test_a_ray_start_is_found_among_other_words(line: str, options: dict[str, str]) -> None:
    assert started("ray stop", line) == [options]


def test_variables_in_front_belong_to_the_command() -> None:
    (command,) = start_commands({"worker_start_ray_commands": ["A=1 B='x y' ray start --address=z"]}, "worker")
    assert command.env == {"A": "1", "B": "x y"}


@pytest.mark.parametrize("form", ["--config a.yaml --no-wait", "--no-wait --config=a.yaml", "-c a.yaml"])
def test_the_deployed_config_is_found_however_it_is_written(form: str) -> None:
    lines = ["ray start --head", f"specgate deploy {form} --dry-run && specgate deploy {form}"]
    assert deployed_configs({"head_start_ray_commands": lines}) == ["a.yaml"]


def test_the_config_that_stays_deployed_comes_last() -> None:
    lines = [f"specgate deploy -c {each}" for each in ("b.yaml", "a.yaml", "b.yaml", "c.yaml --dry-run")]
    assert deployed_configs({"head_start_ray_commands": lines}) == ["a.yaml", "b.yaml"]


def test_a_role_s_docker_options_come_after_everybody_s() -> None:
    docker = {"image": "x", "run_options": ["--ulimit nofile=1:1"], "worker_run_options": ["--gpus all"]}
    assert docker_options({"docker": docker}, "worker") == ("--ulimit", "nofile=1:1", "--gpus", "all")
    assert docker_options({"docker": docker}, "head") == ("--ulimit", "nofile=1:1")
    assert docker_options({"docker": {}}, "head") is None
    assert docker_options({}, "head") is None


def test_an_option_s_values_are_found_in_both_spellings() -> None:
    assert option_values(("-e", "A=1", "--env=B=2", "--gpus"), "--env", "-e") == ["A=1", "B=2"]


@given(st.lists(WORDS | st.text(max_size=20), max_size=3))
def test_any_command_is_read_or_refused_with_a_reason(lines: list[str]) -> None:
    refused = ""
    try:
        for command in start_commands({"head_start_ray_commands": lines}, "head"):
            assert all(isinstance(amount, float) for amount in command.resources.values())
        deployed_configs({"head_start_ray_commands": lines})
    except ConfigError as error:
        refused = str(error)
    assert refused == "" or "can't be read" in refused
