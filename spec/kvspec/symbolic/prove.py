"""What z3 says of the model: the laws hold after every operation that is allowed, if before.

Each law after each operation is a question of its own: z3 must find that nothing meets the
hypotheses and breaks the law ("unsat"), for any number of blocks and sequences. In the small
world the hypotheses must be satisfiable, with something happening ("sat"), and each broken twin
must have a counterexample there; so a twin is not merely beyond what z3 can prove.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from string import ascii_lowercase, ascii_uppercase
from time import process_time
from types import ModuleType
from typing import Any

from attrs import frozen

from kvspec.symbolic import operations
from kvspec.symbolic.model import TIERS, Counts, State, counts, laws, unknown_state
from kvspec.symbolic.operations import Step
from kvspec.symbolic.results import Refutation, Result
from kvspec.symbolic.solver import Term, z3
from kvspec.symbolic.tiers import FAST, Size
from kvspec.symbolic.twins import Twin, exchanged_in, functions
from kvspec.symbolic.world import Blocks, Small, Unbounded, World, exchanged, only_one_changed

TIMEOUT = 20_000
"""Milliseconds for one question; none of the fast tier takes a tenth of it."""

AXIOMS = "axioms, in the small world"

Operation = Callable[[World, State], Step]
Say = Callable[[str], None]


@frozen
class Question:
    """An operation in a world: what is assumed, and the laws of which each must follow."""

    before: State
    bounds: list[Term]
    axioms: list[Term]
    hypotheses: list[Term]
    happens: Term
    claims: dict[str, Term]


def question(world: World, operation: Operation) -> Question:
    """What is asked about `operation` in `world`."""
    before = unknown_state(world)
    step = operation(world, before)
    was, now = counts(world, "before", before), counts(world, "after", step.after)
    nothing = Blocks(lambda b: z3.BoolVal(False), z3.IntVal(0))
    for tier in TIERS:
        taken = [step.handed[tier].set] if tier in step.handed else []
        taken += [step.revived[tier]] if tier in step.revived else []
        given = step.given.get(tier, nothing)
        only_one_changed(world, was.users[tier], now.users[tier], step.subject)
        exchanged(world, step.pools.get(tier, was.free[tier]), now.free[tier], taken, given)
    world.bounds += [
        world.every(("sequence",), lambda s, of=state: world.small_enough(of.blocks(s)))
        for state in (before, step.after)
    ]
    world.bounds.append(world.small_enough(before.block_size))
    known = [] if step.pools else [*laws(world, before, was).values()]
    return Question(
        before=before,
        bounds=world.bounds,
        axioms=world.axioms,
        hypotheses=[before.block_size >= 1, step.allowed, *known],
        happens=step.happens,
        claims={**laws(world, step.after, now), **_handed_out(world, step, was, now)},
    )


def _handed_out(world: World, step: Step, was: Counts, now: Counts) -> dict[str, Term]:
    """The law of the step: what is handed out was in no table, and is in exactly one now."""

    def once(tier: str) -> Term:
        def of(block: Term) -> Term:
            before, after = was.users[tier].number(block), now.users[tier].number(block)
            return z3.Implies(step.handed[tier].has(block), z3.And(before == 0, after == 1))

        return world.every(("block",), of)

    claims = [once(tier) for tier in step.handed]
    return {"handed-out-once": z3.And(claims)} if claims else {}


def ask(*claims: Term) -> tuple[str, Any]:
    """z3's own word, and the model: "sat" if something meets the claims, "unsat" if nothing."""
    solver = z3.Solver()
    solver.set("timeout", TIMEOUT)
    solver.add(*claims)
    word = str(solver.check())
    return word, solver.model() if word == "sat" else None


# ------------------------------------------------------------------------------ verdicts


def prove(
    twins: Sequence[Twin],
    names: Iterable[str] | None = None,
    *,
    module: ModuleType = operations,
    size: Size = FAST.small,
    say: Say = lambda name: None,
) -> list[Result]:
    """What z3 says of the operations of `module`, or of those named, and of their twins.

    The small world has that `size`.
    """
    source = inspect.getsource(module)
    results = []
    for name in functions(source) if names is None else names:
        operation: Operation = getattr(module, name)
        refutations = []
        for twin in twins:
            if twin.of == name:
                refutations += _refuted(module, source, twin, size)
                say(f"{name}: {', '.join(twin.laws)}")
        results.append(_proved(name, operation, tuple(refutations), size))
        say(name)
    return results


def _proved(name: str, operation: Operation, twins: tuple[Refutation, ...], size: Size) -> Result:
    start = process_time()
    asked = question(Unbounded(), operation)
    assumed = (*asked.axioms, *asked.hypotheses)
    details = {law: ask(*assumed, z3.Not(claim))[0] for law, claim in asked.claims.items()}
    seconds = process_time() - start
    world = Small(size)
    small = question(world, operation)
    # Of any state that is small enough, not only of lawful ones.
    axioms = ask(*small.bounds, z3.Not(z3.And(small.axioms)))[0]
    word, model = ask(*small.bounds, *small.hypotheses, small.happens, *small.claims.values())
    said = {**details, AXIOMS: axioms}
    odd = ", ".join(f"{law}: {word}" for law, word in said.items() if word != "unsat")
    return Result(
        part="operations",
        name=name,
        statement=(inspect.getdoc(operation) or "").partition("\n")[0],
        verdict=odd or f"{len(asked.claims)} laws proved",
        confirmed=not odd,
        witness=shown(model, world, small.before) if word == "sat" else "",
        seconds=seconds,
        twins=twins,
        details=details,
    )


def _refuted(module: ModuleType, source: str, twin: Twin, size: Size) -> list[Refutation]:
    """What z3 says of each law that the twin must break."""
    start = process_time()
    namespace: dict[str, Any] = {"__name__": f"{module.__name__}_broken"}
    exec(compile(exchanged_in(source, twin), "<twin>", "exec"), namespace)
    world = Small(size, counting=False)
    asked = question(world, namespace[twin.of])
    refutations = []
    for law in twin.laws:
        word, model = ask(*asked.bounds, *asked.hypotheses, z3.Not(asked.claims[law]))
        refutations.append(
            Refutation(
                exchange=str(twin),
                verdict=f"{law}: {word}",
                refuted=word == "sat",
                seconds=process_time() - start,
                counterexample=shown(model, world, asked.before) if word == "sat" else "",
                claim=law,
            )
        )
        start = process_time()
    return refutations


def shown(model: Any, world: Small, state: State) -> str:
    """The tables of `state` in a model: `A [a b] +1` has two blocks, and one slot to spare."""

    def value(term: Term) -> Any:
        return model.eval(term, model_completion=True)

    def table(seq: Term) -> str:
        tier = "host" if z3.is_true(value(state.away(seq))) else "device"
        entries = range(value(state.blocks(seq)).as_long())
        found = [value(state.tier(tier).entry(seq, z3.IntVal(i))) for i in entries]
        blocks = " ".join(ascii_lowercase[world.things["block"].index(block)] for block in found)
        spare = value(state.spare(seq)).as_long()
        on_host = "on the host " if tier == "host" else ""
        return f"{on_host}[{blocks}]{f' +{spare}' if spare else ''}"

    live = [
        f"{name} {table(seq)}"
        for name, seq in zip(ascii_uppercase, world.things["sequence"], strict=False)
        if z3.is_true(value(state.live(seq)))
    ]
    return ", ".join(live) or "no sequences"
