"""The definitions again, in the most literal way: the memory is a list with an owner a cell.

It shares nothing with what it checks, and is good for small capacities only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Job:
    number: int
    prompt: int
    final: int
    arrival: int
    stored: int = 0


@dataclass
class Sums:
    steps: int = 0
    stored: int = 0
    reserved: int = 0
    future: int = 0
    internal: int = 0
    free: int = 0
    running: int = 0
    unplaced: int = 0
    index_sum: float = 0.0
    index_steps: int = 0


@dataclass
class Outcome:
    total: Sums = field(default_factory=Sums)
    window: Sums = field(default_factory=Sums)
    served: int = 0
    rejected: int = 0
    preempted: int = 0
    recomputed: int = 0
    relocated: int = 0
    peak: int = 0


def pow2ceil(number: int) -> int:
    power = 1
    while power < number:
        power *= 2
    return power if number > 0 else 0


class Memory:
    """`capacity` cells, and the scheme's rules for them."""

    def __init__(self, scheme: str, capacity: int) -> None:
        self.family, _, self.variant = scheme.partition(":")
        self.cells: list[int | None] = [None] * capacity
        self.capacity = capacity

    def pool(self) -> int:
        """How many cells can be used."""
        if self.family in ("prealloc", "paged"):
            return self.capacity // int(self.variant) * int(self.variant)
        if self.family == "buddy":
            power = 1
            while power * 2 <= self.capacity:
                power *= 2
            return power
        return self.capacity

    def wants(self, length: int, final: int) -> int:
        """What a request of this length asks for when it is admitted."""
        exact, power = final, length + pow2ceil(final - length)
        match self.family, self.variant:
            case "prealloc", size:
                return int(size)
            case "oracle", _:
                return exact
            case "pow2", _:
                return power
            case "ondemand", _:
                return max(length, 1)
            case "growp2", _:
                return pow2ceil(max(length, 1))
            case "buddy", "oracle":
                return pow2ceil(exact)
            case "buddy", _:
                return pow2ceil(power)
            case "paged", size:
                return -(-length // int(size)) * int(size)
        raise AssertionError(self.family)

    def hopeless(self, job: Job) -> bool:
        if self.family == "prealloc" and job.final > int(self.variant):
            return True
        need = max(job.final, self.wants(job.prompt, job.final))
        return need > self.pool()

    def owned(self, owner: int | None) -> list[int]:
        return [cell for cell, who in enumerate(self.cells) if who == owner]

    def holes(self) -> list[tuple[int, int]]:
        """Start and size of every hole that the scheme could hand out as one."""
        if self.family == "buddy":
            return self.buddies()
        found: list[tuple[int, int]] = []
        for cell in self.owned(None):
            if found and sum(found[-1]) == cell:
                found[-1] = (found[-1][0], found[-1][1] + 1)
            else:
                found.append((cell, 1))
        return found

    def buddies(self) -> list[tuple[int, int]]:
        found = []
        start = 0
        while start < self.pool():
            if self.cells[start] is not None:
                start += 1
                continue
            size = 1
            while (
                start % (2 * size) == 0
                and start + 2 * size <= self.pool()
                and all(who is None for who in self.cells[start : start + 2 * size])
            ):
                size *= 2
            found.append((start, size))
            start += size
        return found

    def place(self, size: int) -> int | None:
        """Where `size` cells go, but for paged ones."""
        if self.family == "prealloc":
            starts = range(0, self.pool(), size)
            return next((s for s in starts if self.cells[s] is None), None)
        fitting = [(start, hole) for start, hole in self.holes() if hole >= size]
        if self.variant == "bf":
            fitting.sort(key=lambda found: (found[1], found[0]))
        return fitting[0][0] if fitting else None

    def admit(self, owner: int, length: int, final: int) -> bool:
        size = self.wants(length, final)
        if self.family == "paged":
            return self.take_anywhere(owner, size)
        start = self.place(size)
        if start is None:
            return False
        self.cells[start : start + size] = [owner] * size
        return True

    def take_anywhere(self, owner: int, size: int) -> bool:
        free = self.owned(None)[: max(0, len(self.owned(None)) - (self.capacity - self.pool()))]
        if len(free) < size:
            return False
        for cell in free[:size]:
            self.cells[cell] = owner
        return True

    def grow(self, owner: int, stored: int) -> int | None:
        """Make room for one token more; how many tokens moved, or None if there is no room."""
        mine = self.owned(owner)
        if stored < len(mine):
            return 0
        if self.family == "paged":
            return 0 if self.take_anywhere(owner, int(self.variant)) else None
        size, end = len(mine), mine[-1] + 1
        behind = next((hole for start, hole in self.holes() if start == end), 0)
        if behind >= size:
            self.cells[end : end + size] = [owner] * size
            return 0
        start = self.place(2 * size)
        if start is not None:
            self.release(owner)
            self.cells[start : start + 2 * size] = [owner] * (2 * size)
            return stored
        if behind == 0:
            return None
        self.cells[end : end + behind] = [owner] * behind
        return 0

    def release(self, owner: int) -> None:
        self.cells = [None if who == owner else who for who in self.cells]


def simulate(
    lengths: Sequence[tuple[int, int]],
    scheme: str,
    capacity: int,
    arrivals: Sequence[int] | None = None,
) -> Outcome:
    """Serve (prompt, output) pairs, step by step, as the definitions say."""
    memory = Memory(scheme, capacity)
    when = arrivals or [0] * len(lengths)
    jobs = [Job(i, p, p + o, when[i]) for i, (p, o) in enumerate(lengths)]
    coming = sorted(jobs, key=lambda job: job.arrival)
    queue: list[Job] = []
    running: list[Job] = []
    out = Outcome()
    step = 0
    while coming or queue or running:
        for job in [job for job in running if job.stored == job.final]:
            memory.release(job.number)
            running.remove(job)
            out.served += 1
        while coming and coming[0].arrival <= step:
            job = coming.pop(0)
            if memory.hopeless(job):
                out.rejected += 1
            else:
                queue.append(job)
        preempted = False
        for job in list(running):
            while job in running:
                moved = memory.grow(job.number, job.stored)
                if moved is not None:
                    out.relocated += moved
                    job.stored += 1
                    break
                victim = running.pop()
                preempted = True
                out.preempted += 1
                out.recomputed += victim.stored
                victim.prompt = victim.stored
                memory.release(victim.number)
                queue.insert(0, victim)
        stuck = False
        while queue and not preempted:
            head = queue[0]
            if memory.admit(head.number, head.prompt, head.final):
                head.stored = head.prompt
                running.append(queue.pop(0))
            elif running:
                stuck = True
                break
            else:
                queue.pop(0)
                out.rejected += 1
        measure(memory, running, queue if stuck else [], out)
        if queue:
            out.window = Sums(**vars(out.total))
        step += 1
    return out


def measure(memory: Memory, running: Sequence[Job], stuck: Sequence[Job], out: Outcome) -> None:
    total = out.total
    total.steps += 1
    free = len(memory.owned(None))
    for job in running:
        reserved = len(memory.owned(job.number))
        total.stored += job.stored
        total.reserved += reserved
        total.future += min(reserved, job.final) - job.stored
        total.internal += max(0, reserved - job.final)
    total.free += free
    total.running += len(running)
    out.peak = max(out.peak, len(running))
    if memory.family not in ("paged", "prealloc") and free:
        largest = max((hole for _, hole in memory.holes()), default=0)
        total.index_sum += 1 - largest / free
        total.index_steps += 1
    if stuck and memory.wants(stuck[0].prompt, stuck[0].final) <= free:
        total.unplaced += free


def as_data(sums: Any) -> dict[str, float]:
    return {name: getattr(sums, name) for name in Sums.__dataclass_fields__}
