"""The true minimum of a story, by the explorer: what is compared with what the reducer leaves."""

import pytest

from kvimpls.museum.registry import MUSEUM
from kvspec import Geometry
from kvspec.driver.target import target
from kvspec.engines.session import Session
from kvspec.suite.minimum import needed, true_minimum

BY_NAME = {exhibit.name: exhibit for exhibit in MUSEUM}


def told(tested, geometry, *calls):
    """The trace of these calls, the last of which breaks a law."""
    session = Session(tested.make, tested.specification(geometry), tested.name)
    for method, arguments in calls:
        session.call(method, **arguments)
    assert session.breaches
    return session.trace


@pytest.fixture
def roundabout():
    """A story of a forgotten copy that has a step too many."""
    tested = target(BY_NAME["ForgottenCopyOnWrite"].factory)
    calls = [
        ("allocate", {"seq": 0, "num_tokens": 0}),
        ("append", {"seq": 0, "num_tokens": 1}),
        ("fork", {"parent": 0, "child": 1}),
        ("append", {"seq": 0, "num_tokens": 1}),
    ]
    return tested, told(tested, Geometry(2, 2), *calls)


def test_the_shortest_story_is_found_whatever_the_trace_has(roundabout):
    """Three calls do, where the trace has four."""
    tested, trace = roundabout
    assert (len(trace.steps), trace.law) == (4, "copy-on-write")
    assert true_minimum(tested, trace, 1000) == 3


def test_it_is_unknown_where_the_search_is_cut_off(roundabout):
    """One state is not enough for a fork."""
    tested, trace = roundabout
    assert true_minimum(tested, trace, 1) is None


def test_it_is_unknown_where_another_law_breaks_sooner(roundabout):
    """The first violation is no story of the law that was asked for."""
    leaking = target(BY_NAME["LeakOnRefusal"].factory)
    assert true_minimum(leaking, roundabout[1], 1000) is None


def test_only_what_the_story_needs_is_searched(roundabout):
    """Other capabilities would only make the search longer."""
    assert needed(roundabout[1]) == ("core", "sharing")
