"""The states of one request and its response on the listener."""

import enum


class Upload(enum.Enum):
    """States of the request's body."""

    AWAITED = enum.auto()  # the client sends it after a 100 Continue
    ARRIVING = enum.auto()
    ARRIVED = enum.auto()  # all of it is here; the app has not received the end
    RECEIVED = enum.auto()  # the app has received all of it


class Progress(enum.Enum):
    """States of the response."""

    PENDING = enum.auto()  # the app has not begun it
    STARTED = enum.auto()
    ENDED = enum.auto()
    ABANDONED = enum.auto()  # the client is gone


class Framing(enum.Enum):
    """Marks of the end of the response's body."""

    NO_BODY = enum.auto()
    LENGTH = enum.auto()  # content-length
    CHUNKED = enum.auto()
    UNTIL_CLOSED = enum.auto()


# Bound once: in Python 3.11 `Progress.STARTED` costs 0.1 us more than a global, and every token passes here.
AWAITED, ARRIVING, ARRIVED, RECEIVED = Upload
PENDING, STARTED, ENDED, ABANDONED = Progress
NO_BODY, LENGTH, CHUNKED, UNTIL_CLOSED = Framing
