"""Calls that do not come back are outcomes, and leave the process as it was."""

import contextlib
import gc
import os
import signal
import sys
import threading
import time

import pytest
from hostile import Plain, doing, reported

from kvimpls.reference import StoredReference
from kvspec import Geometry
from kvspec.driver.driver import NotBuilt
from kvspec.driver.target import target
from kvspec.driver.watchdog import TimeUp, watching, within
from kvspec.engines.session import Session
from kvspec.kernel.script import call
from kvspec.suite.check import check_allocator
from kvspec.traces.trace import to_json

TIMEOUT = 0.2
"""Seconds; the calls of the reference take microseconds."""

PATIENCE = 5.0
"""Seconds within which everything here is over, on a machine however busy."""


def spin(*_):
    while True:
        pass


def sleep(*_):
    time.sleep(60)


def swallow_three(*_):
    """Come back at the fourth interruption."""
    swallowed = 0
    while True:
        try:
            time.sleep(60)
        except BaseException:
            swallowed += 1
            if swallowed > 3:
                raise


def swallow_all(*_):
    """Wait inside of a `try` that swallows whatever interrupts."""
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(60)


def swallow_all_in_a_helper(*_):
    while True:
        try:
            sleep()
        except BaseException:
            continue


def swallow_and_spin(*_):
    while True:
        try:
            while True:
                sum(range(100))
        except BaseException:
            pass


def swallow_and_answer(right=None):
    """Come back with an answer after all, much too late."""
    try:
        time.sleep(60)
    except BaseException:
        return right


def swallow_and_fail(*_):
    """Turn the interruption into an error of the interface."""

    class OutOfBlocks(Exception):
        pass

    try:
        time.sleep(60)
    except BaseException as error:
        raise OutOfBlocks from error


HANGS = [
    spin,
    sleep,
    swallow_three,
    swallow_all,
    swallow_all_in_a_helper,
    swallow_and_spin,
    swallow_and_answer,
    swallow_and_fail,
]


def one_call(make, timeout=TIMEOUT):
    """A session of one allocation."""
    session = Session(make, target(Plain).specification(Geometry(4, 2)), "hangs", timeout)
    session.call("allocate", seq=0, num_tokens=1)
    return session


@pytest.fixture
def previous_handler():
    """A handler for the alarm that is somebody else's, with the trace function and the threads."""

    def handler(signum, frame):
        raise AssertionError("an alarm rang that nobody set")

    before = signal.signal(signal.SIGALRM, handler)
    threads, tracing = threading.active_count(), sys.gettrace()
    yield handler
    assert signal.getsignal(signal.SIGALRM) is handler
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert threading.active_count() == threads
    assert sys.gettrace() is tracing
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("hang", HANGS, ids=lambda hang: hang.__name__)
def test_a_call_that_hangs_is_an_outcome(hang, previous_handler):
    """The call is interrupted, however often it takes; the handler, the timer, all is as before."""
    started = time.monotonic()
    session = one_call(doing("allocate", hang))
    assert session.breaches[0].law == "well-formed"
    assert "did not come back" in session.breaches[0].because
    assert session.trace.steps[-1].outcome.answer.kind == "hang"
    assert time.monotonic() - started < PATIENCE


@pytest.mark.parametrize("method", ["block_table", "num_free_blocks"])
@pytest.mark.parametrize("hang", [spin, swallow_all], ids=lambda hang: hang.__name__)
def test_a_query_that_hangs_is_named(hang, method, previous_handler):
    """A query that does not come back is an oddity of the step, under its name."""
    session = one_call(doing(method, hang))
    assert session.breaches[0].law == "well-formed"
    assert session.breaches[0].because.startswith(method)
    assert "did not come back" in session.breaches[0].because
    assert session.trace.steps[-1].outcome.answer.kind == "done"


@pytest.mark.parametrize("part", ["generator of copies", "repr", "str of an error", "admission"])
def test_what_an_answer_does_may_hang_too(part):
    """The answer is the allocator's code as much as the call."""

    class Slow(Exception):
        __str__ = __repr__ = spin

    def copies(right):
        yield spin()

    def lazily(right):
        raise Slow

    deeds = {
        "generator of copies": doing("allocate", copies),
        "repr": doing("allocate", lambda right: Slow()),
        "str of an error": doing("allocate", lazily),
        "admission": doing("allocate", lambda right: [Slow()]),
    }
    session = one_call(deeds[part])
    assert session.trace.steps[-1].outcome.answer.kind == "hang"


def test_an_interruption_that_is_swallowed_for_good_is_insisted_on(previous_handler):
    """Where a loop waits inside a `try`, the interruption comes again in its handler."""
    with pytest.raises(TimeUp):
        within(0.1, swallow_all)


def test_what_comes_back_in_time_is_let_through(previous_handler):
    """Answers and exceptions of a call in time are its own."""
    assert within(PATIENCE, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        within(PATIENCE, lambda: 1 / 0)


def test_a_hang_is_reported_without_a_time(previous_handler):
    """The whole check comes back with a reduced trace, the same every time, and no time in it."""
    hangs = doing("append", spin)
    report = reported(hangs, "well-formed", "did not come back", timeout=0.2)
    assert [step.operation.method for step in report.trace.steps] == ["allocate", "append"]
    assert "0.2" not in to_json(report.trace)
    again = one_call(doing("allocate", spin), timeout=TIMEOUT / 2)
    assert to_json(again.trace) == to_json(one_call(doing("allocate", spin)).trace)


@pytest.mark.parametrize("where", ["main thread", "other thread"])
def test_a_constructor_that_hangs_is_reported(where, previous_handler):
    """A factory that does not come back makes no allocator."""
    errors = []

    def build():
        try:
            Session(spin, target(Plain).specification(), "hangs", TIMEOUT)
        except NotBuilt as error:
            errors.append(str(error))

    if where == "main thread":
        build()
    else:
        thread = threading.Thread(target=build)
        thread.start()
        thread.join()
    assert errors[0].startswith("the factory did not come back for Geometry(num_blocks=4")


@pytest.mark.parametrize("hang", [spin, swallow_three, swallow_and_answer, swallow_and_fail])
def test_a_hang_in_another_thread_is_an_outcome(hang, previous_handler, monkeypatch):
    """Where there are no signals, the call runs in a thread, which is asked to stop and does."""
    # A sleep in another thread cannot be interrupted; a short one is over soon.
    monkeypatch.setattr(time, "sleep", lambda seconds: spin())
    sessions = []
    thread = threading.Thread(target=lambda: sessions.append(one_call(doing("allocate", hang))))
    thread.start()
    thread.join()
    assert sessions[0].trace.steps[-1].outcome.answer.kind == "hang"


def test_a_thread_that_cannot_be_stopped_is_left_behind():
    """A call that waits outside of Python in another thread delays the suite, and stops nothing."""
    release, sessions = threading.Event(), []
    waits = doing("allocate", lambda right: release.wait(60))
    thread = threading.Thread(target=lambda: sessions.append(one_call(waits, 0.1)))
    thread.start()
    thread.join(PATIENCE)
    assert sessions[0].trace.steps[-1].outcome.answer.kind == "hang"
    recorded = to_json(sessions[0].trace)
    release.set()  # the call comes back after all, and finds that nobody waits for it
    time.sleep(0.1)
    assert to_json(sessions[0].trace) == recorded


def test_an_alarm_of_somebody_else_is_left_alone():
    """With an alarm pending, such as a test runner's, calls run in a thread instead."""

    def handler(signum, frame):
        raise AssertionError("the other alarm rang")

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 60.0)
    try:
        session = one_call(doing("allocate", spin))
        assert session.trace.steps[-1].outcome.answer.kind == "hang"
        assert 50.0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60.0
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def test_a_real_interrupt_stops_the_suite(previous_handler):
    """Ctrl-C during a call is not taken for anything that the allocator did."""
    # A run in the background may have begun with interrupts ignored.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        check_allocator(doing("append", sleep), profile="quick")
    timer.join()
    signal.signal(signal.SIGINT, previous)


def test_an_allocator_may_use_the_alarm_itself(previous_handler):
    """A handler that the allocator leaves behind is gone after the call."""

    def alarmed(right):
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.alarm(50)
        return right

    assert not one_call(doing("allocate", alarmed)).breaches


def test_the_alarm_beats_again_after_a_call_that_stopped_it(previous_handler):
    """Not at once, but some calls later; a beat between calls disturbs nobody."""
    with watching():
        within(PATIENCE, signal.setitimer, signal.ITIMER_REAL, 0.0)
        for _ in range(64):
            assert within(PATIENCE, int) == 0
        time.sleep(0.2)
        with pytest.raises(TimeUp):
            within(TIMEOUT, spin)


def test_an_interruption_stays_out_of_the_collectors_callbacks(monkeypatch):
    """There it would stop nothing, and be printed as an exception that nobody could catch."""
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)

    def callback(phase, info):
        len(phase)

    thresholds = gc.get_threshold()
    gc.callbacks.append(callback)
    gc.set_threshold(1)  # a collection with nearly every object
    try:
        with pytest.raises(TimeUp):
            within(TIMEOUT, swallow_all_in_a_helper)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(callback)
    assert not lost
    assert gc.isenabled()


class WritesForEver(StoredReference):
    """A store whose write does not come back."""

    def write(self, seq, start, values):
        sleep()


def test_a_write_that_hangs_is_not_taken_for_the_fault_of_the_call_before():
    """What failed in one call is forgotten before the next one's caller writes."""
    spec = target(WritesForEver).specification(Geometry(4, 1))
    session = Session(WritesForEver, spec, timeout=TIMEOUT)
    session.perform(spec.operation(call("allocate_prompt", seq=0, tokens=(0, 0))))
    session.perform(spec.operation(call("append", seq=0, num_tokens=1)), fault=1)
    session.perform(spec.operation(call("mark_written", seq=0, num_tokens=1)))
    last = session.trace.steps[-1].outcome
    assert (last.answer.kind, last.fault) == ("hang", None)
    assert [breach.law for breach in session.breaches] == ["well-formed"]
