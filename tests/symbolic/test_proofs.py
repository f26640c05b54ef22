"""Proofs for any number of blocks and sequences, and what keeps them honest."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("z3", reason="z3 comes with kvspec[symbolic]")

from kvspec.symbolic import operations
from kvspec.symbolic.operations_twins import TWINS
from kvspec.symbolic.prove import AXIOMS, prove
from kvspec.symbolic.twins import Twin, functions

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


@pytest.mark.parametrize("name", NAMES)
def test_all_laws_are_proved_after_the_operation(name: str) -> None:
    """ "unsat" for each law and for the axioms, a case in which it happens, and twins refuted."""
    (result,) = prove(TWINS, [name])
    assert result.problem == ""
    assert set(result.details.values()) == {"unsat"}
    laws = LAWS | {"handed-out-once"} if name in HANDS_OUT else LAWS
    assert set(result.details) == laws | {AXIOMS}


def test_every_operation_and_every_law_has_a_twin() -> None:
    """Each operation is broken somehow, and each law by somebody."""
    assert list(dict.fromkeys(twin.of for twin in TWINS)) == NAMES
    assert {twin.law for twin in TWINS} == LAWS | {"handed-out-once"}
    assert set(NAMES) > HANDS_OUT


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

TWIN = Twin("sabotaged", "z3.Not(was.live(s))", "was.live(s)", "no-leak")


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
    (result,) = prove([TWIN], module=module(tmp_path, HEAD + SOUND))
    assert result.problem == ""


def test_an_operation_that_is_never_allowed_is_caught(tmp_path: Path) -> None:
    """From a contradiction all laws follow; but then nothing can happen."""
    never = SOUND.replace("z3.Not(was.live(s))", "z3.And(was.live(s), z3.Not(was.live(s)))")
    (result,) = prove([], module=module(tmp_path, HEAD + never))
    assert result.confirmed
    assert result.witness == ""
    twin = Twin(
        "sabotaged", "z3.And(was.live(s)", "z3.And(z3.BoolVal(True), was.live(s)", "no-leak"
    )
    (result,) = prove([twin], module=module(tmp_path, HEAD + never))
    assert "is not refuted: no-leak: unsat" in result.problem


def test_a_false_axiom_is_caught(tmp_path: Path) -> None:
    """What does not hold in the small world is no axiom, whatever follows from it."""
    false = HEAD + "    world.assume(lambda: was.device.count == 0)\n" + SOUND
    (result,) = prove([TWIN], module=module(tmp_path, false))
    assert result.details[AXIOMS] == "sat"
    assert result.problem == f"not confirmed: {AXIOMS}: sat"


def test_a_broken_operation_is_not_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence that ends and gives nothing back: z3 does not say "unsat" of the laws."""
    # It may look for a world with the counterexample for ever.
    monkeypatch.setattr("kvspec.symbolic.prove.TIMEOUT", 500)
    leaks = HEAD + SOUND.replace("z3.Not(was.live(s))", "was.live(s)")
    (result,) = prove([], module=module(tmp_path, leaks))
    assert result.details["no-leak"] != "unsat"
    assert not result.confirmed
