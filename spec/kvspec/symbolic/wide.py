"""The flat encoding with four blocks a sequence, for the slow tier.

It is the source of `flat` with the shape exchanged. CrossHair takes the shape from the types of
the parameters, so that it cannot be a parameter itself.
"""

from inspect import getsource

from kvspec.symbolic import flat

SHAPE = (
    ("ENTRIES = 3", "ENTRIES = 4"),
    ("Blocks = tuple[int, int, int]", "Blocks = tuple[int, int, int, int]"),
)
"""What fixes the shape there, and what does here."""

INSTEAD = {flat.__name__: __name__}
"""From where an obligation is to import its encoding."""


def widened() -> str:
    """The source of `flat` with four entries a table."""
    source = getsource(flat)
    for written, instead in SHAPE:
        if source.count(written) != 1:
            raise ValueError(f"{written!r} must be in {flat.__name__} exactly once")
        source = source.replace(written, instead)
    return source


exec(compile(widened(), "<kvspec.symbolic.flat, four entries>", "exec"), globals())
