"""The probe against simulated engines: clean ones are found clean, broken ones unclean with the right interval."""

import json

import pytest
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from support.sims import engine, serving

from lab.probe.interval import wilson


def options(url, *more):
    return ("probe", "--url", url, "-m", "sim", "--prompts", "weather,chinese", "--shapes", "auto,required", *more)


def test_a_clean_engine_is_found_clean(specgate):
    with engine(num_speculative_tokens=3) as url:
        code, out = specgate(*options(url, "-n", 10, "--json"))
    summary = json.loads(out)
    assert code == 0
    assert len(summary["cells"]) == 8
    assert (summary["total"]["clean"], summary["total"]["n"]) == (80, 80)
    assert summary["total"]["interval"][0] == pytest.approx(wilson(80, 80)[0], abs=1e-3)
    assert summary["total"]["calls"] >= 80


def test_a_faulty_engine_is_found_unclean_with_an_interval_that_holds_the_true_rate(specgate, tmp_path):
    cite = tmp_path / "evidence.yaml"
    with engine(num_speculative_tokens=3, faults={"truncated_string": 0.3}) as url:
        code, out = specgate(*options(url, "-n", 20, "--json", "--evidence", cite))
    total = json.loads(out)["total"]
    assert code == 1
    assert total["n"] == 160
    assert total["interval"][0] < 0.7 < total["interval"][1]
    (entry,) = yaml.safe_load(cite.read_text())
    assert (entry["kind"], entry["clean"], entry["n"]) == ("measured", total["clean"], 160)


def test_a_connection_that_breaks_in_mid_answer_is_a_failed_trial_not_the_end(specgate):
    with engine(faults={"disconnect": 0.5}) as url:
        code, out = specgate(*options(url, "-n", 5, "--json"))
    summary = json.loads(out)
    assert code == 0
    assert summary["total"]["outcomes"]["error"] > 0
    assert summary["total"]["clean"] == summary["total"]["n"] > 0


def test_what_a_guard_refuses_counts_as_broken_and_other_failures_for_nothing(specgate):
    codes = iter([*["integrity_violation"] * 3, *["engine_error"] * 37])

    async def refused(_: Request) -> Response:
        return JSONResponse({"error": {"message": "no", "type": "upstream_error", "code": next(codes)}}, 502)

    routes = [Route("/v1/chat/completions", refused, methods=["POST"])]
    with serving(Starlette(routes=routes)) as url:
        code, out = specgate(*options(url, "-n", 5, "--json"))
        total = json.loads(out)["total"]
    assert code == 1
    assert (total["clean"], total["n"]) == (0, 3)
    assert total["outcomes"] == {"error": 37, "integrity_violation": 3}


def test_an_interrupted_run_resumes(specgate, tmp_path):
    out = tmp_path / "trials.jsonl"
    with engine() as url:
        specgate(*options(url, "-n", 2, "--out", out))
        before = out.read_text()
        out.write_text(before[:-20])
        code, text = specgate(*options(url, "-n", 3, "--out", out, "--json"))
        assert code == 0
        assert json.loads(text)["total"]["n"] == 24
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        assert len({(line["cell"], line["trial"]) for line in lines[1:]}) == len(lines) - 1 == 24
        code, text = specgate(*options(url, "-n", 3, "--out", out, "--temperature", 0))
        assert code == 2
        assert "other settings" in text


def test_an_endpoint_that_does_not_answer_is_wrong_input_and_no_evidence(specgate, tmp_path):
    cited = tmp_path / "evidence.yaml"
    code, text = specgate(*options("http://127.0.0.1:9", "-n", 1, "--evidence", cited))
    assert code == 2
    assert "could be checked" in text
    assert "not checked" in text
    assert "connection" in text.rpartition("could be checked: APIConnectionError: Connection error.")[2].lower()
    assert not cited.exists()


def test_a_url_without_its_scheme_is_told_before_anything_is_sent(specgate):
    code, text = specgate(*options("127.0.0.1:9"))
    assert (code, "127.0.0.1:9 is no URL: it begins with http://" in text) == (2, True)


def test_own_prompts_come_from_a_file(specgate, tmp_path):
    own = tmp_path / "prompts.yaml"
    own.write_text("mine: Say it with a tool.\n")
    with engine() as url:
        run = ("probe", "--url", f"{url}/v1/", "-m", "sim", "--stream", "on", "-n", 1, "--prompts-file", own)
        _, out = specgate(*run, "--json")
        own.write_text("- a list\n")
        assert specgate(*run)[0] == 2
    assert all(cell.startswith("mine ") for cell in json.loads(out)["cells"])


def test_unknown_shapes_and_switches_are_wrong_input(specgate):
    assert specgate("probe", "--url", "http://x", "-m", "m", "--shapes", "nope")[0] == 2
    assert specgate("probe", "--url", "http://x", "-m", "m", "--stream", "maybe")[0] == 2


def recorded(folder):
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    tool = {"type": "function", "function": {"name": "read", "parameters": parameters}}
    file = folder / "set.jsonl"
    requests = [
        {"messages": [{"role": "user", "content": f"Read {n}"}], "tools": [tool], "tool_choice": "required"}
        for n in range(30)
    ]
    file.write_text("".join(json.dumps(each) + "\n" for each in requests))
    return file


def test_a_k2vv_set_gives_the_verifiers_metrics_beside_ours(specgate, tmp_path):
    requests, clean = recorded(tmp_path), tmp_path / "clean.jsonl"
    with engine(num_speculative_tokens=3) as url:
        run = ("probe", "--url", url, "-m", "sim", "--format", "k2vv", requests, "--json")
        code, out = specgate(*run, "--out", clean)
    rows = json.loads(out)["k2vv"]
    assert code == 0
    assert [row["cell"] for row in rows] == ["set.jsonl stream=off", "set.jsonl stream=on"]
    assert {(row["count_finish_reason_tool_calls"], row["schema_accuracy"]) for row in rows} == {(30, 1.0)}
    with engine(num_speculative_tokens=3, faults={"swallowed_call": 0.3, "truncated_string": 0.3}) as url:
        run = ("probe", "--url", url, "-m", "sim", "--format", "k2vv", requests)
        _, out = specgate(*run, "--json", "--reference", clean)
        _, table = specgate(*run, "--reference", clean)
    for row in json.loads(out)["k2vv"]:
        assert row["schema_accuracy"] < 1.0
        assert row["tool_call_precision"] == 1.0
        assert row["tool_call_recall"] < 1.0
    assert "K2-Vendor-Verifier" in table


def test_a_file_and_its_format_come_together(specgate, tmp_path):
    requests = recorded(tmp_path)
    assert specgate("probe", "--url", "http://x", "-m", "m", requests)[0] == 2
    assert specgate("probe", "--url", "http://x", "-m", "m", "--format", "k2vv")[0] == 2
    assert specgate("probe", "--url", "http://x", "-m", "m", "--format", "other", requests)[0] == 2


@pytest.mark.parametrize("stream", ["on", "off"])
@pytest.mark.parametrize(
    ("judge_logprob", "reports", "blamed"), [(-0.1, True, "model"), (-12.0, True, "state"), (-0.1, False, "unknown")]
)
def test_a_judge_is_asked_who_broke_an_answer(specgate, stream, judge_logprob, reports, blamed):
    texts = ["<tool_call>", '{"name": "get_weather"']

    async def chat(request: Request) -> Response:
        body = await request.json()
        assert (body["return_token_ids"], body["logprobs"]) == (True, True)
        content = [{"token": text, "logprob": -0.1, "bytes": [], "top_logprobs": []} for text in texts]
        details = {"token_ids": [7, 8], "logprobs": {"content": content}} if reports else {"logprobs": None}
        reply = {"role": "assistant", "content": "".join(texts)}
        choice = {"index": 0, "finish_reason": "stop", **details}
        head = {"id": "x", "created": 1, "model": "sim", "prompt_token_ids": [1, 2, 3]}
        if not body["stream"]:
            return JSONResponse({**head, "object": "chat.completion", "choices": [{**choice, "message": reply}]})
        chunk = {**head, "object": "chat.completion.chunk", "choices": [{**choice, "delta": reply}]}
        return Response(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", media_type="text/event-stream")

    async def score(request: Request) -> Response:
        body = await request.json()
        assert body["prompt"] == [1, 2, 3, 7, 8]
        scored = [None, *({str(token): {"logprob": judge_logprob, "rank": 9}} for token in body["prompt"][1:])]
        choice = {"index": 0, "text": "", "finish_reason": "length", "logprobs": None, "prompt_logprobs": scored}
        return JSONResponse({"id": "x", "object": "text_completion", "created": 1, "model": "sim", "choices": [choice]})

    routes = [Route("/v1/chat/completions", chat, methods=["POST"]), Route("/v1/completions", score, methods=["POST"])]
    with serving(Starlette(routes=routes)) as url:
        run = options(url, "-n", 1, "--shapes", "auto", "--stream", stream, "--judge", url, "--json")
        code, out = specgate(*run)
    total = json.loads(out)["total"]
    assert (code, total["clean"], total["causes"]) == (1, 0, {blamed: 2})
