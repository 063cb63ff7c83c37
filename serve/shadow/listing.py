"""The pairs of all gateway replicas as operators see them: added up, with the verdict. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from serve.shadow.pairs import PairCounts, judge


def listing(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns a row for each candidate, over all classes, and one for each class. Rows are those of `Shadows.view` of
    every replica.
    """
    groups: defaultdict[tuple[str, str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        for name in {"", row["request_class"]}:  # one without pairs has no class
            groups[row["model"], row["pool"], name].append(row)
    return [_row(*key, group) for key, group in sorted(groups.items())]


def _row(model: str, pool: str, request_class: str, group: list[Mapping[str, Any]]) -> dict[str, Any]:
    counts = PairCounts.total(PairCounts(*(row[name] for name in PairCounts._fields)) for row in group)
    outcomes = sum((Counter(row["outcomes"]) for row in group), Counter[str]())
    verdict = judge(counts, group[0]["alpha"], group[0]["tolerance"])
    return {
        "model": model,
        "pool": pool,
        "request_class": request_class or None,
        "verdict": verdict.finding,
        "pairs": counts.pairs,
        **counts._asdict(),
        "difference": verdict.difference,
        "at_least": verdict.at_least,
        "at_most": verdict.at_most,
        "alpha": group[0]["alpha"],
        "tolerance": group[0]["tolerance"],
        "outcomes": dict(outcomes.most_common()),
        "served_mean_s": _mean(group, "served_s", counts.pairs),
        "candidate_mean_s": _mean(group, "candidate_s", counts.pairs),
    }


def _mean(group: list[Mapping[str, Any]], name: str, pairs: int) -> float | None:
    total: float = sum(row[name] for row in group)
    return total / pairs if pairs else None
