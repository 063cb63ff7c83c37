"""The detector's own settings, made from the configuration."""

from serve.config.quarantine import QuarantineConfig
from serve.quarantine.detector import QuarantineSettings


def settings_of(config: QuarantineConfig) -> QuarantineSettings:
    """What the test goes by."""
    return QuarantineSettings(
        alpha=config.alpha,
        margin=config.margin,
        window=config.window,
        return_alpha=config.return_alpha,
        tolerance=config.tolerance,
    )
