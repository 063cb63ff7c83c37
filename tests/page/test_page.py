"""What operators see and do on the page; `make test-page`."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import fastapi
import pytest
from support.admin_api import admin_before
from support.page import NARROW, POOL, WIDE, ask_with_tools, by_key, gateway, needs_browser, tab

pytestmark = needs_browser
HOSTILE = "<img src=x onerror=alert(1)>"


async def test_it_loads_without_any_other_host_and_shows_the_pools() -> None:
    async with gateway() as (ports, _), tab(ports.admin_api) as opened:
        await opened.until(f"{POOL}?.dataset.state === 'up'")
        text = await opened.text()
        assert "m / speculative" in text
        assert "● up" in text, "not by colour alone"
        assert opened.foreign == []
        assert opened.problems == []


async def test_a_pool_that_dies_turns_red_within_four_seconds() -> None:
    async with gateway() as (ports, engine), tab(ports.admin_api) as opened:
        await opened.until(f"{POOL}?.dataset.state === 'up'")
        await engine.stop()
        await opened.until(f"{POOL}.dataset.state === 'down'", timeout_s=4)
        assert "✕ down" in await opened.text()
        colour = await opened.page.evaluate(f"getComputedStyle({POOL}).borderLeftColor")
        red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
        assert red > 2 * max(green, blue)


def question(name: str) -> str:
    return f"document.querySelector('[data-question={json.dumps(name)}]')"


async def test_eight_questions_are_answered_at_a_glance_and_lead_to_more() -> None:
    async with gateway() as (ports, _), tab(ports.admin_api) as opened:
        await opened.until(f"{question('Health')}?.innerText.includes('2 pools up')")
        await opened.until(f"{question('Correctness')}.innerText.includes('0 reruns in a minute')")
        order = {"action": "quarantine", "model": "m", "pool": "standard", "request_class": "tools_auto"}
        async with aiohttp.ClientSession() as session:
            await session.post(f"{ports.admin_api}/admin/v1/quarantine", json={**order, "reason": "incident 17"})
        for _ in range(4):
            await ask_with_tools(ports.data, stream=True)
        await opened.until(f"{question('Correctness')}.innerText.includes('✕ 1 class in quarantine')")
        assert await opened.page.evaluate("document.querySelector('.pool').dataset.pool") == "m/standard", "it is first"
        await opened.until(f"/first token in \\d/.test({question('Latency')}.innerText)")
        await opened.until(f"{question('Routing')}.innerText.includes('first choice')")
        await opened.until(f"{question('Tenants')}.innerText.includes('most used by default')")
        tones = await opened.page.evaluate(
            "[...document.querySelectorAll('.glance a[data-question]')].map((each) => each.dataset.tone)"
        )
        assert tones[:2] == ["good", "good"]
        for link in await opened.page.locator(".glance a[data-question]").all():
            assert await opened.page.locator(str(await link.get_attribute("href"))).count() == 1
        assert opened.problems == []


async def test_speculation_shows_without_any_setting() -> None:
    async with gateway() as (ports, _), tab(ports.admin_api) as opened:
        await opened.until(f"{POOL} !== null")
        table = "document.querySelector('#speculation').innerText"

        for number in range(6):
            await ask_with_tools(ports.data, stream=number % 2 == 0)
        await opened.until(f"/speculative\\s+sim\\s+100.0/.test({table})")
        await opened.until(f"/[0-9] tokens a step/.test({question('Speculation')}.innerText)")
        await opened.until(f"/tools_forced[^\\n]*\\d/.test({table})")
        assert opened.problems == []


async def test_requests_for_a_model_that_is_not_there_show_with_the_name_and_can_be_looked_up() -> None:
    async with gateway() as (ports, _), tab(ports.admin_api) as opened:
        await opened.until(f"{POOL} !== null")
        body = {"model": HOSTILE, "messages": [{"role": "user", "content": "x"}]}

        async with aiohttp.ClientSession() as session:
            for _ in range(3):
                async with session.post(f"{ports.data}/v1/chat/completions", json=body) as response:
                    request_id = response.headers["x-request-id"]
        await opened.until(f"{question('Errors')}.innerText.includes('3 refused')")
        await opened.until("document.querySelector('#errors').innerText.includes('model_not_found')")
        assert HOSTILE in await opened.page.inner_text("#errors")
        await opened.page.fill("input[name=request_id]", request_id)
        await opened.page.keyboard.press("Enter")
        await opened.until("document.querySelector('[data-found]')?.innerText.includes('404 model_not_found')")
        await opened.page.fill("input[name=request_id]", "no-such-request")
        await opened.page.keyboard.press("Enter")
        await opened.until(
            "document.querySelector('#request .bad')?.innerText.includes('No gateway replica remembers')"
        )
        await opened.page.locator(".tile .runbook").first.click()
        await opened.until("document.querySelector('[data-runbook=SpecgateErrorsFast]') !== null")


async def test_what_is_empty_is_folded_and_says_so() -> None:
    async with gateway() as (ports, _), tab(ports.admin_api) as opened:
        await opened.until(f"{POOL} !== null")
        for place in ("errors", "quarantine", "candidates", "reruns", "decisions", "audit"):
            assert not await opened.page.evaluate(f"document.querySelector('#{place}').open"), place
        assert "none in half an hour" in await opened.text()


async def test_a_candidate_has_its_verdict_with_the_pairs_and_bounds_that_it_rests_on() -> None:
    async with gateway(candidate=True) as (ports, _), tab(ports.admin_api) as opened:
        for _ in range(3):
            await ask_with_tools(ports.data)
        rows = "document.querySelector('#candidates')?.innerText"
        await opened.until(f"/m . candidate\\s+all\\s+○ not yet\\s+3\\s.*%.*%.*%/.test({rows})")
        assert "tools_forced" in await opened.page.inner_text("#candidates")
        assert opened.problems == []


async def test_a_door_that_no_gateway_answers_is_not_well() -> None:
    async with admin_before() as ports, tab(ports.admin_api) as opened:
        await opened.until(f"{question('Health')}?.dataset.tone === 'bad'")
        assert "✕ no gateway replica answers" in await opened.text()
        assert await opened.page.locator("header .bad").count() == 1


async def test_a_rerun_appears_and_what_a_client_named_stays_text() -> None:
    async with gateway() as (ports, _), tab(ports.admin_api) as opened:
        await opened.until(f"{POOL} !== null")
        for _ in range(10):
            await ask_with_tools(ports.data, HOSTILE)
        await opened.until("document.body.innerText.includes('unknown_tool')")
        await opened.page.fill("textarea[name=body]", json.dumps({"model": HOSTILE, "messages": []}))
        await opened.page.click("text=Explain")
        await opened.until(f"document.body.innerText.includes({json.dumps(HOSTILE)})")
        assert await opened.page.evaluate("document.querySelectorAll('#app img').length") == 0
        await asyncio.sleep(0.2)
        assert [each for each in opened.problems if "400" not in each and "404" not in each] == []


async def test_a_rerun_opens_its_texts_to_a_key_with_content_alone(tmp_path: Path) -> None:
    async with gateway(content=True, authenticate=by_key, audit=tmp_path) as (ports, _):
        for _ in range(6):
            await ask_with_tools(ports.data, HOSTILE)
        async with tab(ports.admin_api, key="looks") as opened:
            await opened.until("document.body.innerText.includes('unknown_tool')")
            assert "this key lacks the scope content" in await opened.text()
            assert await opened.page.locator("[data-read]").count() == 0
        assert lines_of(tmp_path) == []
        async with tab(ports.admin_api, key="all") as opened:
            await opened.until("document.querySelector('[data-read]') !== null")
            await opened.page.locator("[data-read]").first.click()
            await opened.until("document.querySelectorAll('pre.text').length === 3")
            texts = await opened.page.locator("pre.text").all_inner_texts()
            assert all("tool_calls" in text for text in texts)
            assert "onerror" in texts[-1]
            assert await opened.page.evaluate("document.querySelectorAll('#app img').length") == 0
            assert "content.read" in [line["action"] for line in lines_of(tmp_path)]
            await opened.until("document.body.innerText.includes('content.read')")
            assert opened.problems == []


async def test_each_tenant_shows_what_it_may_use_beside_what_it_uses() -> None:
    async with gateway() as (ports, _), tab(ports.admin_api) as opened:
        await opened.until(f"{POOL} !== null")
        for _ in range(6):
            await ask_with_tools(ports.data)
        tenant = "document.querySelector('[data-tenant=default]')"
        await opened.until(f"/[1-9]\\d* of 600, \\d+\\s%/.test({tenant}?.innerText)")
        text = await opened.page.locator("[data-tenant=default]").inner_text()
        assert "of 100 k" in text
        assert "of 50 M" in text
        assert opened.problems == []


@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
async def test_the_playground_tells_the_decision_each_reason_and_what_would_change_it(api: str) -> None:
    async with gateway() as (ports, _), tab(ports.admin_api) as opened:
        await opened.until(f"{POOL} !== null")
        order = {"action": "quarantine", "model": "m", "pool": "speculative", "request_class": "tools_auto"}
        async with aiohttp.ClientSession() as session:
            await session.post(f"{ports.admin_api}/admin/v1/quarantine", json={**order, "reason": "incident 17"})
        await opened.page.select_option("select", api)
        await opened.page.get_by_text("Sample body").click()
        await opened.page.get_by_text("Explain", exact=True).click()
        await opened.until("document.querySelector('[data-decision]') !== null")
        reply = await opened.page.locator("[data-decision]").inner_text()
        assert "m / standard, speculation off" in reply
        assert "tools_auto" in reply
        assert "quarantine" in reply
        assert "incident 17" in reply
        assert "What would change it" in reply
        assert opened.problems == []


async def test_a_body_that_is_none_is_told_and_not_decided() -> None:
    async with gateway() as (ports, _), tab(ports.admin_api) as opened:
        await opened.until(f"{POOL} !== null")
        await opened.page.fill("textarea[name=body]", "{nonsense")
        await opened.page.get_by_text("Explain", exact=True).click()
        await opened.until("document.querySelector('form + [aria-live] .bad') !== null")
        assert await opened.page.locator("[data-decision]").count() == 0


async def test_an_operator_quarantines_by_button_and_the_audit_log_has_a_line(tmp_path: Path) -> None:
    async with gateway(audit=tmp_path) as (ports, _), tab(ports.admin_api) as opened:
        await opened.until(f"{POOL} !== null")
        pool = opened.page.locator("[data-pool='m/speculative']")
        await pool.get_by_text("Quarantine a class of requests").click()
        await pool.locator("input[name=reason]").fill("incident 17")
        await opened.page.keyboard.press("Enter")
        await opened.until(f"{POOL}.innerText.includes('in quarantine by an operator')")
        await opened.until("document.body.innerText.includes('quarantine.quarantine')")
        assert opened.problems == []
        (line,) = lines_of(tmp_path)
        assert (line["action"], line["object"], line["reason"]) == (
            "quarantine.quarantine", "m/speculative tools_auto", "incident 17",
        )  # fmt: skip
        await pool.locator("button[data-action=lift]").first.click()
        await pool.locator(".cells input[name=reason]").fill("mended")
        await opened.page.keyboard.press("Enter")
        await opened.until(f"{POOL}.textContent.includes('in service')")
        await opened.until("document.querySelectorAll('.timeline li').length === 2")
        back, out = await opened.page.locator(".timeline li").all_inner_texts()
        assert "● back in" in back
        assert "by operator anonymous: mended" in back
        assert "✕ taken out" in out
        assert "by operator anonymous: incident 17" in out


async def test_without_a_key_it_asks_for_one_and_a_wrong_one_is_told() -> None:
    async with gateway(authenticate=by_key) as (ports, _), tab(ports.admin_api) as opened:
        await opened.until("document.querySelector('input[name=key]') !== null")
        await opened.page.fill("input[name=key]", "wrong")
        await opened.page.keyboard.press("Enter")
        await opened.until("document.body.innerText.includes('not valid here')")
        await opened.page.fill("input[name=key]", "all")
        await opened.page.keyboard.press("Enter")
        await opened.until(f"{POOL} !== null")
        assert "all" not in opened.page.url
        assert await opened.page.evaluate("document.cookie") == ""


async def test_a_key_without_the_scope_sees_no_buttons_of_operators() -> None:
    async with gateway(authenticate=by_key) as (ports, _), tab(ports.admin_api, key="looks") as opened:
        await opened.until(f"{POOL} !== null")
        assert "Quarantine a class" not in await opened.text()
        assert await opened.page.locator("[data-action]").count() == 0


async def test_a_key_that_may_not_look_is_told_so_once_and_another_one_may_be_entered(tmp_path: Path) -> None:
    def refusals() -> int:
        return "".join(path.read_text() for path in tmp_path.glob("*.jsonl")).count('"refused"')

    how = {"authenticate": by_key, "audit": tmp_path}
    async with gateway(**how) as (ports, _), tab(ports.admin_api, key="asks") as opened:
        await opened.until("document.body.innerText.includes('scope')")
        first = refusals()
        await asyncio.sleep(2.5)  # the page would have looked again
        assert (first, refusals()) == (1, 1)
        await opened.page.fill("input[name=key]", "looks")
        await opened.page.keyboard.press("Enter")
        await opened.until(f"{POOL} !== null")


async def test_a_share_that_is_not_quite_none_or_all_does_not_look_like_it() -> None:
    shares = "[0, 0.0004, 0.5, 0.9996, 1, null]"
    async with gateway() as (ports, _), tab(ports.admin_api) as opened:
        reply = await opened.page.evaluate(
            f"import('/page/format.js').then(({{ percent }}) => {shares}.map((share) => percent(share)))"
        )
    assert reply == ["0.0\xa0%", "<0.1\xa0%", "50.0\xa0%", ">99.9\xa0%", "100.0\xa0%", "–"]


@pytest.mark.parametrize("size", [NARROW, WIDE], ids=["narrow", "wide"])
@pytest.mark.parametrize("pools", [0, 50])
async def test_it_fits_the_screen_with_any_number_of_pools(pools: int, size: dict[str, int]) -> None:
    async with admin_before(*([seeing(pools)] if pools else [])) as ports, tab(ports.admin_api, size) as opened:
        await opened.until("document.querySelector('h2') !== null")
        await opened.until(f"document.querySelectorAll('[data-pool]').length === {pools}")
        assert await opened.page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        assert opened.problems == []


async def test_everything_can_be_reached_with_the_keyboard() -> None:
    async with gateway() as (ports, _), tab(ports.admin_api) as opened:
        await opened.until(f"{POOL} !== null")
        reached = set()
        for _ in range(30):
            await opened.page.keyboard.press("Tab")
            reached.add(await opened.page.evaluate("document.activeElement.tagName"))
        assert {"SUMMARY", "SELECT", "BUTTON", "TEXTAREA"} <= reached


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def seeing(pools: int) -> fastapi.FastAPI:
    """A gateway replica that sees so many pools, each with cells."""
    app = fastapi.FastAPI()
    cell: dict[str, Any] = {
        "request_class": "tools_auto+strict", "speculative": True, "status": "open", "held": False, "by": "",
        "why": "", "since_s": 0.0, "answers": 200, "clean_rate": 0.98, "bad_rate_at_least": 0.01,
        "bad_rate_at_most": 0.05, "reference": False,
    }  # fmt: skip
    names = [(f"a-model-with-a-rather-long-name-{number}", "speculative") for number in range(pools)]
    row = {"kind": "remote", "may_sleep": False, "slots": 256, "held": 12, "waiting": 3, "engines": []}
    snapshot = {
        "policy": {"digest": "0123456789abcdef", "refused_update": None},
        "pools": [{"model": model, "pool": pool, **row} for model, pool in names],
        "cells": [
            {**cell, "model": model, "pool": pool, "request_class": kind}
            for model, pool in names
            for kind in ("tools_auto", "tools_forced", "json_schema", "tools_auto+strict")
        ],
        "changes": [],
        "reruns": [],
        "rerun_content": False,
        "tenants": [],
        "queue": {},
        "samples": [],
    }
    app.add_api_route("/admin/v1/snapshot", _returning(snapshot))
    return app


def _returning(value: Any) -> Callable[[], Any]:
    return lambda: value
