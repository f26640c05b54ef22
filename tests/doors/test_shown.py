"""What is printed: matrices and stories that stay readable in terminals of 80 and 120 columns."""

import re
from io import StringIO

import pytest
from attrs import evolve
from rich.console import Console

from kvimpls.museum import ForgottenCopyOnWrite
from kvimpls.reference import Reference
from kvimpls.unusual import FirstBlockOne
from kvspec import Contract, Geometries, Geometry, ToMax, check_allocator
from kvspec.engines.machine import PROFILES, Profile
from kvspec.engines.session import Session
from kvspec.kernel.law import Breach
from kvspec.rooms import CAPABILITIES, LAWS, specification
from kvspec.suite.matrix import Absent, matrix
from kvspec.traces.table import as_text

LONG = "some/very/long/folder_of_mine/allocators.py:AllocatorWithAVeryLongName.that_makes_it"

WIDTHS = pytest.mark.parametrize("width", [80, 120])


@pytest.fixture(scope="module")
def report():
    """The report of a right allocator."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PROFILES, "quick", Profile(episodes=15, steps=20))
        return check_allocator(Reference, profile="quick")


def printed(what, width):
    """The lines of a terminal of that width."""
    out = StringIO()
    Console(file=out, width=width, highlight=False).print(what)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    assert "…" not in out.getvalue()  # rich's mark for what it cut off
    return lines


@WIDTHS
def test_many_allocators_come_in_bands(report, width):
    """Each band begins with the laws, and every name and verdict is there in full."""
    names = [f"kvimpls.unusual:Allocator{n}" for n in range(12)] + [LONG]
    lines = printed(matrix([evolve(report, allocator=name) for name in names]), width)
    bands = [n for n, line in enumerate(lines) if line.startswith("law ")]
    assert len(bands) == -(-13 // (3 if width == 80 else 5))
    for law in LAWS:
        rows = [line for line in lines if line.startswith(f"  {law.id} ")]
        assert len(rows) == len(bands)
        cells = [re.split(r"  +", row.strip())[1:] for row in rows]
        verdict = report.laws[law.id].verdict.value
        assert [len(row) for row in cells[:-1]] == [3 if width == 80 else 5] * (len(bands) - 1)
        assert sum(map(len, cells)) == 13
        assert all(
            c.split()[0] == ("-" if verdict == "not claimed" else verdict) for r in cells for c in r
        )
    headers = [line for n, line in enumerate(lines) if any(0 <= b - n < 7 for b in bands)]
    for n in range(12):
        assert re.search(rf"\bAllocator{n}\b", "\n".join(headers))


@WIDTHS
def test_a_name_is_cut_between_its_words(report, width):
    """A very long name comes in lines that together are the name."""
    names = [LONG, *(f"kvimpls.unusual:Allocator{n}" for n in range(7))]
    lines = printed(matrix([evolve(report, allocator=name) for name in names]), width)
    end = next(n for n, line in enumerate(lines) if line.startswith("law "))
    column = lines[end].index(re.split(r"  +", lines[end])[1])
    head = "".join(line[column : column + 18].strip() for line in lines[: end + 1])
    assert head == LONG


@WIDTHS
def test_one_allocator_keeps_its_name_in_one_line(report, width):
    """Where there is room, nothing is wrapped."""
    name = LONG[: width - 20]
    contract = Contract(
        reservation=ToMax(), first_block=1, geometries=Geometries(max_tokens="required")
    )
    lines = printed(matrix([evolve(report, allocator=name, contract=contract)]), width)
    assert lines[0].split() == ["law", name]
    wanted = "relaxations 3: reservation, first_block, geometries"
    assert wanted in [" ".join(line.split()) for line in lines]


def test_relaxations_are_wrapped_between_fields(report):
    """Many relaxations take lines, not columns."""
    contract = Contract(
        reservation=ToMax(),
        first_block=1,
        misuse="callers_duty",
        eager_fork="all",
        geometries=Geometries(max_tokens="required"),
    )
    lines = printed(matrix([evolve(report, contract=contract)] * 5), 80)
    start = next(n for n, line in enumerate(lines) if line.startswith("relaxations"))
    assert lines[start].split() == ["relaxations", *["5:", "reservation,"] * 3]
    assert [line.split()[0] for line in lines[start + 1 : start + 4]] == [
        "eager_fork,",
        "misuse,",
        "first_block,",
    ]


@WIDTHS
def test_what_was_not_checked_is_told_below(report, width):
    """Allocators without a column have a line that says why."""
    absent, failed = Absent("torch_paged", "it needs torch"), Absent("mine", "it raised")
    lines = printed(matrix([report], [absent], [failed]), width)
    assert "torch_paged: not installed (it needs torch)" in lines
    assert "mine: not checked (it raised)" in lines


# ------------------------------------------------------------------------------ stories


DATA = ("store", "attention")
"""What an allocator without data does not claim."""


def story(ids, num_blocks=8, make=Reference, first_block=0):
    """Four sequences that share blocks, a lease, a refusal and a wrong call, in one trace."""
    contract = Contract(first_block=first_block)
    claimed = tuple(capability for capability in CAPABILITIES if capability not in DATA)
    session = Session(make, specification(Geometry(num_blocks, 4), contract, claimed))
    a, b, c, d = ids
    session.call("allocate", seq=a, num_tokens=10)
    session.call("fork", parent=a, child=b)
    session.call("fork", parent=a, child=c)
    session.call("fork", parent=b, child=d)
    session.call("append", seq=a, num_tokens=3)
    session.call("begin_transfer", seq=a, lease=0)
    session.call("free", seq=a)
    session.call("append", seq=b, num_tokens=9)
    session.call("allocate", seq=a, num_tokens=10**12, limit=10**12)
    session.call("append", seq=d, num_tokens=None)
    assert not session.breaches
    because = "A writes into block 0 (entry 0), which is in the table of B too. " * 4
    breaches = (Breach("copy-on-write", because), Breach("admission", because))
    return evolve(session.trace, breaches=breaches)


def lines_of(trace, width):
    """The lines of the story."""
    lines = as_text(trace, width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    return lines


@WIDTHS
@pytest.mark.parametrize("ids", [(0, 1, 2, 3), (0, 1, 2**31 - 1, 2**31 - 2)], ids=["near", "far"])
@pytest.mark.parametrize("num_blocks", [8, 1000])
def test_a_story_of_many_blocks_fits(ids, num_blocks, width):
    """Blocks that do not fit side by side are told as runs, and nothing is lost."""
    trace = story(ids, num_blocks)
    lines = lines_of(trace, width)
    steps = [line for line in lines if re.match(r"\d+  ", line)]
    assert len(steps) == 10
    assert re.search(r"allocate\(A, 10\) +\[0 1 2\] +0-2:A +\d+$", steps[0])
    assert re.search(r"free\(A\) +ok +0-1:B\+", steps[6])
    assert "3-4:~" in "".join(lines)


def test_a_story_of_few_blocks_shows_them_side_by_side():
    """With room, each block is a column: who has it, or a dot."""
    trace = story((0, 1, 2, 3))
    [step] = [line for line in lines_of(trace, 200) if line.startswith("4  ")]
    assert re.search(r"A\+B\+C\+D~? +A\+B\+C\+D~? +B\+C\+D +A +A +\. +\. +\. +3$", step)


def test_blocks_that_do_not_begin_at_0_are_named():
    """Where the first column is not block 0, the heading says which blocks are shown."""
    assert "blocks 1-8" in as_text(story((0, 1, 2, 3), 8, FirstBlockOne, 1), width=200)


@WIDTHS
def test_reasons_hang_beside_their_label(width):
    """A long reason goes on under its own beginning, not under its label."""
    lines = lines_of(story((0, 1, 2, 3)), width)
    for label in ("    because: ", "    also admission: "):
        start = next(n for n, line in enumerate(lines) if line.startswith(label))
        assert lines[start + 1].startswith(" " * len(label) + lines[start + 1].strip()[0])


@WIDTHS
def test_a_counterexample_names_the_law_where_it_is_broken(width):
    """The last step is marked, and the story says that no step can be left out."""
    report = check_allocator(ForgottenCopyOnWrite, profile="quick")
    lines = lines_of(report.trace, width)
    assert sum(line.endswith("<- copy-on-write") for line in lines) == 1
    assert any(line.endswith("1-minimal") for line in lines)
