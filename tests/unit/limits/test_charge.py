"""What an attempt is said to have used: as its engine told, or as far as it came."""

import pytest
from msgspec import structs
from opentelemetry.trace import INVALID_SPAN

from policies import RequestFeatures
from serve.access.principal import ANONYMOUS
from serve.config.rate_limits import RateLimitsConfig
from serve.limits.accounts import Accounts
from serve.limits.actor import connect
from serve.limits.charge import Charge
from serve.limits.estimate import size_of
from serve.request.completion import parse
from serve.stream.line import Line
from serve.stream.splice import AsItIs, KeptPrefix
from serve.stream.stages import TokenIds

BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
PROMPT = int(len(b"""[{"role":"user","content":"hello"}]""") * 0.3) + 1  # of a byte of text
FRAME = b'data: {"choices":[{"index":0,"delta":{"content":"word"}}]}\n\n'
TOLD = FRAME[:-3] + b',"usage":{"prompt_tokens":%d,"completion_tokens":%d}}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":50,"completion_tokens":7}}\n\n'


def accounts() -> Accounts:
    return Accounts(RateLimitsConfig(), connect(None, None))


async def charge(accounts: Accounts, streamed: bool = True, max_tokens: int = 40) -> Charge:
    size = structs.replace(size_of(BODY, parse(BODY), RequestFeatures("m", stream=streamed)), max_output=max_tokens)
    return await accounts.reserve(ANONYMOUS, "m", "plain", size, [])


@pytest.mark.parametrize(
    ("status", "streamed", "frames", "used"),
    [
        (200, True, FRAME * 7 + USAGE, 50 + 2 * 7),
        (200, True, FRAME * 3, PROMPT + 2 * 3),
        (200, True, FRAME + TOLD % (50, 1) + TOLD % (50, 9) + FRAME, 50 + 2 * 9),
        (200, True, TOLD % (-50, 1), PROMPT + 2),
        (200, True, TOLD % (50, 10**8), 50 + 2 * 40),
        (200, True, TOLD % (10**8, 1), len(BODY) + 32_768 + 2),
        (200, True, FRAME + USAGE.replace(b"prompt", b"total"), PROMPT + 2),
        (200, True, USAGE.replace(b"7", b"100000000"), 50 + 2 * 40),
        (500, True, b"", PROMPT),
        (500, False, b"", PROMPT),
        (0, True, b"", PROMPT),
        (0, False, b"", PROMPT + 2 * 40),
    ],
    ids=[
        "to its end", "until the client left", "left, and told each time", "left, and told nonsense",
        "left, and told more than was asked for", "told more than was asked for",
        "told a longer prompt than was sent", "told no prompt",
        "with an error", "with an error, whole",
        "without an answer", "without an answer that would have come whole",
    ],
)  # fmt: skip
async def test_an_attempt_used_what_its_engine_did_for_it(
    status: int, streamed: bool, frames: bytes, used: float
) -> None:
    charged = await charge(accounts(), streamed)
    meter = charged.attempt("p", False)
    if status:
        meter.status = status
        Line([meter]).feed(frames)
    assert charged.used(meter) == used


def booked(accounts: Accounts) -> tuple[int, int, int]:
    """Input, output and unsettled requests of all that was settled."""
    (sums,) = accounts.tally.take().values()
    return sums.input, sums.output, sums.unsettled


@pytest.mark.parametrize(("streamed", "output"), [(True, 0), (False, 40)])
async def test_a_client_that_leaves_before_the_answer_is_charged_for_what_it_had_an_engine_do(
    streamed: bool, output: int
) -> None:
    """Prefill is work, and an answer that is not streamed may be nearly done: leaving must not make it free."""
    there = accounts()
    charged = await charge(there, streamed)
    charged.attempt("p", False)
    charged.settle(499, INVALID_SPAN)
    assert booked(there) == (PROMPT, output, 1)


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_leaves_is_charged_for_no_attempt_that_was_over(streamed: bool) -> None:
    there = accounts()
    charged = await charge(there, streamed)
    charged.attempt("p", False).lose()
    charged.settle(499, INVALID_SPAN)
    assert booked(there) == (0, 0, 0)


@pytest.mark.parametrize("ids", [None, TokenIds()])
async def test_what_another_engine_goes_on_with_is_estimated_by_its_chunks_behind_what_is_kept(
    ids: TokenIds | None,
) -> None:
    there = accounts()
    charged = await charge(there)
    meter = charged.attempt("p", False, ids, KeptPrefix(AsItIs(), {}, 5, 11))
    meter.status = 200
    Line([meter]).feed(FRAME * 7)
    assert charged.used(meter) == PROMPT + 5 + 2 * 7
    charged.settle(499, INVALID_SPAN)
    assert booked(there) == (PROMPT, 5 + 7, 1)


async def test_an_answer_that_takes_too_long_is_charged() -> None:
    there = accounts()
    charged = await charge(there, streamed=False)
    charged.attempt("p", False)
    charged.given_up = True
    charged.settle(504, INVALID_SPAN)
    assert booked(there) == (PROMPT, 40, 1)


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_an_engine_that_does_not_answer_charges_nobody(status: int) -> None:
    there = accounts()
    charged = await charge(there, streamed=False)
    charged.attempt("p", False)
    charged.settle(status, INVALID_SPAN)
    assert booked(there) == (0, 0, 0)


async def test_a_whole_answer_that_its_engine_broke_off_charges_nobody() -> None:
    there = accounts()
    charged = await charge(there, streamed=False)
    charged.attempt("p", False).status = 200
    charged.settle(502, INVALID_SPAN)
    assert booked(there) == (0, 0, 0)


async def test_a_client_that_leaves_before_its_request_is_sent_is_charged_nothing() -> None:
    there = accounts()
    (await charge(there, streamed=False)).settle(499, INVALID_SPAN)
    assert booked(there) == (0, 0, 0)


async def test_a_client_that_leaves_a_rerun_pays_for_the_rerun_alone() -> None:
    there = accounts()
    charged = await charge(there)
    broken = charged.attempt("p", True)
    broken.status = 200
    Line([broken]).feed(FRAME * 3 + USAGE)
    charged.attempt("q", False)
    charged.settle(499, INVALID_SPAN)
    (sums,) = there.tally.take().values()
    assert (sums.input, sums.output, sums.rerun) == (PROMPT, 0, 57)
