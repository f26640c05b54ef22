"""The replay: iteration-level continuous batching over a real allocator, measured every step.

Step `t`: retire, arrive, decode, admit, measure. A request is its index in the trace, which is
also its sequence id. What a request stores follows from when it was admitted, so that a decode
step costs one `append` and one look at the free count for each running request, and no more.

What is reserved and free is the allocator's own word: the free count at every step, and what a
sequence holds whenever an operation on it changed that count.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from typing import TypeAlias

from kvimpls.waste.requests import Trace, WasteError
from kvimpls.waste.result import Result, Tally
from kvimpls.waste.schemes import Pool, Scheme
from kvspec import OutOfBlocks

Watch: TypeAlias = Callable[["Replay"], None]
"""Called at the end of every step that is not idle, to look and not to touch."""


class AccountingError(WasteError):
    """The allocator's account and the replay's differ: a fault of one of them."""


def replay(
    trace: Trace,
    scheme: Scheme,
    capacity: int,
    *,
    arrivals: Sequence[int] | None = None,
    watch: Watch | None = None,
) -> Result:
    """Serve all requests of `trace` from `capacity` tokens, and give what was measured.

    `arrivals` has the step at which each request arrives; without it all do at step 0, in
    file order. Raises `WasteError` if the capacity gives the scheme no room at all, and
    `AccountingError` if stored, future, internal and free ever fail to add up to the capacity.

    >>> from kvimpls.waste.schemes import parse_schemes
    >>> trace = Trace("example", "arxiv", prompts=(3, 5, 4, 6, 2), outputs=(2, 4, 1, 3, 6))
    >>> [oracle] = parse_schemes("oracle:ff")
    >>> result = replay(trace, oracle, 24)
    >>> result.total.steps, result.total.stored, result.total.reserved, result.peak
    (13, 121, 162, 3)
    """
    run = Replay(trace, scheme, capacity, arrivals)
    while run.step():
        if watch is not None:
            watch(run)
    return run.result()


class Replay:
    """A replay in progress. The attributes are for a `Watch` to read, at the end of a step.

    `stored`, `covered` (reserved up to the final lengths) and `internal` are tokens, for all
    running requests together; `running` is in the order of admission.
    """

    def __init__(
        self, trace: Trace, scheme: Scheme, capacity: int, arrivals: Sequence[int] | None = None
    ) -> None:
        geometry = scheme.geometry(capacity)
        self.scheme = scheme
        self.capacity = capacity
        self.pool: Pool = scheme.make(geometry)
        self.time = -1
        self.running: list[int] = []
        self.queue: deque[int] = deque()
        self.stored = self.covered = self.internal = 0
        self.free = capacity
        self.rejected = self.served = 0
        self.preempted = self.recomputed = self.relocated = self.peak = 0
        self._usable = geometry.capacity
        self._finals = [p + o for p, o in zip(trace.prompts, trace.outputs, strict=True)]
        self._prompts = list(trace.prompts)  # longer after a preemption, by what was generated
        self._admitted = [0] * len(trace)  # the step of the last admission
        self._reserved = [0] * len(trace)
        self._endings: dict[int, list[int]] = {}  # step -> who is retired in it
        self._arrivals = [0] * len(trace) if arrivals is None else arrivals
        self._coming = deque(sorted(range(len(trace)), key=self._arrivals.__getitem__))
        self._total = Tally()
        self._window = Tally()

    def step(self) -> bool:
        """Do the next step; `False`, and nothing is done, if every request has been retired."""
        if not (self.running or self.queue or self._coming):
            return False
        self._pass_idle_steps()
        self.time += 1
        self._retire()
        self._arrive()
        preempted = self.preempted
        self._decode()
        refused = self.preempted == preempted and self._admit()
        self._measure(refused)
        return True

    def result(self) -> Result:
        """What was measured so far."""
        return Result(
            scheme=self.scheme.name,
            capacity=self.capacity,
            contiguous=self.scheme.contiguous,
            served=self.served,
            rejected=self.rejected,
            total=copy(self._total),
            window=copy(self._window),
            peak=self.peak,
            preempted=self.preempted,
            recomputed=self.recomputed,
            relocated=self.relocated,
        )

    def length(self, seq: int) -> int:
        """The tokens that a running request stores, at the end of a step."""
        return self._prompts[seq] + self.time - self._admitted[seq]

    def reserved(self, seq: int) -> int:
        """The tokens that a running request reserves."""
        return self._reserved[seq]

    @property
    def future(self) -> int:
        """Tokens reserved, not filled yet, and going to be."""
        return self.covered - self.stored

    # The parts of a step.

    def _pass_idle_steps(self) -> None:
        """Count the steps before the next arrival, in which the pool is empty."""
        if self.running or self.queue:
            return
        idle = self._arrivals[self._coming[0]] - self.time - 1
        if idle > 0:
            self.time += idle
            self._count(idle, unplaced=0)

    def _retire(self) -> None:
        ended = self._endings.pop(self.time, None)
        if ended is None:
            return
        for seq in ended:
            if self.scheme.reserved(self.pool, seq) != self._reserved[seq]:
                raise AccountingError(
                    f"{self.scheme.name}: what request {seq} reserves changed unseen"
                )
            self.stored -= self._finals[seq]
            self._let_go(seq)
        self.served += len(ended)
        gone = set(ended)
        self.running = [seq for seq in self.running if seq not in gone]

    def _arrive(self) -> None:
        coming, arrivals, scheme = self._coming, self._arrivals, self.scheme
        while coming and arrivals[coming[0]] <= self.time:
            seq = coming.popleft()
            if scheme.servable(self._prompts[seq], self._finals[seq], self.capacity):
                self.queue.append(seq)
            else:
                self.rejected += 1

    def _decode(self) -> None:
        """A token for each running request, oldest first; the newest make room if they must."""
        append, count_free = self.pool.append, self.pool.num_free_blocks
        free = count_free()
        for seq in self.running:  # whoever is preempted is taken from its end meanwhile
            try:
                copies = append(seq, 1)
            except OutOfBlocks:
                copies, free = self._preempt_for(seq), -1
                if copies is None:
                    break  # it was the newest itself
            if copies:
                self.relocated += sum(1 for _ in copies) * self.scheme.block_size
            now = count_free()
            if now != free:
                free = now
                self._account(seq, self.scheme.reserved(self.pool, seq))
        # Those that are left have appended: they are older than all who were preempted.
        self.stored += len(self.running)

    def _preempt_for(self, seq: int) -> Iterable[tuple[int, int]] | None:
        """Preempt the newest until `seq` has its token: its copies; `None` if it went itself."""
        while True:
            newest = self.running.pop()
            self._preempt(newest)
            if newest == seq:
                return None
            with suppress(OutOfBlocks):
                return self.pool.append(seq, 1) or ()

    def _preempt(self, seq: int) -> None:
        """Free `seq` whole, without this step's token, and put it at the head of the queue."""
        length = self._prompts[seq] + self.time - 1 - self._admitted[seq]
        self._endings[self._ending(seq)].remove(seq)
        self._let_go(seq)
        self._prompts[seq] = length
        self.stored -= length
        self.preempted += 1
        self.recomputed += length
        self.queue.appendleft(seq)

    def _admit(self) -> bool:
        """Admit from the head of the queue while it fits; whether the head was then refused."""
        while self.queue:
            seq = self.queue[0]
            length, final = self._prompts[seq], self._finals[seq]
            try:
                self.pool.allocate(seq, length, limit=final if self.scheme.told else None)
            except OutOfBlocks:
                if self.running:
                    return True
                # Not even alone: a restart may ask for more than the pool has.
                self.rejected += 1
                self.queue.popleft()
                continue
            self.queue.popleft()
            self.running.append(seq)
            self._admitted[seq] = self.time
            self._endings.setdefault(self._ending(seq), []).append(seq)
            self.stored += length
            self._account(seq, self.scheme.reserved(self.pool, seq))
            if self._reserved[seq] != self.scheme.demand(length, final):
                raise AccountingError(
                    f"{self.scheme.name}: request {seq} got {self._reserved[seq]} tokens, "
                    f"not {self.scheme.demand(length, final)}"
                )
        return False

    def _measure(self, refused: bool) -> None:
        scheme, head = self.scheme, self.queue[0] if self.queue else None
        free_blocks = self.pool.num_free_blocks()
        self.free = self.capacity - self._usable + free_blocks * scheme.block_size
        if self.covered + self.internal + self.free != self.capacity:
            raise AccountingError(
                f"{scheme.name}, step {self.time}: stored {self.stored}, future {self.future}, "
                f"internal {self.internal} and free {self.free} are not {self.capacity} tokens"
            )
        unplaced = 0
        if refused and head is not None:
            demand = scheme.demand(self._prompts[head], self._finals[head])
            unplaced = self.free if demand <= self.free else 0
        self._count(1, unplaced)
        self.peak = max(self.peak, len(self.running))
        if head is not None:
            self._window = copy(self._total)

    # The account.

    def _count(self, steps: int, unplaced: int) -> None:
        """Add so many steps like this one to the sums."""
        total = self._total
        total.steps += steps
        total.stored += steps * self.stored
        total.future += steps * self.future
        total.internal += steps * self.internal
        total.free += steps * self.free
        total.running += steps * len(self.running)
        total.unplaced += unplaced
        if self.scheme.contiguous and self.free:
            hole: int = self.pool.largest_hole()  # type: ignore[attr-defined]  # contiguous pools have it
            total.index_sum += steps * (1 - hole / self.free)
            total.index_steps += steps

    def _ending(self, seq: int) -> int:
        """The step in which `seq` is retired, if it is not preempted."""
        return self._admitted[seq] + self._finals[seq] - self._prompts[seq] + 1

    def _let_go(self, seq: int) -> None:
        self.pool.free(seq)
        self._account(seq, 0)

    def _account(self, seq: int, reserved: int) -> None:
        """`seq` reserves so much now."""
        final, before = self._finals[seq], self._reserved[seq]
        self.covered += min(reserved, final) - min(before, final)
        self.internal += max(0, reserved - final) - max(0, before - final)
        self._reserved[seq] = reserved
