"""Which laws the obligations are about, for the pages that say so."""

from pathlib import Path

import pytest

from kvspec.rooms import LAWS
from kvspec.symbolic.about import ABOUT, laws_of
from kvspec.symbolic.confirm import Part
from kvspec.symbolic.operations_twins import TWINS
from kvspec.symbolic.twins import functions

OPERATIONS = Path(__file__).resolve().parents[2] / "spec/kvspec/symbolic/operations.py"
NAMES = {
    "arithmetic": list(Part.of("arithmetic", "kvspec.symbolic.arithmetic", ()).obligations),
    "steps": list(Part.of("steps", "kvspec.symbolic.steps", ()).obligations),
    "operations": list(functions(OPERATIONS.read_text(encoding="utf-8"))),
}


@pytest.mark.parametrize(("part", "law"), [(p, law) for p in NAMES for law in ABOUT[p]])
def test_every_entry_is_about_a_law_and_chooses_something(part: str, law: str) -> None:
    """Each beginning of a name fits some obligation, and each claim is one that is proved."""
    about = ABOUT[part][law]
    assert law in {law.id for law in LAWS}
    assert all(any(name.startswith(start) for name in NAMES[part]) for start in about.names)
    assert set(about.claims) <= {claim for twin in TWINS for claim in twin.laws}


def test_what_an_obligation_bears_on_has_the_claims_that_do() -> None:
    """The whole of it, where it has one claim."""
    claims = dict.fromkeys(["no-leak", "free-count", "read-back"], "unsat")
    assert laws_of("operations", "truncate", claims) == {
        "conservation": ["no-leak", "free-count"],
        "read-back": ["read-back"],
        "rollback": ["no-leak", "free-count", "read-back"],
    }
    assert laws_of("arithmetic", "truncate_keeps_a_prefix", {}) == {"rollback": []}
    assert laws_of("steps", "swap_in", {}).keys() == {"no-overlap", "conservation", "swap"}
