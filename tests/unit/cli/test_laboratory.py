"""Without the laboratory its commands say what to install, and pools of its kinds too."""

import pytest
import typer
from typer.testing import CliRunner

from serve.cli import output
from serve.cli.output import WRONG_INPUT, Commands
from serve.config.gateway import GatewayConfig
from serve.engine import kinds
from serve.errors import ConfigError
from serve.launch.submit import check_engines

SIM = {"models": {"m": {"family": "sim", "grammar": "hermes", "pools": {"p": {"kind": "sim"}}}}}


@pytest.fixture
def without_laboratory(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (output, kinds):
        monkeypatch.setattr(module, "entry_points", lambda **_: ())


@pytest.mark.usefixtures("without_laboratory")
@pytest.mark.parametrize("arguments", [["probe"], ["probe", "--url", "http://x", "--model", "m"], ["probe", "a", "b"]])
def test_a_command_of_the_laboratory_says_what_to_install(arguments: list[str]) -> None:
    app = typer.Typer(cls=Commands)
    app.callback()(lambda: None)
    output.add_command(app, "probe")
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == WRONG_INPUT
    assert "`specgate probe` needs the package specgate-lab" in result.stderr
    assert "pip install ./lab" in CliRunner().invoke(app, ["probe", "--help"], terminal_width=200).stdout


@pytest.mark.usefixtures("without_laboratory")
def test_a_simulated_pool_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"m/p: pools of kind 'sim' need the package specgate-lab"):
        check_engines(GatewayConfig.parse(SIM), print)


def test_with_the_laboratory_its_commands_are_there() -> None:
    app = typer.Typer(cls=Commands)
    app.callback()(lambda: None)
    output.add_command(app, "conform")
    assert "upstream-port" in CliRunner().invoke(app, ["conform", "--help"], terminal_width=200).stdout


def test_the_help_of_a_command_breaks_where_the_terminal_ends() -> None:
    app = typer.Typer(cls=Commands)
    app.callback()(lambda: None)

    @app.command()
    def one() -> None:
        """Do it.

        What comes first,
        and goes on.

        Another paragraph.
        """

    lines = CliRunner().invoke(app, ["one", "--help"], terminal_width=100).stdout.splitlines()
    shown = [line.strip() for line in lines]
    assert "What comes first, and goes on." in shown
    assert "Another paragraph." in shown
