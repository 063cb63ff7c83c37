"""Commands that the laboratory brings: a distribution of its own, which only those install who test and measure."""

from importlib.metadata import entry_points

import typer

from serve.errors import ConfigError

_GROUP = "specgate.commands"


def add_command(app: typer.Typer, name: str) -> None:
    """Adds a command of the laboratory, or one that says what to install. Its name has the group's in front if it is in
    one: `probe`, `advisories.verify`.
    """
    command = name.rpartition(".")[2]
    for entry_point in entry_points(group=_GROUP, name=name):
        app.command(command)(entry_point.load())
        return

    def missing() -> None:
        """Needs the package specgate-lab; in a checkout: pip install ./lab."""
        path = name.replace(".", " ")
        raise ConfigError(f"`specgate {path}` needs the package specgate-lab; in a checkout: pip install ./lab")

    app.command(command, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(missing)
