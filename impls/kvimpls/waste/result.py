"""What a replay measured: sums over steps, and the quantities that are made of them."""

from typing import Any

from attrs import asdict, define, frozen


@define
class Tally:
    """Sums over some steps, each measured at its end; tokens, unless said otherwise."""

    steps: int = 0
    stored: int = 0
    future: int = 0
    """Reserved, not filled yet, and going to be."""
    internal: int = 0
    """Reserved beyond the final length."""
    free: int = 0
    running: int = 0
    """Requests."""
    unplaced: int = 0
    """Free tokens in the steps in which the queue's head asked for no more, and had no place."""
    index_sum: float = 0.0
    """The sum of 1 - largest hole / free, over the steps with free tokens."""
    index_steps: int = 0

    @property
    def reserved(self) -> int:
        """The sum of what is reserved."""
        return self.stored + self.future + self.internal

    @property
    def utilisation(self) -> float | None:
        """U_res: what is stored, of what is reserved."""
        return self.stored / self.reserved if self.reserved else None

    @property
    def index(self) -> float | None:
        """The external fragmentation index: a mean over the steps with free tokens."""
        return self.index_sum / self.index_steps if self.index_steps else None

    def as_data(self) -> dict[str, Any]:
        """The sums, for JSON."""
        return {**asdict(self), "reserved": self.reserved}


@frozen
class Shares:
    """Means over the saturated window, as fractions of the capacity; together they are 1."""

    stored: float
    future: float
    internal: float
    free: float


@frozen
class Result:
    """One scheme's replay of one trace with one capacity (tokens).

    `total` is over all steps, `window` over the saturated window: the steps up to the last one
    that ended with a request waiting. Without such a step there is no window, and what is a
    mean over it is `None`.
    """

    scheme: str
    capacity: int
    contiguous: bool
    served: int
    rejected: int
    total: Tally
    window: Tally
    peak: int
    """The most requests that were running at the end of a step."""
    preempted: int
    """Preemptions; a request may be preempted more than once."""
    recomputed: int
    """Tokens that were stored by requests when they were preempted."""
    relocated: int
    """Tokens copied because their extent moved."""

    @property
    def shares(self) -> Shares | None:
        """Where the capacity was, on average."""
        whole = self.capacity * self.window.steps
        if not whole:
            return None
        w = self.window
        return Shares(w.stored / whole, w.future / whole, w.internal / whole, w.free / whole)

    @property
    def concurrency(self) -> float | None:
        """Requests running at the end of a step: the mean over the window."""
        return self.window.running / self.window.steps if self.window.steps else None

    @property
    def fragmentation_index(self) -> float | None:
        """1 - largest hole / free, over all steps with free tokens; only for contiguous schemes."""
        return self.total.index if self.contiguous else None

    @property
    def fragmentation_waste(self) -> float | None:
        """What was free and of no use to the queue's head, as a fraction of the window."""
        whole = self.capacity * self.window.steps
        return self.total.unplaced / whole if whole else None

    def as_data(self) -> dict[str, Any]:
        """The quantities and all the sums that they are made of, for JSON."""
        shares = self.shares
        return {
            "scheme": self.scheme,
            "served": self.served,
            "rejected": self.rejected,
            "steps": self.total.steps,
            "u_res": self.total.utilisation,
            "u_res_window": self.window.utilisation,
            "shares": None if shares is None else asdict(shares),
            "concurrency_mean": self.concurrency,
            "concurrency_peak": self.peak,
            "external_fragmentation_index": self.fragmentation_index,
            "external_fragmentation_waste": self.fragmentation_waste,
            "preempted": self.preempted,
            "recomputed_tokens": self.recomputed,
            "relocated_tokens": self.relocated,
            "total": self.total.as_data(),
            "window": self.window.as_data(),
        }
