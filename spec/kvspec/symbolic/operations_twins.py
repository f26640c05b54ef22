"""The broken twins of the model's operations: one fault each, and the law that it must break."""

from kvspec.symbolic.twins import Twin

TWINS = (
    # The counter begins at nothing, and so never agrees with the free list.
    Twin("initial", "count=pool.size", "count=z3.IntVal(0)", "free-count"),
    # The blocks start with a reference, as those of a reserved null block do.
    Twin("initial", "refs=lambda b: z3.IntVal(0)", "refs=lambda b: z3.IntVal(1)", "exact-counts"),
    # Hands out what is not free.
    Twin("allocate", "fresh.all(was.device.free)", "fresh.all(was.device.pool)", "handed-out-once"),
    # Asks for a block although there are no tokens.
    Twin("allocate", "fits(was, fresh.count, spare)", "spare >= 0", "bounded-waste"),
    # The cache still finds a block that was handed out to be written.
    Twin(
        "allocate",
        "was.device.handing_out(fresh, lambda b: written(fresh.slot(b)))",
        "evolve(was.device.handing_out(fresh, lambda b: written(fresh.slot(b))), "
        "cached=was.device.cached)",
        "prefix-sound",
    ),
    # Writes into a tail that others have too.
    Twin("append", "was.device.refs(tail) == 1", "was.device.refs(tail) >= 1", "read-back"),
    # The cache still finds a block that was written into.
    Twin(
        "append",
        "z3.And(was.device.cached(b), z3.Not(z3.And(partly, b == tail)))",
        "was.device.cached(b)",
        "prefix-sound",
    ),
    # Takes blocks for tokens that would have fit.
    Twin("append", "fits(was, blocks + fresh.count, spare)", "spare >= 0", "bounded-waste"),
    # The new blocks are the last ones that were freed, one of which is in use again.
    Twin("append", "fresh.all(was.device.free)", "fresh.all(was.device.pool)", "no-overlap"),
    # The new block is not filled from the shared one.
    Twin(
        "copy_on_write",
        "copied = was.device.contents(tail)",
        "copied = was.device.contents(fresh.block(0))",
        "read-back",
    ),
    # The shared block keeps the writer's reference.
    Twin("copy_on_write", "lambda b: b == tail", "lambda b: b == fresh.block(0)", "exact-counts"),
    # The last one to have a block copies it too, and nobody frees the old one.
    Twin("copy_on_write", "was.device.refs(tail) > 1", "was.device.refs(tail) > 0", "no-leak"),
    # The writer is counted on the shared block instead of leaving it.
    Twin("fork", 'z3.If(was.has("device", parent, b), 1, 0)', "0", "exact-counts"),
    # The child's id is in use: the blocks of its former table are lost.
    Twin("fork", "z3.Not(was.live(child))", "child != parent", "no-leak"),
    # Frees what others still have.
    Twin("free", "refs(b) == 1", "refs(b) >= 1", "no-leak"),
    # A swapped-out sequence that ends leaves its host blocks behind.
    Twin("free", 'was.has("host", s, b)', 'was.has("device", s, b)', "exact-counts"),
    # The floor, not the ceiling, seen from the table: the last entry is kept once too often.
    Twin(
        "truncate",
        "was.device.index(s, block) >= blocks",
        "was.device.index(s, block) > blocks",
        "exact-counts",
    ),
    Twin("truncate", "was.device.refs(b) == 1", "was.device.refs(b) >= 1", "no-leak"),
    # A whole block stays for no token.
    Twin("truncate", "fits(was, blocks, spare)", "blocks >= 0", "bounded-waste"),
    # Frees device blocks that others still have.
    Twin("swap_out", "left.refs(b) == 1", "left.refs(b) >= 1", "no-leak", within="_swap"),
    # Copies the first block into all.
    Twin("swap_out", "fresh.slot(block)", "0", "read-back", within="_swap"),
    # Takes host blocks of others.
    Twin(
        "swap_out",
        "fresh.all(reached.free)",
        "fresh.all(reached.pool)",
        "handed-out-once",
        within="_swap",
    ),
    # Frees nothing on the host.
    Twin(
        "swap_in",
        "was.has(source, s, b), left",
        "was.has(to, s, b), left",
        "no-leak",
        within="_swap",
    ),
    # Takes fewer blocks than the sequence has.
    Twin(
        "swap_in",
        "fresh.count == was.blocks(s)",
        "fresh.count <= was.blocks(s)",
        "in-pool",
        within="_swap",
    ),
    # The counter goes down for hits that others have too.
    Twin(
        "prefix_share",
        "count=was.device.count - revived.size",
        "count=was.device.count - hit.count",
        "free-count",
    ),
    # A hit is evicted to make room for the rest of the same prompt.
    Twin(
        "prefix_share",
        "fresh.all(lambda b: z3.And(was.device.free(b), z3.Not(hit.has(b))))",
        "fresh.all(was.device.free)",
        "no-overlap",
    ),
    # A block is a hit that the cache has given up.
    Twin(
        "prefix_share",
        "z3.And(was.device.pool(b), was.device.cached(b))",
        "was.device.pool(b)",
        "read-back",
    ),
    # An idle hit is used and still free.
    Twin(
        "prefix_share",
        "free=lambda b: z3.And(was.device.free(b), z3.Not(hit.has(b)))",
        "free=was.device.free",
        "no-leak",
    ),
    # Found by the contents of the block before.
    Twin("publish", "was.want(s, at)", "was.want(s, at - 1)", "prefix-sound"),
)
