"""z3, which has no types of its own: all that it makes is a `Term`."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

z3: Any = import_module("z3")

Term = Any
"""A term of first-order logic, of whichever sort."""


def remembered(function: Callable[..., Term]) -> Callable[..., Term]:
    """The function, which makes each term once only; terms are told apart by what they are."""
    made: dict[tuple[int, ...], tuple[tuple[Term, ...], Term]] = {}

    def once(*terms: Term) -> Term:
        key = tuple(term.get_id() for term in terms)
        if key not in made:
            # The arguments are kept alive, since another term may get the id of a dead one.
            made[key] = terms, function(*terms)
        return made[key][1]

    return once
