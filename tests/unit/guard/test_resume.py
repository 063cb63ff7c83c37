"""Whom a resume asks what the tokens of an answer are."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from policies import Candidate
from serve.errors import EngineError
from serve.guard.resume import Resumes
from serve.proxy.attempts import Ask, Attempts
from serve.proxy.routed_request import RoutedRequest
from serve.request.continuation import CannotResumeError
from serve.telemetry.metrics import Metrics

REQUEST = cast(RoutedRequest, SimpleNamespace())


class Engines:
    """Engines that answer with their pool's name, but for those that fail; keeps how each was left."""

    def __init__(self, *failing: str) -> None:
        self.left: dict[str, type[BaseException] | None] = {}
        self._failing = failing

    @asynccontextmanager
    async def asking(self, _: Any, candidate: Candidate) -> AsyncIterator[Ask]:
        async def ask(path: str, body: bytes) -> bytes:
            if candidate.pool in self._failing:
                raise EngineError("gone")
            return candidate.pool.encode()

        self.left[candidate.pool] = None
        try:
            yield ask
        except BaseException as error:
            self.left[candidate.pool] = type(error)
            raise


async def asked(engines: Engines, *pools: str) -> bytes:
    resumes = Resumes(cast(Attempts, engines), {}, Metrics())
    candidates = [Candidate(pool, opt_out=False, speculative=False) for pool in pools]

    async def work(ask: Ask, _: Candidate) -> bytes:
        return await ask("/detokenize", b"")

    return await resumes.first(REQUEST, candidates, work)


async def test_the_next_engine_is_asked_and_the_pool_learns_that_one_has_failed() -> None:
    engines = Engines("a")
    assert await asked(engines, "a", "b", "c") == b"b"
    assert engines.left == {"a": EngineError, "b": None}


class PanicError(BaseException):
    """Like pyo3's PanicException, which is no Exception."""


@pytest.mark.parametrize("kind", [KeyError, PanicError])
async def test_a_resume_that_our_own_code_fails_at_is_none_and_the_log_quotes_nothing(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    async def make() -> Any:
        raise kind("".join(("sec", "ret")))

    resumes = Resumes(cast(Attempts, Engines()), {}, Metrics())
    request = cast(RoutedRequest, SimpleNamespace(request_id="r1", decision=SimpleNamespace(model="m")))
    assert await resumes.made(request, make(), "rerun") is None
    assert f"a resume failed: {kind.__name__}\n" in caplog.text
    assert "secret" not in caplog.text


async def test_without_an_engine_that_answers_it_can_not_resume() -> None:
    with pytest.raises(CannotResumeError, match="unreachable"):
        await asked(Engines("a", "b"), "a", "b")
    with pytest.raises(CannotResumeError, match="engine"):
        await asked(Engines())
