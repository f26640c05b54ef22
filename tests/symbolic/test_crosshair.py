"""CrossHair on the arithmetic and on single operations, with the twins that it must refute."""

import ast
import inspect

import pytest

from kvspec import geometry
from kvspec.symbolic import arithmetic_twins, steps_twins
from kvspec.symbolic.confirm import Part, malformed
from kvspec.symbolic.twins import broken

ARITHMETIC = Part.of("arithmetic", "kvspec.symbolic.arithmetic", arithmetic_twins.TWINS)
STEPS = Part.of("steps", "kvspec.symbolic.steps", steps_twins.TWINS)
PARTS = (ARITHMETIC, STEPS)
OBLIGATIONS = [(part, name) for part in PARTS for name in part.obligations]


def told(value: object) -> str:
    return value.name if isinstance(value, Part) else str(value)


@pytest.mark.parametrize(("part", "name"), OBLIGATIONS, ids=told)
def test_an_obligation_has_preconditions_then_work_then_one_claim(part: Part, name: str) -> None:
    """Else CrossHair would skip it, or take the claim for a precondition."""
    assert malformed(part.obligations[name]) == ""
    assert ast.get_docstring(part.obligations[name])


@pytest.mark.parametrize("part", PARTS, ids=told)
def test_every_obligation_has_a_twin_that_differs_in_one_place(part: Part) -> None:
    """The twin's source is the obligation's before and after the one exchange."""
    assert {twin.of for twin in part.twins} == set(part.obligations)
    for twin in part.twins:
        own = ast.get_source_segment(part.source, part.obligations[twin.of]) or ""
        before, after = own.split(twin.written)
        assert broken(part.source, twin, twin.of) == before + twin.instead + after


def test_every_function_of_the_arithmetic_kernel_has_an_obligation() -> None:
    """A new function of the geometry cannot come without one."""
    kernel = {
        name
        for name, value in vars(geometry).items()
        if inspect.isfunction(value) and value.__module__ == geometry.__name__
    }
    called = {
        node.func.id
        for node in ast.walk(ast.parse(ARITHMETIC.source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert {name for name in kernel if not name.startswith("_")} <= called


def test_every_operation_on_tables_has_a_step() -> None:
    """Those of the core, of sharing, of rollback and of swap, and a prefix that is shared."""
    assert list(STEPS.obligations) == [
        "allocate",
        "append",
        "copy_on_write",
        "fork",
        "free",
        "truncate",
        "swap_out",
        "swap_in",
        "prefix_share",
    ]
