"""The board: what the page shows, as one JSON document. Pure."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from operator import itemgetter
from typing import Any

from serve.admin.history import HALF_HOUR_S, History, PoolName, PoolTick, Tick, quantile, speculated, tokens_a_step
from serve.shadow.pairs import listing

_CELL = (
    "request_class", "speculative", "status", "held", "by", "why", "since_s", "answers", "clean_rate",
    "bad_rate_at_least", "bad_rate_at_most", "reference",
)  # fmt: skip
_CHANGE = ("at_s", "model", "pool", "request_class", "speculative", "status", "held", "by", "operator", "why")
_MAX_CELLS = 200  # of all pools together, and equally many of each; those in quarantine come first
_MAX_CANDIDATES = 50
_MAX_ROWS = 20  # of anything else
_CANDIDATE = (
    "model", "pool", "request_class", "verdict", "why", "pairs", "candidate_bad", "served_bad", "both_bad",
    "difference", "at_least", "at_most", "served_mean_s", "candidate_mean_s",
)  # fmt: skip
_MAX_WHY = 200


def board(
    snapshots: Mapping[str, Mapping[str, Any]], silent: Collection[str], up: Mapping[str, bool], history: History
) -> dict[str, Any]:
    """Returns the state of the whole cluster. Snapshots are by the names of gateway replicas; silent ones have
    announced themselves and do not answer. `up` says of an engine's URL whether somebody listens there, as far as that
    is known.
    """
    lately = history.window()
    rows = _pools(snapshots.values())
    acceptance = _acceptance(snapshots.values())
    cells = _cells(snapshots.values(), _MAX_CELLS // max(1, len(rows)))
    total = sum(tick.requests for tick in lately.pools.values())
    return {
        "gateways": [
            *({"replica": name, "answers": True} for name in snapshots),
            *({"replica": name, "answers": False} for name in silent),
        ],
        "versions": sorted({snapshot.get("version", "older") for snapshot in snapshots.values()}),
        "policy": _policy(snapshots.values()),
        "window_s": history.window_s,
        "pools": [
            {
                **row,
                **_health(row, engines, up),
                **_numbers(lately.pools.get(name) or PoolTick(), total, history.window_s),
                "acceptance": acceptance.get(name, {}),
                "cells": cells.get(name, []),
            }
            for name, (row, engines) in rows.items()
        ],
        "answers": _answers(history.half_hour()),
        "reruns_lately": max(0, round(lately.reruns)),
        "errors": _errors(lately, history.half_hour()),
        "failures": _newest(snapshot.get("failures", ()) for snapshot in snapshots.values()),
        "unknown_models": _unknown_models(snapshots.values()),
        "counts_usage": any(snapshot.get("counts_usage") for snapshot in snapshots.values()),
        "decisions": _decisions(lately),
        "tenants": _tenants(snapshots.values(), lately),
        "candidates": _candidates(snapshots.values()),
        "changes": _changes(snapshots.values()),
        "reruns": _newest(snapshot["reruns"] for snapshot in snapshots.values()),
        "rerun_content": any(snapshot["rerun_content"] for snapshot in snapshots.values()),
        "history": history.series(),
    }


def _pools(snapshots: Iterable[Mapping[str, Any]]) -> dict[PoolName, tuple[dict[str, Any], set[str]]]:
    """Returns the pools and their engines: slots as any replica knows them, what is held by all together."""
    rows: dict[PoolName, tuple[dict[str, Any], set[str]]] = {}
    for snapshot in snapshots:
        for pool in snapshot["pools"]:
            name = pool["model"], pool["pool"]
            plain = {key: pool[key] for key in ("model", "pool", "kind", "may_sleep", "slots")}
            plain["facts"] = {key: value for key, value in pool.get("facts", {}).items() if value is not None}
            row, engines = rows.setdefault(name, ({**plain, "held": 0, "waiting": 0}, set()))
            row["slots"] = pool["slots"] if row["slots"] is None else row["slots"]
            row["held"] += pool["held"]
            row["waiting"] += pool["waiting"]
            engines |= {engine["url"] for engine in pool["engines"]}
    return rows


def _health(row: Mapping[str, Any], engines: Collection[str], up: Mapping[str, bool]) -> dict[str, Any]:
    running = sum(up.get(url, True) for url in engines)
    if not engines:
        state = "asleep" if row["may_sleep"] else "down"
    else:
        state = "down" if not running else "up" if running == len(engines) else "degraded"
    return {"state": state, "engines": len(engines), "engines_up": running}


def _numbers(tick: PoolTick, total: float, window_s: float) -> dict[str, Any]:
    return {
        "requests_per_s": round(tick.requests / window_s, 2) if window_s else 0.0,
        "error_share": round(tick.errors / tick.requests, 4) if tick.requests else None,
        "traffic_share": round(tick.requests / total, 4) if total else None,
        "engine": _known(
            speculated_share=speculated([tick]),
            tokens_a_step=tokens_a_step([tick]),
            accepted_share=_ratio(tick.engines["accepted"], tick.engines["drafted"]),
            draft_length=_ratio(tick.engines["drafted"], tick.engines["drafts"]),
            tokens_per_s=_ratio(tick.engines["written"], window_s) if tick.engines else None,
            kv_used=tick.gauges.get("kv_used"),
        ),
        "ttft_p50_s": quantile(tick.first_tokens, 0.5),
        "ttft_p95_s": quantile(tick.first_tokens, 0.95),
    }


def _known(**figures: float | None) -> dict[str, float]:
    return {name: value for name, value in figures.items() if value is not None}


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


def _answers(tick: Tick) -> list[dict[str, Any]]:
    """Returns tokens a second of an answer with and without speculation, by model and class."""
    speeds: defaultdict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
    for (model, speculative, kind), speed in tick.answers.items():
        if speed.seconds:
            speeds[model, kind][speculative] = round(speed.tokens / speed.seconds, 1)
            speeds[model, kind][f"{speculative}_tokens"] = round(speed.tokens)
    return [{"model": model, "request_class": kind, **each} for (model, kind), each in sorted(speeds.items())]


def _errors(lately: Tick, half_hour: Tick) -> list[dict[str, Any]]:
    return [
        {"model": model, "status": int(status), "cause": cause, "requests": count,
         "lately": lately.failures[model, status, cause]}
        for (model, status, cause), count in Counter(half_hour.failures).most_common(_MAX_ROWS)
        if count
    ]  # fmt: skip


def _unknown_models(snapshots: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the names that requests asked for and no model has, since the replicas began."""
    names = Counter[str]()
    for snapshot in snapshots:
        names.update(snapshot.get("unknown_models", {}))
    return [{"name": name, "requests": count} for name, count in names.most_common(_MAX_ROWS)]


def _newest(found: Iterable[Iterable[dict[str, Any]]]) -> list[dict[str, Any]]:
    return sorted((each for some in found for each in some), key=lambda each: -each["at_s"])[:_MAX_ROWS]


def _policy(snapshots: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    policies = [snapshot["policy"] for snapshot in snapshots]
    refused = next((policy["refused_update"] for policy in policies if policy["refused_update"]), None)
    return {"digests": sorted({policy["digest"] for policy in policies}), "refused_update": refused}


def drafts_known(snapshots: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns what is known of each pool's drafts by class, which replicas tell each other: of who knows most. It is
    `idle_s` old, the time since an answer was last learned from anywhere.
    """
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    learned = (row for snapshot in snapshots for row in snapshot.get("drafts", ()))
    for row in sorted(learned, key=itemgetter("answers")):
        key = row["model"], row["pool"], row["request_class"]
        ages = (each.get("idle_s", 0.0) for each in (row, rows.get(key, row)))  # none in older versions
        rows[key] = {**row, "idle_s": min((age for age in ages if age is not None), default=None)}
    return [row for _, row in sorted(rows.items())]


def _acceptance(snapshots: Iterable[Mapping[str, Any]]) -> dict[PoolName, dict[str, float]]:
    """Returns tokens per step by pool and class, of those that answers came from within what the page remembers. Where
    these are so few that most of the figure is what was expected, there is none.
    """
    found: defaultdict[PoolName, dict[str, float]] = defaultdict(dict)
    for row in drafts_known(snapshots):
        is_measured = row.get("measured", True)  # older versions do not say
        if is_measured and row["idle_s"] is not None and row["idle_s"] <= HALF_HOUR_S:
            found[row["model"], row["pool"]][row["request_class"]] = round(row["length"], 2)
    return dict(found)


def _cells(snapshots: Iterable[Mapping[str, Any]], most: int) -> dict[PoolName, list[dict[str, Any]]]:
    """Returns the cells of each pool; all replicas share one detector, so one of them has seen it all."""
    found: defaultdict[PoolName, list[dict[str, Any]]] = defaultdict(list)
    known: list[dict[str, Any]] = max((snapshot["cells"] for snapshot in snapshots), key=len, default=[])
    for cell in sorted(known, key=lambda each: (each["status"] != "quarantined", -each["answers"])):
        cells = found[cell["model"], cell["pool"]]
        if len(cells) < most:
            cells.append({**{name: _rough(cell[name]) for name in _CELL}, "why": cell["why"][:_MAX_WHY]})
    return dict(found)


def _rough(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _decisions(tick: Tick) -> list[dict[str, Any]]:
    return [{"reason": reason, "requests": count} for reason, count in Counter(tick.decisions).most_common(_MAX_ROWS)]


def _tenants(snapshots: Iterable[Mapping[str, Any]], tick: Tick) -> list[dict[str, Any]]:
    """Returns the tenants that used most, with their limits: of a month, all replicas say the same."""
    rows: dict[str, dict[str, Any]] = {}
    waiting = Counter[str]()
    for snapshot in snapshots:
        waiting.update(snapshot["queue"])
        for standing in snapshot["tenants"]:
            row = rows.setdefault(standing["tenant"], {"limits": {}, "in_use": 0, "spent": 0})
            row["limits"] = standing["limits"]
            row["in_use"] += standing["in_use"]
            row["spent"] = max(row["spent"], round(standing["spent"]))
    names = {name for name, counts in tick.tenants.items() if counts.total()} | rows.keys() | waiting.keys()
    nothing = Counter[str]()
    used = sorted(names, key=lambda name: (-tick.tenants.get(name, nothing).total(), name))
    return [
        {"tenant": name, **tick.tenants.get(name, nothing), **rows.get(name, {}), "waiting": waiting[name]}
        for name in used[:_MAX_ROWS]
    ]


def _candidates(snapshots: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the verdicts on candidate pools, each over all classes before its classes."""
    rows = listing(row for snapshot in snapshots for row in snapshot.get("shadows", ()))
    return [{name: _rough(row[name]) for name in _CANDIDATE} for row in rows[:_MAX_CANDIDATES]]


def _changes(snapshots: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the last changes of quarantine; all replicas share one detector, so one of them knows them all."""
    known: list[dict[str, Any]] = max((snapshot["changes"] for snapshot in snapshots), key=len, default=[])
    return [
        {**{name: change[name] for name in _CHANGE}, "why": change["why"][:_MAX_WHY]} for change in known[:_MAX_ROWS]
    ]
