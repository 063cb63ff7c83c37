"""Numbers of thousands of digits: a decoder takes quadratic time for each, and holds up everybody meanwhile."""

from __future__ import annotations

_LONG_DIGITS = 500  # a shorter number costs no more than the text that it is
_MOST_DIGITS = 500_000  # of such numbers together; decoding them takes some milliseconds
_STEP = 250
_WINDOW_BYTES = 1024 * 1024  # looked at in one go
_DIGITS = b"0123456789"
_AS_ZEROS = bytes.maketrans(_DIGITS, b"0" * len(_DIGITS))
_RUN = b"0" * _LONG_DIGITS


def has_long_numbers(text: bytes) -> bool:
    """Returns whether a text, which should be JSON, holds more digits in long numbers than any that is meant well.

    Long numbers in strings count too; no model reads that many digits. For most texts every 250th byte tells.
    """
    sample = text[::_STEP]
    if (len(sample) - len(sample.translate(None, _DIGITS))) * _STEP <= _MOST_DIGITS:
        return False
    digits = 0
    for start in range(0, len(text), _WINDOW_BYTES):
        digits += text[start : start + _WINDOW_BYTES].translate(_AS_ZEROS).count(_RUN) * _LONG_DIGITS
        if digits > _MOST_DIGITS:
            return True
    return False
