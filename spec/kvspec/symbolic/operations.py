"""The operations of the model: what each is allowed to do, and the state after it.

Each function takes any state and gives a `Step`. What an operation takes is any list of free
blocks of the right length: so no policy is assumed. `happens` describes a case in which there is
something to see, and which must be possible. Each operation is about one sequence, and leaves the
tables of all others as they were.
"""

from attrs import evolve, field, frozen

from kvspec.symbolic.model import Fresh, State, Tier, fits
from kvspec.symbolic.solver import Term, z3
from kvspec.symbolic.world import Blocks, World, counted


@frozen
class Step:
    """What an operation does: if it is `allowed`, then this is the state `after` it.

    By tier: `handed` are the free blocks that it took for writing, `revived` those that it took
    with their contents, and `given` those that became free. `pools` are the free blocks of the
    beginning, which assumes nothing of what was.
    """

    subject: Term
    allowed: Term
    after: State
    happens: Term
    handed: dict[str, Fresh] = field(factory=dict)
    revived: dict[str, Blocks] = field(factory=dict)
    given: dict[str, Blocks] = field(factory=dict)
    pools: dict[str, Blocks] = field(factory=dict)


def initial(world: World, was: State) -> Step:
    """A fresh allocator: no sequences, nothing cached, and all blocks of both pools are free."""

    pools = {
        "device": counted(world, "device pool size", was.device.pool),
        "host": counted(world, "host pool size", was.host.pool),
    }

    def fresh(tier: Tier, pool: Blocks) -> Tier:
        return evolve(
            tier,
            refs=lambda b: z3.IntVal(0),
            free=pool.has,
            count=pool.size,
            cached=lambda b: z3.BoolVal(False),
        )

    return Step(
        subject=world.sequence("nobody"),
        allowed=z3.BoolVal(True),
        after=evolve(
            was,
            live=lambda s: z3.BoolVal(False),
            device=fresh(was.device, pools["device"]),
            host=fresh(was.host, pools["host"]),
        ),
        happens=pools["device"].size == 2,
        pools=pools,
    )


def allocate(world: World, was: State) -> Step:
    """A new sequence takes as many free blocks as it needs."""
    s, spare, fresh = world.sequence("new"), world.number("spare"), Fresh(world, "fresh")
    written = world.function("written", z3.IntSort(), world.values)
    device = was.device.handing_out(fresh, lambda b: written(fresh.slot(b)))
    after = evolve(was, device=device.showing(s, fresh.block, fresh.slot)).with_sequence(
        s, live=True, away=False, blocks=fresh.count, spare=spare, want=written
    )
    return Step(
        subject=s,
        allowed=z3.And(
            z3.Not(was.live(s)), fresh.all(was.device.free), fits(was, fresh.count, spare)
        ),
        after=after,
        happens=z3.And(fresh.count == 2, spare > 0, _others(world, was, s)),
        handed={"device": fresh},
    )


def append(world: World, was: State) -> Step:
    """A sequence that has its tail alone writes into it, and takes free blocks for the rest."""
    s, spare, fresh = world.sequence("subject"), world.number("spare now"), Fresh(world, "fresh")
    written = world.function("written", z3.IntSort(), world.values)
    more = z3.Const("more", world.values)
    blocks, partly = was.blocks(s), was.spare(s) > 0
    tail = was.device.entry(s, blocks - 1)

    def contents(block: Term) -> Term:
        into_tail = z3.And(partly, block == tail)
        return z3.If(
            into_tail,
            _extended(world, was.device.contents(block), more),
            was.device.contents(block),
        )

    def want(i: Term) -> Term:
        into_tail = z3.And(partly, i == blocks - 1)
        old = z3.If(into_tail, _extended(world, was.want(s, i), more), was.want(s, i))
        return z3.If(i < blocks, old, written(i - blocks))

    device = evolve(
        was.device,
        contents=contents,
        cached=lambda b: z3.And(was.device.cached(b), z3.Not(z3.And(partly, b == tail))),
    )
    device = device.handing_out(fresh, lambda b: written(fresh.slot(b))).showing(
        s,
        lambda i: z3.If(i < blocks, was.device.entry(s, i), fresh.block(i - blocks)),
        lambda b: z3.If(fresh.has(b), blocks + fresh.slot(b), was.device.index(s, b)),
    )
    return Step(
        subject=s,
        allowed=z3.And(
            was.resides("device", s),
            fresh.all(was.device.free),
            fits(was, blocks + fresh.count, spare),
            z3.Or(fresh.count > 0, spare < was.spare(s)),
            z3.Implies(partly, was.device.refs(tail) == 1),
        ),
        after=evolve(was, device=device).with_sequence(
            s, blocks=blocks + fresh.count, spare=spare, want=want
        ),
        happens=z3.And(partly, fresh.count == 1, _others(world, was, s)),
        handed={"device": fresh},
    )


def copy_on_write(world: World, was: State) -> Step:
    """A sequence whose tail others have too writes into a copy of it, its first new block."""
    s, spare, fresh = world.sequence("subject"), world.number("spare now"), Fresh(world, "fresh")
    written = world.function("written", z3.IntSort(), world.values)
    more = z3.Const("more", world.values)
    kept = was.blocks(s) - 1
    tail = was.device.entry(s, kept)
    copied = was.device.contents(tail)

    def contents(block: Term) -> Term:
        at = fresh.slot(block)
        return z3.If(at == 0, _extended(world, copied, more), written(at))

    def want(i: Term) -> Term:
        new = z3.If(i == kept, _extended(world, was.want(s, i), more), written(i - kept))
        return z3.If(i < kept, was.want(s, i), new)

    device = was.device.letting_go(lambda b: b == tail, _none(world))
    device = device.handing_out(fresh, contents).showing(
        s,
        lambda i: z3.If(i < kept, was.device.entry(s, i), fresh.block(i - kept)),
        lambda b: z3.If(fresh.has(b), kept + fresh.slot(b), was.device.index(s, b)),
    )
    return Step(
        subject=s,
        allowed=z3.And(
            was.resides("device", s),
            was.spare(s) > 0,
            was.device.refs(tail) > 1,
            fresh.all(was.device.free),
            fits(was, kept + fresh.count, spare),
            z3.Or(fresh.count > 1, z3.And(fresh.count == 1, spare < was.spare(s))),
        ),
        after=evolve(was, device=device).with_sequence(
            s, blocks=kept + fresh.count, spare=spare, want=want
        ),
        happens=z3.And(kept == 1, fresh.count == 2),
        handed={"device": fresh},
    )


def fork(world: World, was: State) -> Step:
    """A child has its parent's blocks, each with one reference more."""
    parent, child = world.sequence("parent"), world.sequence("child")
    device = evolve(
        was.device,
        refs=lambda b: was.device.refs(b) + z3.If(was.has("device", parent, b), 1, 0),
    ).showing(
        child,
        lambda i: was.device.entry(parent, i),
        lambda b: was.device.index(parent, b),
    )
    after = evolve(was, device=device).with_sequence(
        child,
        live=True,
        away=False,
        blocks=was.blocks(parent),
        spare=was.spare(parent),
        want=lambda i: was.want(parent, i),
    )
    return Step(
        subject=child,
        allowed=z3.And(was.resides("device", parent), z3.Not(was.live(child))),
        after=after,
        happens=z3.And(was.blocks(parent) == 2, _others(world, was, parent)),
    )


def free(world: World, was: State) -> Step:
    """A sequence ends, wherever it is; the blocks that it was the last to have become free."""
    s = world.sequence("subject")

    def gone(tier: str) -> Blocks:
        refs = was.tier(tier).refs
        return counted(
            world,
            f"{tier} gone",
            lambda b: z3.And(was.has(tier, s, b), refs(b) == 1),
        )

    given = {"device": gone("device"), "host": gone("host")}
    after = evolve(
        was,
        device=was.device.letting_go(lambda b: was.has("device", s, b), given["device"]),
        host=was.host.letting_go(lambda b: was.has("host", s, b), given["host"]),
    )
    return Step(
        subject=s,
        allowed=was.live(s),
        after=after.with_sequence(s, live=False),
        happens=z3.And(was.blocks(s) == 2, given["device"].size == 1),
        given=given,
    )


def truncate(world: World, was: State) -> Step:
    """A sequence gives up its last entries, and becomes shorter."""
    s, blocks, spare = world.sequence("subject"), world.number("kept"), world.number("spare now")

    def dropped(block: Term) -> Term:
        return z3.And(was.has("device", s, block), was.device.index(s, block) >= blocks)

    gone = counted(world, "gone", lambda b: z3.And(dropped(b), was.device.refs(b) == 1))
    shorter = z3.Or(blocks < was.blocks(s), spare >= was.spare(s))
    return Step(
        subject=s,
        allowed=z3.And(
            was.resides("device", s), blocks <= was.blocks(s), fits(was, blocks, spare), shorter
        ),
        after=evolve(was, device=was.device.letting_go(dropped, gone)).with_sequence(
            s, blocks=blocks, spare=spare
        ),
        happens=z3.And(blocks == 1, was.blocks(s) == 3, gone.size == 1),
        given={"device": gone},
    )


def swap_out(world: World, was: State) -> Step:
    """A sequence gets host blocks of its own, with copies, and lets go of its device blocks."""
    return _swap(world, was, "device", "host")


def swap_in(world: World, was: State) -> Step:
    """A sequence gets device blocks of its own, with copies, and lets go of its host blocks."""
    return _swap(world, was, "host", "device")


def _swap(world: World, was: State, source: str, to: str) -> Step:
    s, fresh = world.sequence("subject"), Fresh(world, "fresh")
    left, reached = was.tier(source), was.tier(to)
    gone = counted(world, "gone", lambda b: z3.And(was.has(source, s, b), left.refs(b) == 1))

    def copied(block: Term) -> Term:
        return left.contents(left.entry(s, fresh.slot(block)))

    tiers = {
        source: left.letting_go(lambda b: was.has(source, s, b), gone),
        to: reached.handing_out(fresh, copied).showing(s, fresh.block, fresh.slot),
    }
    return Step(
        subject=s,
        allowed=z3.And(
            was.resides(source, s), fresh.count == was.blocks(s), fresh.all(reached.free)
        ),
        after=evolve(was, device=tiers["device"], host=tiers["host"]).with_sequence(
            s, away=z3.BoolVal(to == "host")
        ),
        happens=z3.And(was.blocks(s) == 2, _others(world, was, s)),
        handed={to: fresh},
        given={source: gone},
    )


def prefix_share(world: World, was: State) -> Step:
    """A new sequence begins with cached blocks, used or idle, and takes free ones for the rest."""
    s, spare = world.sequence("new"), world.number("spare")
    hit, fresh = Fresh(world, "hit"), Fresh(world, "fresh")
    written = world.function("written", z3.IntSort(), world.values)
    revived = counted(world, "revived", lambda b: z3.And(hit.has(b), was.device.free(b)))
    shared = evolve(
        was.device,
        refs=lambda b: was.device.refs(b) + z3.If(hit.has(b), 1, 0),
        free=lambda b: z3.And(was.device.free(b), z3.Not(hit.has(b))),
        count=was.device.count - revived.size,
    )
    device = shared.handing_out(fresh, lambda b: written(fresh.slot(b))).showing(
        s,
        lambda i: z3.If(i < hit.count, hit.block(i), fresh.block(i - hit.count)),
        lambda b: z3.If(hit.has(b), hit.slot(b), hit.count + fresh.slot(b)),
    )
    blocks = hit.count + fresh.count
    return Step(
        subject=s,
        allowed=z3.And(
            z3.Not(was.live(s)),
            hit.all(lambda b: z3.And(was.device.pool(b), was.device.cached(b))),
            fresh.all(lambda b: z3.And(was.device.free(b), z3.Not(hit.has(b)))),
            fits(was, blocks, spare),
        ),
        after=evolve(was, device=device).with_sequence(
            s,
            live=True,
            away=False,
            blocks=blocks,
            spare=spare,
            want=lambda i: z3.If(
                i < hit.count, was.device.stored(hit.block(i)), written(i - hit.count)
            ),
        ),
        happens=z3.And(hit.count == 2, revived.size == 1, fresh.count == 1),
        handed={"device": fresh},
        revived={"device": revived},
    )


def publish(world: World, was: State) -> Step:
    """A full block that was written can be found from now on, by what its sequence wrote."""
    s, at = world.sequence("subject"), world.number("at")
    block = was.device.entry(s, at)
    full = z3.Or(at < was.blocks(s) - 1, was.spare(s) == 0)
    device = evolve(
        was.device,
        cached=lambda b: z3.Or(was.device.cached(b), b == block),
        stored=lambda b: z3.If(b == block, was.want(s, at), was.device.stored(b)),
    )
    return Step(
        subject=s,
        allowed=z3.And(was.resides("device", s), at >= 0, at < was.blocks(s), full),
        after=evolve(was, device=device),
        happens=z3.And(z3.Not(was.device.cached(block)), was.device.refs(block) == 2),
    )


def _others(world: World, was: State, subject: Term) -> Term:
    """Whether another sequence has two blocks."""
    return world.some(
        ("sequence",), lambda s: z3.And(s != subject, was.live(s), was.blocks(s) == 2)
    )


def _extended(world: World, contents: Term, more: Term) -> Term:
    """The contents of a block in which something was written behind `contents`."""
    extended = world.function("extended", world.values, world.values, world.values)
    return extended(contents, more)


def _none(world: World) -> Blocks:
    """No blocks."""
    return Blocks(lambda b: z3.BoolVal(False), z3.IntVal(0))
