"""How sequences, blocks and leases are written in texts for people."""

from collections.abc import Iterable
from typing import Any

from attrs import fields


def sequence_name(seq: int) -> str:
    """A letter for the first 26 ids, else `s` and the number.

    >>> sequence_name(0), sequence_name(25), sequence_name(26)
    ('A', 'Z', 's26')
    """
    return chr(ord("A") + seq) if 0 <= seq < 26 else f"s{seq}"


def entries_text(entries: Iterable[int | None]) -> str:
    """A block table as it is shown: ids in order, `-` for a released entry.

    >>> entries_text([3, None, 0])
    '[3 - 0]'
    """
    return "[" + " ".join("-" if entry is None else str(entry) for entry in entries) + "]"


def blocks_text(blocks: Iterable[int]) -> str:
    """Some blocks as a sentence names them, in ascending order.

    >>> blocks_text({2}), blocks_text({2, 0, 1})
    ('block 2', 'blocks 0, 1 and 2')
    """
    ids = [str(block) for block in sorted(blocks)]
    if len(ids) == 1:
        return f"block {ids[0]}"
    return f"blocks {', '.join(ids[:-1])} and {ids[-1]}" if ids else "no block"


def are(count: int, noun: str) -> str:
    """A count with its noun and verb.

    >>> are(1, "block"), are(0, "block")
    ('1 block is', '0 blocks are')
    """
    return f"{plural(count, noun)} {'is' if count == 1 else 'are'}"


def plural(count: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "block"), plural(3, "token")
    ('1 block', '3 tokens')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def table_name(table: Any) -> str:
    """A table as a sentence names it: `A`, `A in group 1`, `A on the host`."""
    group = f" in group {table.group}" if table.group else ""
    return f"{sequence_name(table.seq)}{group}{_on(table.place.tier)}"


def _on(tier: str) -> str:
    return "" if tier == "device" else f" on the {tier}"


def call_text(operation: Any) -> str:
    """An operation as it is shown: `allocate(A, 5)`, `end_transfer(#0)`."""
    shown = []
    for f in fields(type(operation)):
        value = getattr(operation, f.name)
        if f.name in ("seq", "parent", "child"):
            shown.append(sequence_name(value))
        elif f.name == "seqs":
            shown.append(f"[{' '.join(sequence_name(seq) for seq in value)}]")
        elif f.name == "lease":
            shown.append(f"#{value}")
        elif f.name in ("limit", "key"):
            if value is not None:
                shown.append(f"{f.name}={value!r}")
        elif f.name in ("tokens", "num_tokens") and isinstance(value, tuple):
            shown.append(f"[{' '.join(map(str, value))}]")
        else:
            shown.append(repr(value))
    return f"{operation.method}({', '.join(shown)})"
