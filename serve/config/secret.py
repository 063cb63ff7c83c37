"""Keys and passwords: the configuration, which Ray's dashboard shows, only says where they are."""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from serve.config.regular_file import read_regular
from serve.errors import ConfigError

log = logging.getLogger("ray.serve.specgate.secret")

PERIOD_S = 5.0
_MOST_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Secret:
    """A key or password of the node that needs it.

    Attributes:
        field: Its place in the configuration without `_env` or `_file`, such as `rate_limits.store.password`.
        env: Environment variable that holds it; None if a file does.
        file: File that holds it; None if a variable does.

    Raises:
        ValueError: Both are set, or neither.
    """

    field: str
    env: str | None
    file: str | None

    def __post_init__(self) -> None:
        name = self.field.rpartition(".")[2]
        if bool(self.env) == bool(self.file):
            raise ValueError(f"set {name}_env or {name}_file, not both")

    def read(self) -> str:
        """Returns it as it is now, without white space around it.

        Raises:
            ConfigError: It is not there; the message never repeats what is.
        """
        place, found = self._found()
        if not found.strip():
            raise ConfigError(f"{place} is empty")
        if not found.strip().isprintable():  # a second line would be a second header
            raise ConfigError(f"{place} holds more than one line, or characters that can't be printed")
        return found.strip()

    def _found(self) -> tuple[str, str]:
        if self.file is not None:
            try:
                return f"{self.field}_file: {self.file}", read_regular(Path(self.file), _MOST_BYTES).decode()
            except OSError as error:
                raise ConfigError(
                    f"{self.field}_file: {self.file} can't be read on this node: {error.strerror}; every node that "
                    "needs it must have it, readable for Ray's user"
                ) from error
            except UnicodeDecodeError:
                raise ConfigError(f"{self.field}_file: {self.file} is no text") from None
        assert self.env is not None
        if self.env not in os.environ:
            raise ConfigError(
                f"{self.field}_env: {self.env} is not set on this node: set it before Ray starts, on every node that "
                f"needs it, or name a file with {self.field.rpartition('.')[2]}_file"
            )
        return f"{self.field}_env: {self.env}", os.environ[self.env]


class LiveSecret:
    """A secret for use in every request: read again every few seconds, so that a file may be replaced.

    A file that can't be read any more changes nothing. Reading it does not wait: a mounted Secret is in memory.

    Raises:
        ConfigError: It is not there.
    """

    def __init__(self, secret: Secret, clock: Callable[[], float] = time.monotonic) -> None:
        self._secret = secret
        self._clock = clock
        self._value = secret.read()
        self._read_s = clock()
        self._refused = ""

    def __call__(self) -> str:
        now_s = self._clock()
        if now_s - self._read_s >= PERIOD_S:
            self._read_s = now_s
            self._reread()
        return self._value

    def _reread(self) -> None:
        try:
            self._value = self._secret.read()
            self._refused = ""
        except ConfigError as error:
            if str(error) != self._refused:
                log.warning("%s; the one read before is used on", error)
            self._refused = str(error)
