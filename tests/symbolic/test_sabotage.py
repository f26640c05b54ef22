"""Ways in which nothing is asked and success is heard; each must be caught."""

import pytest

from kvspec.symbolic.confirm import CONFIRMED, Part, confirm
from kvspec.symbolic.results import Result
from kvspec.symbolic.twins import Twin

SOURCE = '''\
def sound(length: int) -> None:
    """The control: nothing is wrong with it."""
    assert length >= 1
    double = 2 * length
    assert double > length


def contradicts_itself(length: int) -> None:
    assert length >= 1
    assert length <= 0
    double = 2 * length
    assert double == length


def begins_with_no_assert(length: int) -> None:
    double = 2 * length
    assert double == length


def claims_among_the_preconditions(length: int) -> None:
    assert length >= 1
    assert 2 * length == length
    double = 2 * length
    assert double == length


def has_nothing_between(length: int) -> None:
    assert length >= 1
    assert 2 * length == length


def claims_what_is_always_true(length: int) -> None:
    assert length >= 1
    double = 2 * length
    assert double == double


def is_false(length: int) -> None:
    assert length >= 0
    double = 2 * length
    assert double > length


def raises_something_else(length: int) -> None:
    assert length >= 1
    half = 1 // length
    assert half <= 1


def has_no_twin(length: int) -> None:
    assert length >= 1
    double = 2 * length
    assert double > length


def has_twins_that_widen_the_preconditions_only(length: int) -> None:
    assert length >= 1
    double = 2 * length
    assert double > length
'''

TWINS = (
    Twin("sound", "double > length", "double < length"),
    Twin("contradicts_itself", "double == length", "double != length"),
    Twin("begins_with_no_assert", "double == length", "double != length"),
    Twin("claims_among_the_preconditions", "double == length", "double != length"),
    Twin("has_nothing_between", "2 * length == length", "2 * length != length"),
    Twin("claims_what_is_always_true", "2 * length", "3 * length"),
    Twin("is_false", "double > length", "double < length"),
    Twin("raises_something_else", "length >= 1", "length >= 0"),
    Twin("has_twins_that_widen_the_preconditions_only", "length >= 1", "length >= 0"),
)

CAUGHT = {
    "sound": "",
    "contradicts_itself": "the broken twin double == length -> double != length is not refuted: "
    + CONFIRMED,
    "begins_with_no_assert": "not confirmed: it does not begin with an assert: CrossHair would "
    "skip it",
    "claims_among_the_preconditions": "the broken twin double == length -> double != length is not "
    f"refuted: {CONFIRMED}",
    "has_nothing_between": "not confirmed: no statement stands between the preconditions and the "
    "claim",
    "claims_what_is_always_true": "the broken twin 2 * length -> 3 * length is not refuted: "
    + CONFIRMED,
    "raises_something_else": "the broken twin length >= 1 -> length >= 0 is not refuted: "
    "ZeroDivisionError:  when calling raises_something_else_twin_1(0)",
    "has_no_twin": "it has no broken twin",
    "has_twins_that_widen_the_preconditions_only": "no case is known that meets the preconditions",
}


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    """What the runner makes of the sabotaged obligations."""
    pytest.importorskip("crosshair", reason="CrossHair comes with kvspec[symbolic]")
    return {result.name: result for result in confirm([Part("sabotaged", SOURCE, TWINS)])}


@pytest.mark.parametrize("name", CAUGHT)
def test_a_sabotaged_obligation_is_caught(results: dict[str, Result], name: str) -> None:
    """It is not counted as confirmed, and the reason is said; the control is counted."""
    assert results[name].problem == CAUGHT[name]


def test_a_false_obligation_is_not_confirmed(results: dict[str, Result]) -> None:
    """CrossHair's own words are shown, with the counterexample."""
    problem = results["is_false"].problem
    assert problem.startswith("not confirmed: AssertionError:  when calling is_false(")


def test_crosshair_itself_falls_for_some_of_them(results: dict[str, Result]) -> None:
    """Contradictions and claims among the preconditions read "Confirmed": hence the twins."""
    for name in ("contradicts_itself", "claims_among_the_preconditions"):
        assert results[name].verdict == CONFIRMED


@pytest.mark.parametrize("written", ["no such text", "length"])
def test_a_twin_whose_exchange_is_not_clear_is_an_error(written: str) -> None:
    """What is exchanged must be in the obligation exactly once."""
    part = Part("sabotaged", SOURCE, (Twin("sound", written, "0"),))
    with pytest.raises(ValueError, match=f"'{written}' must be in sound exactly once"):
        part.broken()
