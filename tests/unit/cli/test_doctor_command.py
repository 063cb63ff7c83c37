"""`specgate doctor -- COMMAND`: an engine's command line instead of a configuration."""

import json

LINE = ("vllm", "serve", "moonshotai/Kimi-K2.6", "--tool-call-parser", "kimi_k2", "--speculative-config")
KNOWN = ("--fact", "engine_version=0.32.0", "--fact", "quantization=none")
ORIGINAL = '{"model":"lightseekorg/kimi-k2.6-eagle3","method":"eagle3","num_speculative_tokens":3}'


def test_a_command_line_is_read_and_what_is_known_against_it_fails(specgate):
    code, out = specgate(
        "doctor", "--json", "--fact", "engine_version=0.32.0", "--fact", "quantization=none", "--", *LINE, ORIGINAL
    )
    report = json.loads(out)
    assert code == 1
    assert report["facts"]["drafter"] == "lightseekorg/kimi-k2.6-eagle3"
    assert report["facts"]["engine_version"] == "0.32.0"
    plain, tools = report["requests"][0], report["requests"][1]
    assert (plain["classes"], plain["allowed"]) == (["plain"], True)
    assert tools["forbidden_by"] == ["kimi-k2.6-original-eagle3-drafter"]
    found = next(each for each in report["findings"] if each["advisory"] == "kimi-k2.6-original-eagle3-drafter")
    assert any("eagle3-mla" in cure for cure in found["cures"])


def test_facts_are_shown_to_people_as_known_or_unknown(specgate):
    code, out = specgate("doctor", "--", *LINE, ORIGINAL)
    assert code == 1
    assert "unknown" in out
    assert "kimi-k2.6-original-eagle3-drafter" in out


def test_an_engine_without_drafts_has_nothing_against_it(specgate):
    code, out = specgate("doctor", "--fact", "engine_version=0.33.0", "--", *LINE[:3])
    assert code == 0
    assert "it does not speculate" in out


def test_seats_that_no_graph_holds_are_a_warning_here_too(specgate):
    _, out = specgate("doctor", "--json", "--", *LINE, ORIGINAL, "--max-num-seqs", "256")
    assert any("largest CUDA graph" in each["message"] for each in json.loads(out)["findings"])


def test_what_is_only_suspected_is_said_as_well(specgate):
    line = ("--fact", "engine_version=0.33.0", "--", *LINE[:3])
    _, out = specgate("doctor", "--json", *line)
    report = json.loads(out)
    warned = {name for row in report["requests"] for name in row["warned_by"]}
    assert "auto-tools-with-response-format" in warned
    assert warned <= {each["advisory"] for each in report["findings"] if each["level"] == "warning"}
    _, out = specgate("doctor", *line)
    assert "auto-tools-with-response-format" in out


def test_wrong_input_says_what_to_do(specgate, kimi):
    for words, says in (
        ((), "give either --config FILE"),
        (("--config", kimi(), "--", "vllm", "serve", "m"), "give either --config FILE"),
        (("--config", kimi(), "--fact", "a=b"), "--fact goes with a command line"),
        (("--", "trtllm-serve", "m"), "no engine in the command line"),
        (("--fact", "engine_version", "--", *LINE[:3]), "write NAME=VALUE"),
        (("--fact", "colour=red", "--", *LINE[:3]), "unknown facts"),
        (("--fact", "drafter=[x", "--", *LINE[:3]), "the fact drafter can't be read"),
        (("--fact", "settings=5", "--fact", "settings.page_size=1", "--", *LINE[:3]), "a mapping of names"),
    ):
        code, out = specgate("doctor", *words)
        assert code == 2, words
        assert says in out.replace("\n", " "), (words, out)


def test_the_options_of_a_file_count_where_it_is_and_are_said_to_be_unknown_where_it_is_not(specgate, tmp_path):
    file = tmp_path / "engine.yaml"
    line = ("doctor", "--json", "--", "vllm", "serve", "Qwen/Qwen3-8B", "--config", str(file))
    report = json.loads(specgate(*line)[1])
    assert report["facts"]["method"] == "unknown"
    assert any(str(file) in each["message"] for each in report["findings"])
    file.write_text("tool-call-parser: hermes\n")
    report = json.loads(specgate(*line)[1])
    assert (report["facts"]["method"], report["facts"]["tool_parser"]) == (None, "hermes")
    assert not any(str(file) in each["message"] for each in report["findings"])
