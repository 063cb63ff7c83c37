"""Metrics of many processes: merged into one text in Prometheus' format, and the figures that engines tell. Pure."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from serve.telemetry.metrics import Declared

AUDIT_FAILING = Declared(
    "specgate_audit_log_failing", "gauge", (), "1 while changes are refused because the audit log can't be written"
)
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
# The engines' own metrics of speculation and memory, under the names that each gives them.
# Counters add up over the parts of an engine; of gauges the highest counts.
COUNTERS = {
    "vllm:spec_decode_num_drafts_total": "drafts",
    "vllm:spec_decode_num_draft_tokens_total": "drafted",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted",
    "vllm:generation_tokens_total": "written",
    "sglang:generation_tokens_total": "written",
}
GAUGES = {
    "vllm:kv_cache_usage_perc": "kv_used",
    "vllm:gpu_cache_usage_perc": "kv_used",  # before 0.10
    "sglang:token_usage": "kv_used",
    "sglang:spec_accept_length": "tokens_a_step",
}
_NAMES = (*COUNTERS, *GAUGES)
_SAMPLE = re.compile(rf"({'|'.join(map(re.escape, _NAMES))})(?:\{{.*\}})? ([0-9.eE+-]+)(?: \d+)?")
_MOST = 1e15  # that anything counts up to: an engine of others may tell what no sum can hold


def merge(expositions: Iterable[tuple[Mapping[str, str], str]]) -> str:
    """Returns all samples, grouped by metric as the format demands, each with the labels of its process.

    The texts are not parsed beyond their lines: an engine has hundreds, and a cluster many engines. The labels must be
    none of the process's own.
    """
    families: dict[str, tuple[list[str], list[str]]] = {}
    for labels, text in expositions:
        added = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
        comments: list[str] = []
        samples: list[str] = []
        current = ""
        for line in text.split("\n"):  # values may hold what else ends a line
            if line.startswith("#"):
                _, kind, name, *_ = [*line.split(" ", 3), "", ""]
                if kind not in ("HELP", "TYPE"):
                    continue
                if name != current:
                    current = name
                    comments, samples = families.setdefault(name, ([], []))
                if not any(known.startswith(f"# {kind} ") for known in comments):
                    comments.append(line)
            elif line:
                samples.append(_labelled(line, added))
    lines = (line for comments, samples in families.values() if samples for line in (*comments, *samples))
    return "".join(f"{line}\n" for line in lines)


def exposed(metric: Declared, value: float) -> str:
    """Returns a metric of the admin API's own, in Prometheus' format. It has no labels."""
    head = f"# HELP {metric.name} {metric.description}\n# TYPE {metric.name} {metric.type}\n"
    return f"{head}{metric.name} {float(value)}\n"


def _labelled(sample: str, added: str) -> str:
    """Returns a sample with more labels; braces may stand in the values of those that it has."""
    brace = sample.find("{")
    space = sample.find(" ")
    if brace == -1 or 0 <= space < brace:
        return f"{sample[:space]}{{{added}}}{sample[space:]}"
    separator = "" if sample[brace + 1 :].startswith("}") else ","
    return f"{sample[: brace + 1]}{added}{separator}{sample[brace + 1 :]}"


def figures(exposition: str) -> Mapping[str, float]:
    """Returns the figures in an engine's metrics, as far as it has them."""
    found: defaultdict[str, float] = defaultdict(float)
    for match in map(_SAMPLE.fullmatch, (line for line in exposition.split("\n") if line.startswith(_NAMES))):
        if match is None:
            continue
        name, text = match.groups()
        try:
            value = float(text)
        except ValueError:
            continue
        if not 0 <= value <= _MOST:
            continue
        if name in COUNTERS:
            found[COUNTERS[name]] += value
        else:
            found[GAUGES[name]] = max(found[GAUGES[name]], value)
    return dict(found)
