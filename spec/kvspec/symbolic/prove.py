"""What z3 says of the model: the laws hold after every operation that is allowed, if before.

The obligation of each law is refuted by z3 ("unsat": nothing meets the hypotheses and breaks the
law) for any number of blocks and sequences. That the hypotheses are no contradiction is shown in
the small world ("sat", with something happening), and there each broken twin has a
counterexample; so a twin is not merely beyond what z3 can prove.
"""

import inspect
from collections.abc import Callable
from time import perf_counter
from typing import Any

from attrs import frozen

from kvspec.symbolic import operations
from kvspec.symbolic.model import TIERS, Counts, State, counts, laws, unknown_state
from kvspec.symbolic.operations import Step
from kvspec.symbolic.results import Refutation, Result
from kvspec.symbolic.solver import Term, z3
from kvspec.symbolic.twins import Twin, broken, functions
from kvspec.symbolic.world import Blocks, Small, Unbounded, World, exchanged, only_one_changed

TIMEOUT = 20_000
"""Milliseconds for one question; none takes a hundredth of it."""

Operation = Callable[[World, State], Step]


@frozen
class Question:
    """An operation in a world: what is assumed, and the claims of which each must follow."""

    world: World
    hypotheses: Term
    happens: Term
    claims: dict[str, Term]


def question(world: World, operation: Operation) -> Question:
    """What is asked about `operation`."""
    before = unknown_state(world)
    step = operation(world, before)
    counted_before = counts(world, "before", before)
    counted_after = counts(world, "after", step.after)
    none = Blocks(lambda b: z3.BoolVal(False), z3.IntVal(0))
    for tier in TIERS:
        taken = [step.handed[tier].set] if tier in step.handed else []
        taken += [step.revived[tier]] if tier in step.revived else []
        only_one_changed(world, counted_before.users[tier], counted_after.users[tier], step.subject)
        exchanged(
            world,
            counted_before.free[tier],
            counted_after.free[tier],
            tuple(taken),
            step.given.get(tier, none),
        )
    for state in (before, step.after):
        world.bounds.append(
            world.every(("sequence",), lambda s, of=state: world.small_enough(of.blocks(s)))
        )
    held = laws(world, before, counted_before)
    return Question(
        world,
        z3.And(*held.values(), before.block_size >= 1, step.allowed, *world.bounds),
        step.happens,
        {
            **laws(world, step.after, counted_after),
            **_handed_out(world, step, counted_before, counted_after),
        },
    )


def _handed_out(world: World, step: Step, before: Counts, after: Counts) -> dict[str, Term]:
    """The law of the step: what is handed out was in no table, and is in one now."""

    def once(tier: str) -> Term:
        return world.every(
            ("block",),
            lambda b: z3.Implies(
                step.handed[tier].has(b),
                z3.And(before.users[tier].number(b) == 0, after.users[tier].number(b) == 1),
            ),
        )

    return {"handed-out-once": z3.And([once(tier) for tier in step.handed])} if step.handed else {}


def ask(*claims: Term) -> str:
    """z3's own word: "sat" if something meets all claims, "unsat" if nothing does."""
    solver = z3.Solver()
    solver.set("timeout", TIMEOUT)
    solver.add(*claims)
    return str(solver.check())


OPERATIONS: dict[str, Operation] = {
    name: getattr(operations, name) for name in functions(inspect.getsource(operations))
}
