"""A first-fit allocator. It imports nothing of kvspec, which knows errors by their names."""

OutOfBlocks = type("OutOfBlocks", (Exception,), {})
InvalidLength = type("InvalidLength", (Exception,), {})
UnknownSequence = type("UnknownSequence", (Exception,), {})
SequenceExists = type("SequenceExists", (Exception,), {})


class Mine:
    """The lowest unused blocks come next."""

    def __init__(self, geometry):
        self.geometry, self.tables, self.lengths = geometry, {}, {}
        self.unused = list(range(geometry.num_blocks))

    def allocate(self, seq, num_tokens):
        if seq in self.tables:
            raise SequenceExists(seq)
        self._grow(seq, [], num_tokens)

    def append(self, seq, num_tokens):
        self._grow(seq, self.block_table(seq), num_tokens)

    def free(self, seq):
        self.unused = sorted(self.unused + self.block_table(seq))
        del self.tables[seq], self.lengths[seq]

    def block_table(self, seq):
        if seq not in self.tables:
            raise UnknownSequence(seq)
        return list(self.tables[seq])

    def num_free_blocks(self):
        return len(self.unused)

    def _grow(self, seq, table, added):
        most = self.geometry.max_tokens or float("inf")
        length = self.lengths.get(seq, 0)
        if not isinstance(added, int) or not 0 <= added <= most - length:
            raise InvalidLength(added)
        length += added
        more = -(-length // self.geometry.block_size) - len(table)
        if more > len(self.unused):
            raise OutOfBlocks(seq)
        self.tables[seq], self.unused = table + self.unused[:more], self.unused[more:]
        self.lengths[seq] = length
