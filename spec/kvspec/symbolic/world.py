"""The two worlds in which the model is read: any number of things, and a few.

In the `Unbounded` one there are any number of sequences and blocks, and a table has any number
of entries. First-order logic cannot count there, so the two numbers that the laws speak of, in how
many tables a block is and how many blocks are free, are *ghosts*: unknowns of which only the
axioms at the end of this module are known. They are the trusted part of the proofs.

In a `Small` one there are a few sequences, blocks in each tier, and entries a table and tokens a
block. All quantifiers are written out and both numbers are counted, so whatever z3 says is of a
real pool. Here the axioms are themselves checked, the hypotheses are
shown to be satisfiable, and the broken twins have their counterexamples.
"""

from collections.abc import Callable, Sequence
from itertools import combinations, product

from attrs import frozen

from kvspec.symbolic.solver import Term, remembered, z3
from kvspec.symbolic.tiers import Size

Kind = str
"""`sequence`, `block` or `entry`: what a quantifier is over."""


class World:
    """Sorts and quantifiers, and how things are counted."""

    sequences: Term
    blocks: Term
    values: Term

    def __init__(self, *, counting: bool = True) -> None:
        self.counting = counting
        """Whether the axioms are of interest; writing them out takes its time."""
        self.axioms: list[Term] = []
        """What holds of the counts that were made so far."""
        self.bounds: list[Term] = []
        """How far this world goes."""

    def assume(self, *axioms: Callable[[], Term]) -> None:
        """Add axioms about counts."""
        if self.counting:
            self.axioms += [axiom() for axiom in axioms]

    def every(self, kinds: tuple[Kind, ...], claim: Callable[..., Term]) -> Term:
        """The claim, of all things of these kinds."""
        raise NotImplementedError

    def some(self, kinds: tuple[Kind, ...], claim: Callable[..., Term]) -> Term:
        """The claim, of some things of these kinds."""
        raise NotImplementedError

    def count(self, kind: Kind, name: str, one: Callable[[Term], Term]) -> Term:
        """The number of sequences or blocks of which `one` is true."""
        raise NotImplementedError

    def small_enough(self, number: Term) -> Term:
        """Whether this world has tables of so many entries, and blocks of so many tokens."""
        raise NotImplementedError

    def function(self, name: str, *sorts: Term) -> Callable[..., Term]:
        """An unknown function; the last sort is that of its values."""
        function: Callable[..., Term] = z3.Function(name, *sorts)
        return function

    def sequence(self, name: str) -> Term:
        """An unknown sequence."""
        return z3.Const(name, self.sequences)

    def number(self, name: str) -> Term:
        """An unknown integer."""
        return z3.Int(name)


class Unbounded(World):
    """Any number of sequences, blocks and entries; what is counted is known by axioms only."""

    def __init__(self, *, counting: bool = True) -> None:
        super().__init__(counting=counting)
        self.sequences, self.blocks, self.values = map(
            z3.DeclareSort, ("Sequence", "Block", "Value")
        )

    def _bound(self, kinds: tuple[Kind, ...]) -> list[Term]:
        sorts = {"sequence": self.sequences, "block": self.blocks, "entry": z3.IntSort()}
        return [z3.FreshConst(sorts[kind], kind) for kind in kinds]

    def every(self, kinds: tuple[Kind, ...], claim: Callable[..., Term]) -> Term:
        """A quantifier; entries are all integers."""
        bound = self._bound(kinds)
        return z3.ForAll(bound, claim(*bound))

    def some(self, kinds: tuple[Kind, ...], claim: Callable[..., Term]) -> Term:
        """A quantifier."""
        bound = self._bound(kinds)
        return z3.Exists(bound, claim(*bound))

    def count(self, kind: Kind, name: str, one: Callable[[Term], Term]) -> Term:
        """A ghost: an unknown number."""
        return z3.Int(name)

    def small_enough(self, number: Term) -> Term:
        """Always."""
        return z3.BoolVal(True)


class Small(World):
    """So many sequences, blocks a tier, and entries a table; and everything is counted."""

    def __init__(self, size: Size, *, counting: bool = True) -> None:
        super().__init__(counting=counting)
        self.sequences, sequences = self._sort("Sequence", size.sequences)
        self.blocks, blocks = self._sort("Block", size.blocks)
        self.values, _ = self._sort("Value", 4)
        self.most = size.entries
        entries = [z3.IntVal(i) for i in range(size.entries)]
        self.things = {"sequence": sequences, "block": blocks, "entry": entries}

    @staticmethod
    def _sort(name: str, count: int) -> tuple[Term, list[Term]]:
        # An enumeration's name can be used once in a context.
        sort, things = z3.EnumSort(
            z3.FreshConst(z3.IntSort(), name).decl().name(),
            [z3.FreshConst(z3.IntSort(), f"{name}{n}").decl().name() for n in range(count)],
        )
        return sort, things

    def every(self, kinds: tuple[Kind, ...], claim: Callable[..., Term]) -> Term:
        """The claims, one by one."""
        return z3.And([claim(*each) for each in product(*(self.things[k] for k in kinds))])

    def some(self, kinds: tuple[Kind, ...], claim: Callable[..., Term]) -> Term:
        """One of the claims."""
        return z3.Or([claim(*each) for each in product(*(self.things[k] for k in kinds))])

    def count(self, kind: Kind, name: str, one: Callable[[Term], Term]) -> Term:
        """The sum of ones."""
        return z3.Sum([z3.If(one(each), 1, 0) for each in self.things[kind]])

    def small_enough(self, number: Term) -> Term:
        """At most so many."""
        return number <= self.most


# ------------------------------------------------------------------------------ the axioms


@frozen
class Users:
    """For each block the number of sequences that have it: a sum over all sequences of 0 or 1."""

    has: Callable[[Term, Term], Term]
    number: Callable[[Term], Term]


def users(world: World, name: str, has: Callable[[Term, Term], Term]) -> Users:
    """The users of each block, with the axioms of a finite sum of zeros and ones.

    It is not negative; one term that is 1 makes it at least 1, and two of them at least 2; and
    where it is at least 1 or 2, so many terms are 1.
    """
    has = remembered(has)
    if isinstance(world, Unbounded):
        number = world.function(name, world.blocks, z3.IntSort())
    else:
        number = remembered(lambda b: world.count("sequence", name, lambda s: has(s, b)))

    def two(block: Term) -> Term:
        return world.some(
            ("sequence", "sequence"), lambda s, t: z3.And(s != t, has(s, block), has(t, block))
        )

    world.assume(
        lambda: world.every(("block",), lambda b: number(b) >= 0),
        lambda: world.every(
            ("block", "sequence"), lambda b, s: z3.Implies(has(s, b), number(b) >= 1)
        ),
        lambda: world.every(
            ("block", "sequence", "sequence"),
            lambda b, s, t: z3.Implies(z3.And(s != t, has(s, b), has(t, b)), number(b) >= 2),
        ),
        lambda: world.every(
            ("block",),
            lambda b: z3.Implies(number(b) >= 1, world.some(("sequence",), lambda s: has(s, b))),
        ),
        lambda: world.every(("block",), lambda b: z3.Implies(number(b) >= 2, two(b))),
    )
    return Users(has, number)


def only_one_changed(world: World, before: Users, after: Users, subject: Term) -> None:
    """The axiom: a sum of which only one term changed differs by that term's change."""

    def term(of: Users, block: Term) -> Term:
        return z3.If(of.has(subject, block), 1, 0)

    def of(block: Term) -> Term:
        others = world.every(
            ("sequence",),
            lambda s: z3.Or(s == subject, before.has(s, block) == after.has(s, block)),
        )
        change = term(after, block) - term(before, block)
        return z3.Implies(others, after.number(block) == before.number(block) + change)

    world.assume(lambda: world.every(("block",), of))


@frozen
class Blocks:
    """A set of blocks, and how many they are."""

    has: Callable[[Term], Term]
    size: Term


def counted(world: World, name: str, has: Callable[[Term], Term]) -> Blocks:
    """The set of the blocks of which `has` is true; its size is not negative."""
    size = world.count("block", name, has)
    world.assume(lambda: size >= 0)
    return Blocks(has, size)


def enumerated(world: World, blocks: Blocks, length: Term, distinct: Term) -> None:
    """The axiom: a set listed without repetition is as large as the list is long."""
    world.assume(lambda: z3.Implies(z3.And(length >= 0, distinct), blocks.size == length))


def exchanged(
    world: World, before: Blocks, after: Blocks, taken: Sequence[Blocks], given: Blocks
) -> None:
    """The axiom: the size of a set from which some were taken, and to which others were given.

    What is taken was in it, each once; what is given was not.
    """

    def one(block: Term) -> Term:
        out = [each.has(block) for each in taken]
        stays = z3.And(before.has(block), *map(z3.Not, out))
        return z3.And(
            after.has(block) == z3.Or(stays, given.has(block)),
            z3.Implies(z3.Or(out), before.has(block)),
            z3.Implies(given.has(block), z3.Not(before.has(block))),
            *(z3.Not(z3.And(pair)) for pair in combinations(out, 2)),
        )

    def axiom() -> Term:
        size = before.size - z3.Sum([z3.IntVal(0), *(each.size for each in taken)]) + given.size
        return z3.Implies(world.every(("block",), one), after.size == size)

    world.assume(axiom)
