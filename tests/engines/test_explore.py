"""The explorer: what it counts, what it finds, and what it says of how far it came."""

import re
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from attrs import evolve
from stacks import (
    Copyable,
    Counting,
    ExitsInPrint,
    Forgetful,
    ForgetsInOneOrder,
    GrantsInOneOrder,
    HangsInPrint,
    Locked,
    LocksLater,
    NotMadeAgain,
    Printed,
    PrintedLocksLater,
    PrintsNoGrowth,
    Stack,
    TwiceWrong,
)

from kvimpls.museum import ForgottenCopyOnWrite, registry
from kvimpls.reference import Reference
from kvspec.contract import Contract, Paged, Unspecified
from kvspec.driver.target import TargetError, target
from kvspec.engines.alike import exactly, up_to_names
from kvspec.engines.exploration import ALONE, DRIVEN, PRODUCT, Exploration
from kvspec.engines.explore import explore_alone
from kvspec.engines.scope import MOST_FAULTS, Scope
from kvspec.engines.session import Session
from kvspec.engines.walk import SeededChooser
from kvspec.geometry import Geometry, Group
from kvspec.kernel.law import Law
from kvspec.kernel.perturb import other_count
from kvspec.kernel.script import Call
from kvspec.kernel.specification import Specification
from kvspec.kernel.step import Step
from kvspec.rooms import specification
from kvspec.suite.exploring import explore_allocator, explore_specification
from kvspec.suite.report import ExitCode
from kvspec.traces.trace import believed

TLA = Path(__file__).resolve().parents[2] / "docs" / "tla"
TLC: dict[tuple[int, int, int, int], int] = runpy.run_path(str(TLA / "check.py"))["COUNTS"]

CORE = ("core",)
SHARING = ("core", "sharing")
ROLLBACK = (*SHARING, "rollback")
SWAP = (*SHARING, "swap")
LEASE = (*SHARING, "lease")
WINDOW = (*ROLLBACK, "window")
BATCH = (*SHARING, "batch")
RESIZE = (*SHARING, "resize")
GROUPS = (*SHARING, "groups")
RESERVATION = (*SHARING, "reservation", "admission")
PREFIX = ("core", "prefix")
EVICTION = (*PREFIX, "eviction")


def alone(
    blocks: int,
    sequences: int,
    size: int,
    capabilities: Sequence[str],
    host: int = 0,
    most: int | None = None,
) -> Exploration:
    """The specification alone, to the end; with a window of 3, where one is explored."""
    window = 3 if "window" in capabilities else None
    geometry = Geometry(blocks, size, num_host_blocks=host, window=window, max_tokens=most)
    report = explore_specification(geometry, sequences, capabilities=capabilities)
    (found,) = report.searches
    assert (found.mode, found.exhausted, report.exit_code) == (ALONE, True, ExitCode.HELD)
    return found


# ------------------------------------------------------------------------------ the model

STATES = {
    (4, 2, 2, CORE, 0): (33, 792),
    (4, 2, 2, SHARING, 0): (63, 1365),
    (4, 3, 2, SHARING, 0): (249, 9115),
    (4, 2, 2, ROLLBACK, 0): (79, 2406),
    (4, 2, 2, SWAP, 2): (121, 2158),
    (4, 2, 2, SWAP, 4): (176, 2660),
    (2, 2, 2, LEASE, 0): (418, 7634),
    (3, 2, 1, LEASE, 0): (694, 11128),
    (4, 2, 2, WINDOW, 0): (201, 4726),
    (4, 2, 2, BATCH, 0): (63, 12538),
    (2, 2, 2, RESIZE, 0): (101, 1745),
    (4, 2, 2, GROUPS, 0): (32, 887),
    (3, 2, 2, RESERVATION, 0): (744, 18385),
    (1, 1, 1, PREFIX, 0): (64, 1937),
    # Smaller ones were the same after a change of what the cache may find as they were before.
    (2, 1, 2, PREFIX, 0, 3): (2938, 134615),
    (1, 1, 1, EVICTION, 0): (64, 2105),
}
"""Blocks, sequences, tokens a block, capabilities, host blocks, and the greatest length where it is
not one token more than the pool holds: states and right calls."""


@pytest.mark.parametrize("scope", STATES, ids=str)
def test_the_specification_has_as_many_states_as_are_pinned(scope):
    """A changed count is a changed specification: see docs/explore.md for what to do then."""
    found = alone(*scope)
    assert (found.states, found.transitions - found.wrong) == STATES[scope]


def test_the_page_has_the_counts_that_are_pinned():
    """All of them, in this order, and no others."""
    page = (TLA.parent / "explore.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (\d+) \| (\d+) \| (\d+) \| (.*) \| ([\d,]+) \| ([\d,]+) \|$", page, re.M
    )
    assert [
        (*map(int, row[:3]), row[3].partition(";")[0], *(int(n.replace(",", "")) for n in row[4:]))
        for row in rows
    ] == [(*scope[:3], ", ".join(scope[3]), *counts) for scope, counts in STATES.items()]


def test_the_bounds_of_a_scope_are_in_plain_words():
    """One block is no more than that."""
    said = [
        explore_specification(geometry, seqs, capabilities=capabilities).searches[0].scope.bounds
        for geometry, seqs, capabilities in (
            (Geometry(1, 1), 1, CORE),
            (Geometry(2, 2, num_host_blocks=1), 2, SWAP),
        )
    ]
    assert said == [
        "1 block of 1 token, 1 sequence, lengths up to 2",
        "2 blocks of 2 tokens, 1 host block, 2 sequences, lengths up to 5",
    ]


@pytest.mark.parametrize("size", TLC, ids=str)
def test_the_core_has_as_many_states_as_tlc_counts(size):
    """Where a state has the last answer in it, as in the TLA+ module."""
    blocks, sequences, block_size, most = size
    assert alone(blocks, sequences, block_size, CORE, most=most).answered == TLC[size]


def test_a_law_that_a_choice_breaks_is_shown_with_the_shortest_story():
    """The specification is explored by its own choices; here it contradicts itself."""

    def lost(step: Step) -> str | None:
        return "two sequences." if len(step.after.sequences) == 2 else None

    law = Law("odd", "core", "One.", "us", lambda step: True, lost, (other_count,), lambda g: ())
    spec = specification(Geometry(3, 2), Contract(), SHARING)
    broken = Specification(spec.geometry, spec.contract, spec.rooms, (law,), spec.kinds)
    found = explore_alone(Scope(broken, 2, symmetric=True), 1000)
    assert found.trace is not None
    assert found.trace.law == "odd"
    assert len(found.trace.steps) == 2
    assert len(believed(found.trace)) == 2


def test_a_contract_that_leaves_refusals_open_keeps_what_was_refused():
    """Then a refusal is a state of its own, since the same call must be refused again."""
    report = explore_specification(
        Geometry(2, 2), 1, contract=Contract(reservation=Unspecified()), capabilities=CORE
    )
    strict = explore_specification(Geometry(2, 2), 1, capabilities=CORE)
    assert report.searches[0].exhausted
    assert report.searches[0].states > 2 * strict.searches[0].states
    assert report.silent == strict.silent


def test_names_of_blocks_and_sequences_make_no_difference_but_beside_an_allocator():
    """A, B with blocks 0, 1 is as B, A with blocks 1, 0; exactly it is not."""
    spec = specification(Geometry(3, 2), Contract(), SHARING)
    told = []
    for ids in ((0, 1), (1, 0)):
        session = Session(Stack, spec)
        session.call("allocate", seq=ids[0], num_tokens=1)
        session.call("fork", parent=ids[0], child=ids[1])
        session.call("append", seq=ids[1], num_tokens=1)
        told.append(session.state)
    assert up_to_names(told[0], spec) == up_to_names(told[1], spec)
    assert exactly(told[0], spec) != exactly(told[1], spec)


def test_a_lease_is_one_in_all_pools():
    """Which hold in one pool goes with which in the other decides what is free when one ends."""
    pools = Geometry(6, 2, groups=(Group(2), Group(3, num_blocks=6)))
    spec = specification(pools, Contract(), (*SHARING, "rollback", "lease", "groups"))

    def state(*calls):
        session = Session(Reference, spec)
        for method, its in calls:
            assert not session.call(method, **its)
        return session.state

    short = [("allocate", {"seq": 0, "num_tokens": 3}), ("begin_transfer", {"seq": 0, "lease": 0})]
    fork = ("fork", {"parent": 0, "child": 1})
    longer = ("append", {"seq": 1, "num_tokens": 1})
    cut = ("truncate", {"seq": 1, "num_tokens": 3})
    one = state(
        *short, fork, longer, ("begin_transfer", {"seq": 1, "lease": 1}), ("free", {"seq": 1})
    )
    other = state(
        short[0],
        fork,
        longer,
        cut,
        ("begin_transfer", {"seq": 1, "lease": 0}),
        ("free", {"seq": 1}),
        ("append", {"seq": 0, "num_tokens": 1}),
        ("begin_transfer", {"seq": 0, "lease": 1}),
        ("truncate", {"seq": 0, "num_tokens": 3}),
    )
    assert up_to_names(one, spec) != up_to_names(other, spec)


def test_what_was_refused_goes_by_the_names_too():
    """Of a long sequence and a short one the long one was refused, or the short one."""
    spec = specification(Geometry(4, 2), Contract(reservation=Unspecified()), CORE)

    def state(long, short, refused):
        calls = [
            ("done", "allocate", {"seq": long, "num_tokens": 3}),
            ("done", "allocate", {"seq": short, "num_tokens": 1}),
            ("refused", "append", {"seq": refused, "num_tokens": 1}),
        ]
        state = spec.initial()
        for answer, method, its in calls:
            operation = spec.operation(Call(method, its))
            outcomes = spec.choices(state, operation)
            outcome = next(one for one in outcomes if one.answer.kind == answer)
            state = spec.believe(state, operation, outcome).after
        return up_to_names(state, spec)

    assert state(0, 1, 0) == state(1, 0, 1)
    assert state(0, 1, 0) != state(0, 1, 1)


def test_what_lies_in_free_blocks_matters_where_a_copy_might_be_forgotten():
    """States that show the same differ if a free block still holds what is written elsewhere."""
    spec = specification(Geometry(2, 2), Contract(), SHARING)
    session = Session(Stack, spec)
    session.call("allocate", seq=0, num_tokens=1)
    before = exactly(session.state, spec)
    session.call("fork", parent=0, child=1)
    session.call("append", seq=1, num_tokens=1)
    session.call("free", seq=1)
    assert exactly(session.state, spec) != before
    assert up_to_names(session.state, spec) == up_to_names(evolve(session.state, contents={}), spec)


# ------------------------------------------------------------------------------ the calls


@pytest.mark.parametrize("seed", range(6))
def test_every_right_call_that_may_be_proposed_is_tried(seed):
    """Nothing that a machine draws within the ids and lengths is missing from the scope."""
    capabilities = ("core", "reservation", "admission", *LEASE[1:], "rollback", "batch", "resize")
    spec = specification(Geometry(3, 2, max_tokens=4), Contract(), capabilities)
    scope, chooser, session = Scope(spec, 3), SeededChooser(seed), Session(Reference, spec)
    compared = 0
    for _ in range(40):
        state = session.state
        tried = set(scope.right_calls(state))
        for proposal in spec.proposals():
            if not proposal.possible(state, spec):
                continue
            for _ in range(3):
                drawn = proposal.draw(state, spec, chooser)
                within = all(seq < 3 for seq in (*drawn.touched, *drawn.subjects))
                if within and not spec.expect(state, drawn).errors and not drawn.queries:
                    leases = getattr(state.slices["lease"], "open", ())
                    if drawn.method != "begin_transfer" or len(leases) < 2:
                        assert drawn in tried
                        compared += 1
        session.perform(chooser.pick(sorted(tried, key=repr)))
    assert compared > 200


# ------------------------------------------------------------------------------ allocators


def test_a_stack_of_blocks_is_exhausted_over_the_product():
    """The states are more than the model's, since the order of the free blocks is one of them."""
    report = explore_allocator(Stack, Geometry(3, 2), 2)
    (found,) = report.searches
    assert (found.mode, found.exhausted, found.told_apart) == (PRODUCT, True, "its pickle")
    assert report.exit_code is ExitCode.HELD
    assert report.silent == []
    driven = explore_allocator(Stack, Geometry(3, 2), 2, way="driven").searches[0]
    assert (driven.mode, driven.exhausted) == (DRIVEN, True)
    assert driven.states == alone(3, 2, 2, SHARING).states
    assert found.states > 5 * driven.states


def test_the_reference_is_exhausted_over_the_product():
    """Core and sharing, in the smallest pool in which there is something to share and to refuse."""
    report = explore_allocator(Reference, Geometry(2, 2), 2)
    assert report.searches[0].exhausted
    assert report.exit_code is ExitCode.HELD


def test_a_fault_that_hides_in_the_order_of_free_blocks_is_found_over_the_product_alone():
    """A search that is keyed on the model comes to each state once, and there by another way."""
    product = explore_allocator(ForgetsInOneOrder, Geometry(3, 2), 2)
    driven = explore_allocator(ForgetsInOneOrder, Geometry(3, 2), 2, way="driven")
    assert product.trace is not None
    assert (product.trace.law, product.reproduced) == ("conservation", 5)
    assert product.trace.reduced
    assert driven.searches[0].exhausted
    assert driven.trace is None


def test_a_wrong_call_that_is_granted_in_one_order_of_free_blocks_is_found_over_the_product_alone():
    """Wrong calls are tried with each inside that a kind of believed state comes with."""
    product = explore_allocator(GrantsInOneOrder, Geometry(3, 2), 2)
    driven = explore_allocator(GrantsInOneOrder, Geometry(3, 2), 2, way="driven")
    assert product.trace is not None
    assert (product.trace.law, product.reproduced) == ("misuse", 5)
    assert (driven.searches[0].exhausted, driven.trace) == (True, None)


@pytest.mark.parametrize("way", ["product", "driven"])
def test_the_shortest_of_all_stories_is_told(way):
    """Also where another that breaks a law is come upon first: wrong calls are tried at once."""
    report = explore_allocator(TwiceWrong, Geometry(4, 2), 2, way=way)
    assert report.trace is not None
    assert (report.trace.law, len(report.trace.steps)) == ("conservation", 1)
    assert len(report.searches[0].trace.steps) == 1


@pytest.mark.parametrize("name", ["NeedsARun", "CountNotDecremented"])
def test_reported_faults_hide_in_the_same_way(name):
    """Two of the museum, which are from public reports, show in the product and not without it."""
    (exhibit,) = (exhibit for exhibit in registry.MUSEUM if exhibit.name == name)
    assert explore_allocator(exhibit.factory, Geometry(4, 2), 2).trace is not None
    assert explore_allocator(exhibit.factory, Geometry(4, 2), 2, way="driven").trace is None


class WrongOnce(Stack):
    """The first sequence ever to end leaves a block behind, and no other does."""

    ended: ClassVar[list[int]] = []

    def free(self, seq: int) -> None:
        """End `seq`."""
        super().free(seq)
        if not self.ended:
            self.free_list.pop()
        self.ended.append(seq)


def test_what_no_fresh_allocator_does_again_is_told_as_such():
    """The law was broken, and yet the calls of the story are not all that it took."""
    report = explore_allocator(WrongOnce, Geometry(2, 2), 1)
    assert report.trace is not None
    assert report.reproduced == 0
    assert any("breaks the law in 0 of 5 runs" in line for line in report.lines)


FAULTS = [exhibit for exhibit in registry.MUSEUM if exhibit.family in ("core", "sharing")]
ALSO = {"CountsTheReleased": ("window",), "ForgetsTheBound": ("reservation",)}
"""What some need beside core and sharing to show."""


@pytest.mark.parametrize("exhibit", FAULTS, ids=lambda exhibit: exhibit.name)
def test_every_fault_of_core_and_sharing_in_the_museum_is_found(exhibit):
    """In 4 blocks of 2 tokens, with two sequences, over the product, with a shortest story."""
    capabilities = (*SHARING, *ALSO.get(exhibit.name, ()))
    report = explore_allocator(exhibit.factory, Geometry(4, 2), 2, capabilities=capabilities)
    assert report.trace is not None
    # The shortest story of a fault may be one that another law is the first to see.
    assert report.trace.law in (*exhibit.laws, *(("admission",) if exhibit.name in ALSO else ()))
    assert report.reproduced == report.replays == 5
    (found,) = report.searches
    assert found.mode == PRODUCT
    assert len(report.trace.steps) <= found.depth + 1


def test_injected_faults_are_edges_too():
    """A call is made to fail at each of its checkpoints."""
    (exhibit, *_) = (exhibit for exhibit in registry.MUSEUM if exhibit.family == "injection")
    report = explore_allocator(
        exhibit.factory, Geometry(2, 2), 2, capabilities=("core", "injection")
    )
    assert report.trace is not None
    assert any(step.fault for step in report.trace.steps)


@pytest.mark.parametrize("reservation", [Paged(), Unspecified()], ids=repr)
def test_states_that_plainly_stay_the_same_are_not_compared(reservation, monkeypatch):
    """With every state compared there are as many, alone, over the product and up to names."""

    def counted() -> list[tuple[int, int, int]]:
        geometry, contract = Geometry(2, 1), Contract(reservation=reservation)
        searches: list[Exploration] = []
        searches += explore_specification(geometry, 2, contract=contract).searches
        for way in ("product", "driven"):
            report = explore_allocator(Reference, geometry, 2, contract=contract, way=way)
            searches += report.searches
        return [(found.states, found.transitions, found.answered) for found in searches]

    before = counted()
    monkeypatch.setattr("kvspec.engines.explore.stays", lambda step: False)
    assert counted() == before


@pytest.mark.parametrize("kind", [Printed, Copyable, Locked])
def test_what_cannot_be_copied_or_compared_is_explored_as_far_as_it_goes(kind):
    """With a fingerprint over the product; else every model transition is driven once."""
    report = explore_allocator(kind, Geometry(2, 2), 2)
    (found,) = report.searches
    assert found.exhausted
    apart = {Printed: "its own fingerprint()", Copyable: "its pickle", Locked: ""}[kind]
    assert (found.mode, found.told_apart) == (PRODUCT if apart else DRIVEN, apart)
    plain = explore_allocator(Stack, Geometry(2, 2), 2, way="auto" if apart else "driven")
    assert found.states == plain.searches[0].states
    said = " ".join(report.remarks)
    assert ("cannot be compared" in said) == (kind is Locked)
    assert ("cannot be copied" in said) == (kind is Locked)


def test_without_copies_a_fault_is_found_by_telling_stories_again():
    """Each transition begins with a fresh allocator."""
    report = explore_allocator(Forgetful, Geometry(2, 2), 2)
    assert report.trace is not None
    assert report.searches[0].mode == DRIVEN
    assert report.reproduced == 5


@pytest.mark.parametrize("kind", [LocksLater, NotMadeAgain])
@pytest.mark.parametrize("way", ["auto", "driven"])
def test_what_cannot_be_copied_later_on_is_explored_from_the_beginning_without_copies(kind, way):
    """Its first fingerprints were pickles, so every model transition is driven once."""
    report = explore_allocator(kind, Geometry(2, 2), 2, way=way)
    (found,) = report.searches
    plain = explore_allocator(Stack, Geometry(2, 2), 2, way="driven").searches[0]
    assert (found.mode, found.exhausted, found.states) == (DRIVEN, True, plain.states)
    said = " ".join(report.remarks)
    assert "after some calls it cannot be copied (" in said
    assert ("so its internals cannot be compared" in said) == (way == "auto")
    with pytest.raises(TargetError, match=r"after some calls it cannot be copied .* no product"):
        explore_allocator(kind, Geometry(2, 2), 2, way="product")


def test_a_fingerprint_compares_what_cannot_be_copied_later_on():
    """Then all stories are told again, and it is the product that is exhausted."""
    report = explore_allocator(PrintedLocksLater, Geometry(2, 2), 2)
    (found,) = report.searches
    plain = explore_allocator(Stack, Geometry(2, 2), 2).searches[0]
    assert (found.mode, found.exhausted, found.states) == (PRODUCT, True, plain.states)
    assert [remark.partition(" (")[0] for remark in report.remarks] == [
        "after some calls it cannot be copied"
    ]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (PrintsNoGrowth, r"its fingerprint\(\) fails: ValueError\('no such table'\)"),
        (ExitsInPrint, r"its fingerprint\(\) fails: SystemExit"),
        (HangsInPrint, r"its fingerprint\(\) fails: it did not come back within 0\.2 s"),
    ],
)
def test_a_fingerprint_that_fails_after_some_calls_is_one_line(kind, said):
    """Whatever it raises, or if it never comes back; without it the allocator is explored."""
    with pytest.raises(TargetError, match=said):
        explore_allocator(kind, Geometry(2, 2), 2, timeout=0.2)
    report = explore_allocator(kind, Geometry(2, 2), 2, way="driven")
    assert (report.searches[0].exhausted, report.exit_code) == (True, ExitCode.HELD)


# ------------------------------------------------------------------------------ the end


def test_what_has_no_end_is_cut_off_and_then_driven_once():
    """An allocator that counts its calls is always new inside; the report says both."""
    report = explore_allocator(Counting, Geometry(2, 2), 2, max_states=200)
    first, second = report.searches
    assert (first.mode, first.exhausted) == (PRODUCT, False)
    assert first.waiting > 0
    assert (second.mode, second.exhausted) == (DRIVEN, True)
    assert report.exit_code is ExitCode.HELD
    assert report.lines[0].startswith("NOT EXHAUSTED, over the product: ")
    assert "cut off at --max-states 200" in report.lines[0]
    assert report.lines[1].startswith("every model transition driven once: ")


def test_what_comes_of_the_search_is_told_as_it_goes_on(monkeypatch):
    """Now and then, and the last time at its end."""
    monkeypatch.setattr("kvspec.engines.exploration._TELL", 0.0)
    told = []
    explore_specification(
        Geometry(2, 2), 1, capabilities=CORE, progress=lambda found: told.append(found.states)
    )
    assert told == sorted(told)
    assert len(told) > 3


@pytest.mark.parametrize(
    ("capabilities", "said"),
    [(["trim"], "there is no capability trim"), (["swap"], "swap is not claimed")],
)
def test_capabilities_that_are_not_there_are_one_line(capabilities, said):
    with pytest.raises(TargetError, match=said):
        explore_allocator(Stack, Geometry(2, 2), 2, capabilities=capabilities)


def test_no_product_is_promised_where_there_is_none():
    with pytest.raises(TargetError, match="cannot be compared"):
        explore_allocator(target(Locked), Geometry(2, 2), 2, way="product")


def test_what_a_capability_needs_of_the_geometry_is_added():
    """Host blocks for swapping, and a window for the window."""
    report = explore_specification(Geometry(2, 2), 1, capabilities=("core", "swap", "window"))
    assert report.spec.geometry == Geometry(2, 2, num_host_blocks=2, window=3)


def test_a_violation_of_a_search_that_was_cut_off_may_have_a_shorter_story():
    """And the line says so; what was looked through as far as a shorter one could be does not."""
    broken = explore_allocator(ForgottenCopyOnWrite, Geometry(4, 2), 2, way="product")
    (found,) = broken.searches
    assert found.title == "over the product: a law is broken"
    found.cut = "--max-states 10"
    assert found.title == "over the product: a law is broken, and a shorter story may be there"


def test_a_call_with_more_checkpoints_than_are_tried_is_cut_off():
    """Each call fails at each of its checkpoints, and beyond the most the report says that not."""

    class Careful(Reference):
        def allocate(self, seq, num_tokens, *, limit=None):
            for _ in range(MOST_FAULTS):
                self._checkpoint("look again")
            return super().allocate(seq, num_tokens, limit=limit)

    report = explore_allocator(
        Careful, Geometry(1, 1), 1, capabilities=("core", "injection"), way="driven"
    )
    (found,) = report.searches
    assert (found.exhausted, found.trace) == (False, None)
    assert found.title == "NOT EXHAUSTED, every model transition driven once"
    assert f"cut off at {MOST_FAULTS - 1} checkpoints of one call" in report.lines[0]
