"""The moves of the reducer: what may make a trace smaller.

Each move takes a case and gives cases; none of them is run here. A move need not make sense
of what it leaves behind: the reducer drops the calls that no longer do.
"""

from collections.abc import Iterator

from kvspec.rooms.resize import MOST_TIMES
from kvspec.traces import fewer_steps, plainer
from kvspec.traces.cases import Case, sizes


def moves(case: Case) -> Iterator[Case]:
    """The cases that one move away may be smaller, the boldest moves first."""
    for move in _moves(case):
        most = MOST_TIMES * move.geometry.num_blocks
        if all(value <= most for s in move.steps for _, value in sizes(s.operation)):
            yield move


def _moves(case: Case) -> Iterator[Case]:
    yield from fewer_steps.drop(case)
    yield from fewer_steps.lower_fault(case)
    yield from fewer_steps.fewer_members(case)
    yield from fewer_steps.merge(case)
    yield from fewer_steps.join(case)
    yield from fewer_steps.drop_and_raise(case)
    yield from plainer.plainer_calls(case)
    yield from plainer.fork_instead(case)
    yield from plainer.plainer_geometry(case)
    yield from plainer.lower_max_tokens(case)
    yield from plainer.fewer_blocks(case)
    yield from plainer.smaller_blocks(case)
    yield from plainer.lower(case)
    yield from plainer.lower_two(case)
    yield from plainer.lower_repeated(case)
    yield from plainer.set_right(case)
    yield from plainer.plainer_tokens(case)
    yield from plainer.rename(case)
    yield from plainer.exchange(case)
    # These are many for a long story, and of use only when nothing else helps.
    yield from fewer_steps.fail_earlier(case)
    yield from fewer_steps.member_alone(case)
    yield from fewer_steps.size_from_the_start(case)
    yield from fewer_steps.start_later(case)
    yield from fewer_steps.go_on(case)
    yield from fewer_steps.stay(case)
    yield from fewer_steps.drop_and_lower(case)
