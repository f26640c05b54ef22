"""The true minimum of a story: the shortest that there is, by a search that leaves nothing out.

It is the explorer's, breadth first over the allocator and what is believed of it. It shares no
move and no order with the reducer, so that it can say how good the reducer is.
"""

from attrs import evolve

from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT, Driver
from kvspec.driver.target import Target
from kvspec.engines.copies import Uncompared, Uncopied, copies, prints
from kvspec.engines.explore import explore
from kvspec.engines.scope import Scope
from kvspec.rooms import LAWS, ROOMS, specification
from kvspec.traces.trace import Trace


def needed(trace: Trace) -> tuple[str, ...]:
    """The capabilities without which the story cannot be told, or its law not be judged."""
    wanted = {"core", *(law.capability for law in LAWS if law.id == trace.law)}
    wanted |= {step.operation.capability for step in trace.steps}
    if any(step.fault for step in trace.steps):
        wanted.add("injection")
    if trace.geometry.window is not None:
        wanted.add("window")
    if trace.geometry.groups is not None:
        wanted.add("groups")
    for room in ROOMS:
        if room.capability in wanted:
            wanted |= set(room.needs)
    return tuple(room.capability for room in ROOMS if room.capability in wanted)


def true_minimum(
    tested: Target, trace: Trace, most_states: int, timeout: float = DEFAULT_CALL_TIMEOUT
) -> int | None:
    """How many steps the shortest story has that breaks the law of `trace`; `None`: unknown.

    It is searched in the geometry of `trace`, with its capabilities and as many sequences, through
    at most so many states. What ends the search is the first violation: where that is of another
    law, the shortest story of this one is unknown. So it is where the allocator cannot be copied.
    """
    seqs = {seq for step in trace.steps for seq in step.operation.touched}
    narrow = evolve(tested, capabilities=needed(trace))
    spec = specification(trace.geometry, trace.contract, narrow.capabilities)
    driver = Driver(narrow.make, spec, timeout)
    scope = Scope(spec, max(1, len(seqs)), symmetric=False)
    try:
        copied, printed = copies(driver), prints(driver)
        if printed is None:
            return None
        found = explore(narrow, scope, most_states, copied, printed, timeout=timeout).trace
    except (Uncopied, Uncompared):
        return None
    return len(found.steps) if found is not None and found.law == trace.law else None
