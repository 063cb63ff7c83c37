"""What a rate sets aside for a request that others would keep out for ever, because they need less. No I/O."""

_PART = 0.5  # of what flows in, so that nobody else loses more than that
_GRACE_S = 3.0  # after the time that the request was told, for its client to come again


class Saving:
    """What is set aside of one rate, for the largest request that was refused lately.

    Small requests take what has flowed in as soon as it is enough for one of them; without this, it is never enough
    for a larger one. What is set aside stays in the bucket: whoever needs as much may take it, and everybody once the
    request has not come again. So a request passes when half of what flows in would have been enough for it, however
    many smaller ones there are.
    """

    __slots__ = ("_begun_s", "_until_s", "_whole")

    def __init__(self) -> None:
        self._whole = 0.0
        self._begun_s = 0.0
        self._until_s = 0.0

    def kept(self, whole: float, rate_per_s: float, capacity: float, now_s: float) -> float:
        """Returns how much a request must leave in the bucket.

        Args:
            whole: What it reserves; 0 for whoever asks in advance.
            rate_per_s: What flows into the bucket.
            capacity: The bucket's.
            now_s: Monotonic.
        """
        if now_s >= self._until_s or whole >= self._whole:
            return 0.0
        return min(self._whole, capacity, _PART * rate_per_s * (now_s - self._begun_s))

    def refused(self, whole: float, wait_s: float, rate_per_s: float, capacity: float, now_s: float) -> float:
        """Notes that a request was refused; returns the seconds until it will pass.

        Args:
            whole: As of `kept`.
            wait_s: Until it would pass if nobody else took anything.
            rate_per_s: As of `kept`.
            capacity: As of `kept`.
            now_s: As of `kept`.
        """
        is_over = now_s >= self._until_s
        if not is_over and whole < self._whole:
            kept = self.kept(whole, rate_per_s, capacity, now_s)
            wait_s = (wait_s + kept / rate_per_s) / (1 - _PART)
            return min(wait_s, max(self._until_s - now_s, 0.0) + whole / rate_per_s)
        if is_over:
            self._begun_s = now_s
        elif whole == self._whole:  # it has come again, so that others do take what flows in
            wait_s = max(wait_s, self._begun_s + min(whole, capacity) / (_PART * rate_per_s) - now_s)
        self._whole = whole
        self._until_s = now_s + wait_s + _GRACE_S
        return wait_s

    def passed(self, whole: float) -> None:
        """Ends the saving if a request that has passed needed as much."""
        if whole >= self._whole:
            self._whole = self._until_s = 0.0
