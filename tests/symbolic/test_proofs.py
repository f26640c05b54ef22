"""Proofs for any number of blocks and sequences, and what keeps them honest."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("z3", reason="z3 comes with kvspec[symbolic]")

from kvspec.symbolic import operations
from kvspec.symbolic.operations_twins import TWINS
from kvspec.symbolic.prove import AXIOMS, prove
from kvspec.symbolic.twins import Twin, exchanged_in, functions

NAMES = list(functions(Path(operations.__file__).read_text(encoding="utf-8")))
LAWS = {
    "in-pool",
    "no-overlap",
    "exact-counts",
    "no-leak",
    "free-count",
    "bounded-waste",
    "read-back",
    "prefix-sound",
}
HANDS_OUT = {"allocate", "append", "copy_on_write", "swap_out", "swap_in", "prefix_share"}


def claimed(name: str) -> set[str]:
    """The laws after an operation."""
    return LAWS | {"handed-out-once"} if name in HANDS_OUT else LAWS


def test_every_proof_is_refuted_once_after_a_twin() -> None:
    """Each law after each operation; a twin is the operation with one exchange."""
    proofs = [(name, law) for name in NAMES for law in claimed(name)]
    assert sorted((twin.of, law) for twin in TWINS for law in twin.laws) == sorted(proofs)
    assert set(NAMES) > HANDS_OUT
    source = Path(operations.__file__).read_text(encoding="utf-8")
    for twin in TWINS:
        exchange = len(twin.instead) - len(twin.written)
        assert len(exchanged_in(source, twin)) == len(source) + exchange


def test_the_page_has_as_many_proofs_and_twins_as_there_are() -> None:
    """A twin may break several laws, and is one."""
    page = Path(__file__).resolve().parents[2] / "docs" / "symbolic.md"
    proofs = sum(len(claimed(name)) for name in NAMES)
    assert proofs > len(TWINS)
    text = " ".join(page.read_text(encoding="utf-8").split())
    assert f"{proofs} proofs, of 8 or 9 laws after each of {len(NAMES)} operations" in text
    assert f"for each of them a refutation: {proofs}, by {len(TWINS)} broken twins." in text
    assert f"{proofs} refutations by {len(TWINS)} broken twins (" in text


# ------------------------------------------------------------------------------ sabotage

HEAD = """\
from attrs import evolve

from kvspec.symbolic.operations import Step
from kvspec.symbolic.solver import z3


def sabotaged(world, was):
    \"\"\"It ends a sequence that is not there, which changes nothing.\"\"\"
    s = world.sequence("subject")
"""

SOUND = """\
    return Step(s, z3.Not(was.live(s)), was.with_sequence(s, live=False), z3.BoolVal(True))
"""

TWINS_OF_IT = (
    Twin("sabotaged", "z3.Not(was.live(s))", "was.live(s)", ("no-leak", "exact-counts")),
    Twin(
        "sabotaged",
        "live=False",
        "live=True, away=was.live(s)",
        ("in-pool", "no-overlap", "read-back"),
    ),
    Twin("sabotaged", "live=False", "live=True, spare=was.block_size", ("bounded-waste",)),
    Twin(
        "sabotaged",
        "was.with_sequence(s, live=False)",
        "evolve(was, device=evolve(was.device, count=was.device.count + 1))",
        ("free-count",),
    ),
    Twin(
        "sabotaged",
        "was.with_sequence(s, live=False)",
        "evolve(was, device=evolve(was.device, cached=was.device.pool))",
        ("prefix-sound",),
    ),
)


def module(folder: Path, source: str) -> ModuleType:
    """A module with this source."""
    path = folder / "sabotaged.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("sabotaged", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_a_sound_operation_has_no_problem(tmp_path: Path) -> None:
    """The control: what the other tests change is right before."""
    sound = module(tmp_path, HEAD + SOUND)
    (result,) = prove(TWINS_OF_IT, module=sound)
    assert result.problem == ""
    (result,) = prove(TWINS_OF_IT[:-2], module=sound)
    assert result.problem == "no broken twin for free-count, prefix-sound"
    (result,) = prove([], module=sound)
    assert result.problem == "it has no broken twin"


def test_an_operation_that_is_never_allowed_is_caught(tmp_path: Path) -> None:
    """From a contradiction all laws follow; but then nothing can happen."""
    never = SOUND.replace("z3.Not(was.live(s))", "z3.And(was.live(s), z3.Not(was.live(s)))")
    (result,) = prove([], module=module(tmp_path, HEAD + never))
    assert result.confirmed
    assert result.witness == ""
    twin = Twin(
        "sabotaged", "z3.And(was.live(s)", "z3.And(z3.BoolVal(True), was.live(s)", ("no-leak",)
    )
    (result,) = prove([twin], module=module(tmp_path, HEAD + never))
    assert "is not refuted: no-leak: unsat" in result.problem


def test_a_false_axiom_is_caught(tmp_path: Path) -> None:
    """What does not hold in the small world is no axiom, whatever follows from it."""
    false = HEAD + "    world.assume(lambda: was.device.count == 0)\n" + SOUND
    (result,) = prove(TWINS_OF_IT, module=module(tmp_path, false))
    assert set(result.details.values()) == {"unsat"}
    assert result.problem == f"not confirmed: {AXIOMS}: sat"


def test_a_broken_operation_is_not_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence that ends and gives nothing back: z3 does not say "unsat" of the laws."""
    # It may look for a world with the counterexample for ever.
    monkeypatch.setattr("kvspec.symbolic.prove.TIMEOUT", 500)
    leaks = HEAD + SOUND.replace("z3.Not(was.live(s))", "was.live(s)")
    (result,) = prove([], module=module(tmp_path, leaks))
    assert result.details["no-leak"] != "unsat"
    assert not result.confirmed
