"""The only error of this package: a policy can't be compiled as written."""


class PolicyError(ValueError):
    """A setting, an override or the advisories' folder is wrong; the message says what to change."""
