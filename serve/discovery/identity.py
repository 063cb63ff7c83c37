"""The identity of an engine over time: whether it is still what its pool's facts say. Pure."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from policies.facts import UNKNOWN, common, method_of
from serve.discovery.reading import EngineMetrics, Findings, facts_of, is_same

_VERSION = "engine_version"
_SAME = ("served_names", "root", "max_model_len", "speculates", "draft_length")  # beside the facts
_MOST_ASKED = 32
PERIOD_S = 5.0
AGAIN_S = 1.0  # while an engine is away: it may come back as another one
ASK_PERIOD_S = 30.0  # of an engine whose metrics would not show a restart; to ask it takes five requests
NOTHING_KNOWN: dict[str, Any] = {"method": UNKNOWN}


class EngineIdentity:
    """One engine. One that came while its pool was serving is new, and has to be asked first.

    Attributes:
        facts: What holds now; None while it has to be asked what it is, and may not be used.
        told: What has happened, for the log; empty if nothing has.
        is_fresh: When it was looked at last, it was another process than before, so that its cache is empty. One that
            does not tell when it was started is taken for another when it was away.
    """

    def __init__(self, stated: Mapping[str, Any], *, is_new: bool = False) -> None:
        self.facts: Mapping[str, Any] | None = None if is_new else stated
        self.told = ""
        self.is_fresh = False
        self._away = False
        self._stated = stated
        self._first: Mapping[str, Any] | None = None
        self._asked: list[EngineMetrics] = []  # those of processes that were asked, the last one last
        self._verdict: Mapping[str, Any] | None = None
        self._in_doubt = False
        self._is_silent = False  # it has told more: it may not be ready, or not take our key yet
        self._ask_again_s = 0.0  # on the clock of who looks

    @property
    def look_again_s(self) -> float:
        """Seconds until its metrics are worth another look."""
        if self.facts is None:
            return AGAIN_S
        shows_changes = bool(self._asked) and (bool(self._asked[-1].started) or self._asked[-1].drafts is not None)
        return PERIOD_S if shows_changes else ASK_PERIOD_S

    def gone(self) -> None:
        """Notes that nobody listens there: whoever answers next may be another engine."""
        self._away = True
        if self._first is not None:
            self.facts, self._in_doubt = None, True

    def did_not_answer(self) -> None:
        """Notes that it did not answer a request: it may have been restarted."""
        self._ask_again_s = 0.0

    def must_be_asked(self, metrics: EngineMetrics, now_s: float) -> bool:
        """Returns whether an engine has to be asked what it is.

        One that may be another is not used until it has been. One that does not tell when it was started may have been
        restarted unseen, with another version or other settings: it is asked again and again, and used meanwhile. So is
        one that tells less than before.
        """
        is_other = metrics.started not in [each.started for each in self._asked]
        self.is_fresh = bool(self._asked) and (is_other or (self._away and not metrics.started))
        self._away = False
        is_known = metrics in self._asked and not self._in_doubt
        if is_known and ((metrics.started and not self._is_silent) or now_s < self._ask_again_s):
            return False
        if self._asked and not is_known:
            self.facts, self._in_doubt = None, True
        self._asked = [*[each for each in self._asked if each != metrics][-_MOST_ASKED:], metrics]
        self._ask_again_s = now_s + ASK_PERIOD_S
        return True

    def learn(self, metrics: EngineMetrics, findings: Findings) -> None:
        """Takes what an engine has told of itself. Other metrics than a moment ago come from another engine behind the
        URL.
        """
        self.told = ""
        if metrics != self._asked[-1]:
            if self._first is not None and not self._in_doubt:
                self._ask_again_s = 0.0  # nothing was against the one that was to be asked
                return
            findings = {}
        seen = _seen(findings)
        self._is_silent = self._first is not None and not seen.keys() >= self._first.keys()
        restarted, self._in_doubt = self._in_doubt, False
        if self._first is None:
            self._first = seen if findings else None
            self.facts = _corrected(self._stated, findings)
        elif not (differs := {name for name, value in self._first.items() if seen.get(name) != value}):
            self.facts = _corrected(self._stated, findings)
            self.told = "it was away or restarted, and is what it was before" if restarted else self.told
        elif differs == {_VERSION} and _VERSION in seen:
            self.facts = {**_corrected(self._stated, findings), _VERSION: seen[_VERSION]}
            self.told = "it is another version than before"
        else:
            self.facts = facts_of(findings)
            happened = "tells less than before" if self._is_silent else "is another engine than before"
            self.told = f"it {happened}: only what it reports of itself counts"
        if metrics.drafts and _says_none(self.facts):  # whatever the other answers were
            self.facts = {**self.facts, "method": UNKNOWN}
        if self._first in (None, seen) and self.facts != self._stated and not self.told:
            self.told = "it is not what the configuration says"
        if self.facts != self._verdict:
            self._asked, self._verdict = self._asked[-1:], self.facts  # what others had led to holds no longer
        elif not restarted:
            self.told = ""  # it was asked once more, and is what it was


def agreed(identities: Mapping[str, EngineIdentity], stated: Mapping[str, Any]) -> tuple[list[str], Mapping[str, Any]]:
    """Returns the addresses of a pool that may be used, and the facts that hold for all of them.

    An engine that is something else is left out as long as another one is what the configuration says, but for its
    version. Of versions, that of the most engines serves: a pool that is upgraded one by one keeps half of its own.
    """
    facts = {url: identity.facts for url, identity in identities.items() if identity.facts is not None}
    said = {**stated, _VERSION: None}
    true = {url: each.get(_VERSION) for url, each in facts.items() if {**each, _VERSION: None} == said}
    if true:
        count, now = Counter(true.values()), stated.get(_VERSION)
        most = max(count, key=lambda version: (count[version], version == now))
        urls = [url for url, version in true.items() if version == most]
        return urls, stated if most == now else facts[urls[0]]
    return list(facts), NOTHING_KNOWN | common(list(facts.values())) if facts else stated


def _seen(findings: Findings) -> Mapping[str, Any]:
    told = {name: finding.value for name, finding in findings.items() if name in _SAME}
    return {**told, **facts_of(findings)}


def _corrected(stated: Mapping[str, Any], findings: Findings) -> Mapping[str, Any]:
    """Returns stated facts, with those that an engine contradicts as it tells them.

    That it drafts outweighs a statement that it does not; that it does not is no reason to trust it more.
    """
    found = facts_of(findings)
    method = found.pop("method")
    settings = dict(stated.get("settings") or {})
    wrong = {name: value for name, value in found.items() if name in stated and not is_same(name, stated[name], value)}
    wrong.pop("settings", None)
    for name, value in (found.get("settings") or {}).items():
        if name in settings and not is_same(name, settings[name], value):
            wrong["settings"] = {**wrong.get("settings", settings), name: value}
    speculates = findings.get("speculates")
    if speculates is not None and speculates.value and "method" in stated:
        said = method_of(str(stated["method"]))
        if said is None or (method not in ("none", UNKNOWN) and said != method_of(method)):
            wrong["method"] = method
    return {**stated, **wrong} if wrong else stated


def _says_none(facts: Mapping[str, Any]) -> bool:
    return "method" in facts and method_of(str(facts["method"])) is None
