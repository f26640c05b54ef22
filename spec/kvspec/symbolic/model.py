"""An allocator in first-order logic, in units of blocks: its state, and the laws of it.

A sequence has `blocks` entries and `spare` unused slots in the last; so its length in tokens is
`blocks * block_size - spare`, and the block size stands in no index. That each length is
exactly one such pair, and that lengths are ordered as these pairs are, is confirmed by CrossHair
in `arithmetic` (`blocks_and_spare_...`).

A state consists of functions from terms to terms. What stands for the allocator's own
bookkeeping is a function of its own, and no abbreviation: `refs` is the number that it keeps
beside a block, `free` its free list and `count` its counter. That they agree with the tables is
what is proved. `index` is a Skolem function: where in its table a sequence has a block.

A block's contents are one value: what a sequence wrote into its slots, all together. Writing behind
the tokens that are there already makes another value of the old one (`extended`).
"""

from collections.abc import Callable
from typing import Any

from attrs import evolve, frozen

from kvspec.symbolic.solver import Term, z3
from kvspec.symbolic.world import Blocks, Users, World, counted, enumerated, users

Function = Callable[..., Term]


@frozen
class Tier:
    """The blocks of one memory, and what the allocator believes of them."""

    pool: Function
    """Which blocks there are."""
    entry: Function
    """The block of an entry of a sequence's table."""
    index: Function
    """The entry at which a sequence has a block, if it has it."""
    refs: Function
    free: Function
    count: Term
    contents: Function
    cached: Function
    """Which blocks the prefix cache can find; those without users are free all the same."""
    stored: Function
    """Under which contents it finds a block."""

    def handing_out(self, fresh: "Fresh", contents: Function) -> "Tier":
        """The tier after all of `fresh` were handed out; `contents` is what they contain then."""
        return evolve(
            self,
            refs=lambda b: z3.If(fresh.has(b), 1, self.refs(b)),
            free=lambda b: z3.And(self.free(b), z3.Not(fresh.has(b))),
            count=self.count - fresh.count,
            contents=lambda b: z3.If(fresh.has(b), contents(b), self.contents(b)),
            cached=lambda b: z3.And(self.cached(b), z3.Not(fresh.has(b))),
        )

    def letting_go(self, mine: Function, gone: Blocks) -> "Tier":
        """The tier after a table let go of the blocks `mine`, of which `gone` become free."""
        return evolve(
            self,
            refs=lambda b: self.refs(b) - z3.If(mine(b), 1, 0),
            free=lambda b: z3.Or(self.free(b), gone.has(b)),
            count=self.count + gone.size,
        )

    def showing(self, seq: Term, entry: Function, index: Function) -> "Tier":
        """The tier in which the table of `seq` has the entries `entry`, found by `index`."""
        return evolve(
            self,
            entry=lambda s, i: z3.If(s == seq, entry(i), self.entry(s, i)),
            index=lambda s, b: z3.If(s == seq, index(b), self.index(s, b)),
        )


@frozen
class State:
    """The sequences, and both tiers; `away` says which sequences are on the host."""

    block_size: Term
    live: Function
    away: Function
    blocks: Function
    spare: Function
    want: Function
    """What a sequence must read in an entry: what was written there."""
    device: Tier
    host: Tier

    def resides(self, tier: str, seq: Term) -> Term:
        """Whether a sequence lives in that tier."""
        there = self.away(seq) if tier == "host" else z3.Not(self.away(seq))
        return z3.And(self.live(seq), there)

    def tier(self, name: str) -> Tier:
        """The tier of that name."""
        return self.host if name == "host" else self.device

    def has(self, tier: str, seq: Term, block: Term) -> Term:
        """Whether `block` of a tier is in the table of `seq`."""
        at = self.tier(tier).index(seq, block)
        inside = z3.And(at >= 0, at < self.blocks(seq))
        return z3.And(self.resides(tier, seq), inside, self.tier(tier).entry(seq, at) == block)

    def with_sequence(self, seq: Term, **facts: Term | Function) -> "State":
        """The state with other facts about one sequence; `want` is given as a function."""

        def exchanged(name: str, fact: Any) -> Function:
            old = getattr(self, name)
            if callable(fact):
                return lambda s, i: z3.If(s == seq, fact(i), old(s, i))
            return lambda s: z3.If(s == seq, fact, old(s))

        changed: dict[str, Any] = {name: exchanged(name, fact) for name, fact in facts.items()}
        return evolve(self, **changed)


def unknown_state(world: World) -> State:
    """Any state."""
    seq, block, value = world.sequences, world.blocks, world.values
    number, truth = z3.IntSort(), z3.BoolSort()

    def tier(name: str) -> Tier:
        def function(of: str, *sorts: Term) -> Function:
            return world.function(f"{name} {of}", *sorts)

        return Tier(
            pool=function("pool", block, truth),
            entry=function("entry", seq, number, block),
            index=function("index", seq, block, number),
            refs=function("refs", block, number),
            free=function("free", block, truth),
            count=world.number(f"{name} count"),
            contents=function("contents", block, value),
            cached=function("cached", block, truth),
            stored=function("stored", block, value),
        )

    return State(
        block_size=world.number("block size"),
        live=world.function("live", seq, truth),
        away=world.function("away", seq, truth),
        blocks=world.function("blocks", seq, number),
        spare=world.function("spare", seq, number),
        want=world.function("want", seq, number, value),
        device=tier("device"),
        host=tier("host"),
    )


class Fresh:
    """A list of `count` blocks, none twice: those which an operation takes, in order."""

    def __init__(self, world: World, name: str) -> None:
        self.count = world.number(f"{name} count")
        self.block = world.function(name, z3.IntSort(), world.blocks)
        self.slot = world.function(f"{name} slot", world.blocks, z3.IntSort())
        self.world = world
        self.distinct = world.every(
            ("entry",),
            lambda i: z3.Implies(self.listed(i), self.slot(self.block(i)) == i),
        )
        self.set = counted(world, f"{name} size", self.has)
        enumerated(world, self.set, self.count, self.distinct)
        world.bounds.append(world.small_enough(self.count))

    def listed(self, at: Term) -> Term:
        """Whether there is a block at that place of the list."""
        return z3.And(at >= 0, at < self.count)

    def has(self, block: Term) -> Term:
        """Whether a block is in the list."""
        return z3.And(self.listed(self.slot(block)), self.block(self.slot(block)) == block)

    def all(self, claim: Function) -> Term:
        """Whether the list is one, and the claim is true of each of its blocks."""
        each = self.world.every(
            ("entry",), lambda i: z3.Implies(self.listed(i), claim(self.block(i)))
        )
        return z3.And(self.count >= 0, self.distinct, each)


# ------------------------------------------------------------------------------ the laws

TIERS = ("device", "host")


@frozen
class Counts:
    """What is counted in a state: the users of each block, and the free blocks, by tier."""

    users: dict[str, Users]
    free: dict[str, Blocks]


def counts(world: World, name: str, state: State) -> Counts:
    """The counts in `state`."""

    def of(tier: str) -> Users:
        return users(world, f"{name} {tier} users", lambda s, b: state.has(tier, s, b))

    return Counts(
        users={tier: of(tier) for tier in TIERS},
        free={
            tier: counted(world, f"{name} {tier} free size", state.tier(tier).free)
            for tier in TIERS
        },
    )


def laws(world: World, state: State, counted: Counts) -> dict[str, Term]:
    """The laws of a state, by name; those about blocks are of both tiers."""

    def entries(claim: Callable[[Tier, Term, Term], Term]) -> Term:
        return z3.And(
            [
                world.every(
                    ("sequence", "entry"),
                    lambda s, i, tier=tier: z3.Implies(
                        z3.And(state.resides(tier, s), i >= 0, i < state.blocks(s)),
                        claim(state.tier(tier), s, i),
                    ),
                )
                for tier in TIERS
            ]
        )

    def blocks(claim: Callable[[str, Tier, Term], Term]) -> Term:
        return z3.And(
            [
                world.every(
                    ("block",),
                    lambda b, tier=tier: z3.Implies(
                        state.tier(tier).pool(b), claim(tier, state.tier(tier), b)
                    ),
                )
                for tier in TIERS
            ]
        )

    def count(tier: str) -> Term:
        return state.tier(tier).count == counted.free[tier].size

    return {
        # Every entry is a block of the pool.
        "in-pool": entries(lambda tier, s, i: tier.pool(tier.entry(s, i))),
        # No table has a block twice.
        "no-overlap": entries(lambda tier, s, i: tier.index(s, tier.entry(s, i)) == i),
        # The number kept beside a block is the number of tables that have it.
        "exact-counts": blocks(lambda name, tier, b: tier.refs(b) == counted.users[name].number(b)),
        # What no table has is free, and nothing else is.
        "no-leak": z3.And(
            blocks(lambda name, tier, b: tier.free(b) == (counted.users[name].number(b) == 0)),
            *(
                world.every(
                    ("block",),
                    lambda b, tier=tier: z3.Implies(
                        state.tier(tier).free(b), state.tier(tier).pool(b)
                    ),
                )
                for tier in TIERS
            ),
        ),
        # The counter of free blocks is right.
        "free-count": z3.And([count(tier) for tier in TIERS]),
        # Less than a block is unused, and nothing where there is no block.
        "bounded-waste": world.every(
            ("sequence",),
            lambda s: z3.Implies(state.live(s), fits(state, state.blocks(s), state.spare(s))),
        ),
        # Every sequence reads what was written for it.
        "read-back": entries(
            lambda tier, s, i: tier.contents(tier.entry(s, i)) == state.want(s, i)
        ),
        # What the cache finds contains what it is found by.
        "prefix-sound": blocks(
            lambda _, tier, b: z3.Implies(tier.cached(b), tier.contents(b) == tier.stored(b))
        ),
    }


def fits(state: State, blocks: Term, spare: Term) -> Term:
    """Whether some length has so many blocks, and so many slots to spare in the last."""
    inside = z3.And(spare >= 0, spare < state.block_size)
    return z3.And(blocks >= 0, inside, z3.Implies(blocks == 0, spare == 0))
