"""The broken twins of the model's operations: one fault each, and the laws that it must break.

Each law after each operation is broken by one of them, since each of these is a proof of its own;
one twin may break several. Where an operation does not touch what a law is about, the twin has one
clause more, which does.
"""

from kvspec.symbolic.twins import Twin

TWINS = (
    # ---- initial
    # The counter begins at nothing, and so never agrees with the free list.
    Twin("initial", "count=pool.size", "count=z3.IntVal(0)", ("free-count",)),
    # The blocks start with a reference, as those of a reserved null block do.
    Twin(
        "initial", "refs=lambda b: z3.IntVal(0)", "refs=lambda b: z3.IntVal(1)", ("exact-counts",)
    ),
    # The sequences of the time before are still there.
    Twin(
        "initial",
        "live=lambda s: z3.BoolVal(False)",
        "live=was.live",
        ("in-pool", "no-overlap", "bounded-waste", "read-back"),
    ),
    # The free list begins empty.
    Twin("initial", "free=pool.has", "free=lambda b: z3.BoolVal(False)", ("no-leak",)),
    # The cache of the time before is still there.
    Twin("initial", "cached=lambda b: z3.BoolVal(False)", "cached=tier.cached", ("prefix-sound",)),
    # ---- allocate
    # Hands out what is not free.
    Twin(
        "allocate",
        "fresh.all(was.device.free)",
        "fresh.all(was.device.pool)",
        ("handed-out-once", "exact-counts", "free-count", "read-back"),
    ),
    # Hands out what is free on the host.
    Twin("allocate", "fresh.all(was.device.free)", "fresh.all(was.host.free)", ("in-pool",)),
    # Every entry is the first block.
    Twin(
        "allocate",
        "fresh.block, fresh.slot",
        "lambda i: fresh.block(0), fresh.slot",
        ("no-overlap",),
    ),
    # The last block is not entered.
    Twin("allocate", "blocks=fresh.count", "blocks=fresh.count - 1", ("no-leak",)),
    # Asks for a block although there are no tokens.
    Twin("allocate", "fits(was, fresh.count, spare)", "spare >= 0", ("bounded-waste",)),
    # The cache still finds a block that was handed out to be written.
    Twin(
        "allocate",
        "was.device.handing_out(fresh, lambda b: written(fresh.slot(b)))",
        "evolve(was.device.handing_out(fresh, lambda b: written(fresh.slot(b))), "
        "cached=was.device.cached)",
        ("prefix-sound",),
    ),
    # ---- append
    # Writes into a tail that others have too.
    Twin("append", "was.device.refs(tail) == 1", "was.device.refs(tail) >= 1", ("read-back",)),
    # The cache still finds a block that was written into.
    Twin(
        "append",
        "z3.And(was.device.cached(b), z3.Not(z3.And(partly, b == tail)))",
        "was.device.cached(b)",
        ("prefix-sound",),
    ),
    # Takes blocks for tokens that would have fit.
    Twin("append", "fits(was, blocks + fresh.count, spare)", "spare >= 0", ("bounded-waste",)),
    # The new blocks are the last ones that were freed, one of which is in use again.
    Twin(
        "append",
        "fresh.all(was.device.free)",
        "fresh.all(was.device.pool)",
        ("no-overlap", "handed-out-once", "exact-counts", "free-count"),
    ),
    # The new blocks are of the host.
    Twin("append", "fresh.all(was.device.free)", "fresh.all(was.host.free)", ("in-pool",)),
    # The new blocks are not entered.
    Twin("append", "blocks=blocks + fresh.count", "blocks=blocks", ("no-leak",)),
    # ---- copy_on_write
    # The new block is not filled from the shared one.
    Twin(
        "copy_on_write",
        "copied = was.device.contents(tail)",
        "copied = was.device.contents(fresh.block(0))",
        ("read-back",),
    ),
    # The shared block keeps the writer's reference.
    Twin(
        "copy_on_write", "lambda b: b == tail", "lambda b: b == fresh.block(0)", ("exact-counts",)
    ),
    # The last one to have a block copies it too, and nobody frees the old one.
    Twin("copy_on_write", "was.device.refs(tail) > 1", "was.device.refs(tail) > 0", ("no-leak",)),
    # The copy is a block of the host.
    Twin("copy_on_write", "fresh.all(was.device.free)", "fresh.all(was.host.free)", ("in-pool",)),
    # The copy is a block of somebody.
    Twin(
        "copy_on_write",
        "fresh.all(was.device.free)",
        "fresh.all(was.device.pool)",
        ("handed-out-once",),
    ),
    # Every new entry is the copy.
    Twin("copy_on_write", "fresh.block(i - kept)", "fresh.block(0)", ("no-overlap",)),
    # The copy is not counted.
    Twin(
        "copy_on_write",
        "device.handing_out(fresh, contents)",
        "evolve(device.handing_out(fresh, contents), count=device.count)",
        ("free-count",),
    ),
    # Takes a block more than the tokens need.
    Twin("copy_on_write", "fits(was, kept + fresh.count, spare)", "spare >= 0", ("bounded-waste",)),
    # The cache still finds the block that the copy went into.
    Twin(
        "copy_on_write",
        "device.handing_out(fresh, contents)",
        "evolve(device.handing_out(fresh, contents), cached=was.device.cached)",
        ("prefix-sound",),
    ),
    # ---- fork
    # The child is not counted.
    Twin("fork", 'z3.If(was.has("device", parent, b), 1, 0)', "0", ("exact-counts",)),
    # The child's id is in use: the blocks of its former table are lost.
    Twin("fork", "z3.Not(was.live(child))", "child != parent", ("no-leak",)),
    # The child has what the parent's table on the host has.
    Twin("fork", "was.device.entry(parent, i)", "was.host.entry(parent, i)", ("in-pool",)),
    # The child has the first block everywhere.
    Twin("fork", "was.device.entry(parent, i)", "was.device.entry(parent, 0)", ("no-overlap",)),
    # The child has the blocks from the last to the first.
    Twin(
        "fork",
        "was.device.entry(parent, i)",
        "was.device.entry(parent, was.blocks(parent) - 1 - i)",
        ("read-back",),
    ),
    # The counter goes down for what is shared.
    Twin(
        "fork",
        "refs=lambda",
        "count=was.device.count - was.blocks(parent), refs=lambda",
        ("free-count",),
    ),
    # The child's last block is taken for an empty one.
    Twin("fork", "spare=was.spare(parent)", "spare=was.block_size", ("bounded-waste",)),
    # The cache finds all that is shared, whether or not it was published.
    Twin("fork", "refs=lambda", "cached=was.device.pool, refs=lambda", ("prefix-sound",)),
    # ---- free
    # Frees what others still have.
    Twin("free", "refs(b) == 1", "refs(b) >= 1", ("no-leak",)),
    # A swapped-out sequence that ends leaves its host blocks behind.
    Twin("free", 'was.has("host", s, b)', 'was.has("device", s, b)', ("exact-counts",)),
    # It does not end, and is in the other tier now.
    Twin("free", "live=False", "away=z3.Not(was.away(s))", ("in-pool", "no-overlap", "read-back")),
    # The device's blocks are given back to the host.
    Twin("free", 'given["host"])', 'given["device"])', ("free-count",)),
    # It does not end, and its last block is taken for an empty one.
    Twin("free", "live=False", "spare=was.block_size", ("bounded-waste",)),
    # The cache finds all that comes back, whether or not it was published.
    Twin(
        "free",
        "device=was.device.letting_go(",
        "device=evolve(was.device, cached=was.device.pool).letting_go(",
        ("prefix-sound",),
    ),
    # ---- truncate
    # The floor, not the ceiling, seen from the table: the last entry is kept once too often.
    Twin(
        "truncate",
        "was.device.index(s, block) >= blocks",
        "was.device.index(s, block) > blocks",
        ("exact-counts",),
    ),
    Twin("truncate", "was.device.refs(b) == 1", "was.device.refs(b) >= 1", ("no-leak",)),
    # A whole block stays for no token.
    Twin("truncate", "fits(was, blocks, spare)", "blocks >= 0", ("bounded-waste",)),
    # It may be longer after it than before.
    Twin(
        "truncate",
        "blocks <= was.blocks(s)",
        "blocks <= was.blocks(s) + 1",
        ("in-pool", "no-overlap", "read-back"),
    ),
    # What comes back is not counted.
    Twin(
        "truncate",
        "was.device.letting_go(dropped, gone)",
        "evolve(was.device.letting_go(dropped, gone), count=was.device.count)",
        ("free-count",),
    ),
    # The cache finds all that comes back, whether or not it was published.
    Twin(
        "truncate",
        "was.device.letting_go(dropped, gone)",
        "evolve(was.device.letting_go(dropped, gone), cached=was.device.pool)",
        ("prefix-sound",),
    ),
    # ---- swap_out
    # Frees device blocks that others still have.
    Twin("swap_out", "left.refs(b) == 1", "left.refs(b) >= 1", ("no-leak",), within="_swap"),
    # Copies the first block into all.
    Twin("swap_out", "fresh.slot(block)", "0", ("read-back",), within="_swap"),
    # Takes host blocks of others.
    Twin(
        "swap_out",
        "fresh.all(reached.free)",
        "fresh.all(reached.pool)",
        ("handed-out-once", "exact-counts", "free-count"),
        within="_swap",
    ),
    # Takes blocks that are free on the device.
    Twin("swap_out", "fresh.all(reached.free)", "fresh.all(left.free)", ("in-pool",), "_swap"),
    # Every entry is the first block.
    Twin(
        "swap_out",
        "fresh.block, fresh.slot",
        "lambda i: fresh.block(0), fresh.slot",
        ("no-overlap",),
        within="_swap",
    ),
    # Its last block is taken for an empty one.
    Twin(
        "swap_out",
        'away=z3.BoolVal(to == "host")',
        'away=z3.BoolVal(to == "host"), spare=was.block_size',
        ("bounded-waste",),
        within="_swap",
    ),
    # The cache still finds a block that the copies went into.
    Twin(
        "swap_out",
        "reached.handing_out(fresh, copied)",
        "evolve(reached.handing_out(fresh, copied), cached=reached.cached)",
        ("prefix-sound",),
        within="_swap",
    ),
    # ---- swap_in
    # Frees nothing on the host.
    Twin(
        "swap_in",
        "was.has(source, s, b), left",
        "was.has(to, s, b), left",
        ("no-leak",),
        within="_swap",
    ),
    # Takes fewer blocks than the sequence has.
    Twin(
        "swap_in",
        "fresh.count == was.blocks(s)",
        "fresh.count <= was.blocks(s)",
        ("in-pool", "no-overlap", "exact-counts", "read-back"),
        within="_swap",
    ),
    # Takes device blocks of others.
    Twin(
        "swap_in",
        "fresh.all(reached.free)",
        "fresh.all(reached.pool)",
        ("handed-out-once",),
        within="_swap",
    ),
    # What comes back on the host is not counted.
    Twin(
        "swap_in",
        "left.letting_go(lambda b: was.has(source, s, b), gone)",
        "evolve(left.letting_go(lambda b: was.has(source, s, b), gone), count=left.count)",
        ("free-count",),
        within="_swap",
    ),
    # Its last block is taken for an empty one.
    Twin(
        "swap_in",
        'away=z3.BoolVal(to == "host")',
        'away=z3.BoolVal(to == "host"), spare=was.block_size',
        ("bounded-waste",),
        within="_swap",
    ),
    # The cache still finds a block that the copies went into.
    Twin(
        "swap_in",
        "reached.handing_out(fresh, copied)",
        "evolve(reached.handing_out(fresh, copied), cached=reached.cached)",
        ("prefix-sound",),
        within="_swap",
    ),
    # ---- prefix_share
    # The counter goes down for hits that others have too.
    Twin(
        "prefix_share",
        "count=was.device.count - revived.size",
        "count=was.device.count - hit.count",
        ("free-count",),
    ),
    # A hit is evicted to make room for the rest of the same prompt.
    Twin(
        "prefix_share",
        "fresh.all(lambda b: z3.And(was.device.free(b), z3.Not(hit.has(b))))",
        "fresh.all(was.device.free)",
        ("no-overlap",),
    ),
    # The rest goes into blocks of others.
    Twin(
        "prefix_share",
        "fresh.all(lambda b: z3.And(was.device.free(b), z3.Not(hit.has(b))))",
        "fresh.all(was.device.pool)",
        ("handed-out-once",),
    ),
    # A block is a hit that the cache has given up.
    Twin(
        "prefix_share",
        "z3.And(was.device.pool(b), was.device.cached(b))",
        "was.device.pool(b)",
        ("read-back",),
    ),
    # A hit is a block that there is not any more.
    Twin(
        "prefix_share",
        "z3.And(was.device.pool(b), was.device.cached(b))",
        "was.device.cached(b)",
        ("in-pool",),
    ),
    # An idle hit is used and still free.
    Twin(
        "prefix_share",
        "free=lambda b: z3.And(was.device.free(b), z3.Not(hit.has(b)))",
        "free=was.device.free",
        ("no-leak",),
    ),
    # Only the idle ones among the hits get a reference.
    Twin(
        "prefix_share",
        "z3.If(hit.has(b), 1, 0)",
        "z3.If(revived.has(b), 1, 0)",
        ("exact-counts",),
    ),
    # Takes a block more than the tokens need.
    Twin("prefix_share", "fits(was, blocks, spare)", "spare >= 0", ("bounded-waste",)),
    # The cache still finds a block that was evicted for the rest.
    Twin(
        "prefix_share",
        "shared.handing_out(fresh, lambda b: written(fresh.slot(b)))",
        "evolve(shared.handing_out(fresh, lambda b: written(fresh.slot(b))), cached=shared.cached)",
        ("prefix-sound",),
    ),
    # ---- publish
    # Found by the contents of the block before.
    Twin("publish", "was.want(s, at)", "was.want(s, at - 1)", ("prefix-sound",)),
    # The block goes over to the cache, and leaves the pool.
    Twin("publish", "cached=lambda", "pool=lambda b: b != block, cached=lambda", ("in-pool",)),
    # The block is exchanged for the first of the table, as if they had the same contents.
    Twin(
        "publish",
        "cached=lambda",
        "entry=lambda t, i: z3.If(z3.And(t == s, i == at), was.device.entry(s, 0), "
        "was.device.entry(t, i)), cached=lambda",
        ("no-overlap", "read-back"),
    ),
    # The cache is counted as a user.
    Twin(
        "publish",
        "cached=lambda",
        "refs=lambda b: was.device.refs(b) + z3.If(b == block, 1, 0), cached=lambda",
        ("exact-counts",),
    ),
    # What is cached is free, though it is in use.
    Twin(
        "publish",
        "cached=lambda",
        "free=lambda b: z3.Or(was.device.free(b), b == block), cached=lambda",
        ("no-leak",),
    ),
    # What is cached is counted as free.
    Twin("publish", "cached=lambda", "count=was.device.count + 1, cached=lambda", ("free-count",)),
    # The last block is taken for an empty one.
    Twin(
        "publish",
        "after=evolve(was, device=device)",
        "after=evolve(was, device=device).with_sequence(s, spare=was.block_size)",
        ("bounded-waste",),
    ),
)
