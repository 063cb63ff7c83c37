"""The guard's own settings, made from the configuration."""

from serve.config.guard import GuardConfig
from serve.guard.core import GuardSettings


def settings_of(config: GuardConfig, grammar: str) -> GuardSettings | None:
    """The guard's settings for one model; None if it is off."""
    if config.mode == "off":
        return None
    return GuardSettings(
        mode=config.mode,
        schema=config.schema,
        reruns=config.reruns,
        on_failure=config.on_failure,
        rescue=config.rescue,
        grammar=grammar,
        hold_json=config.hold_json,
    )
