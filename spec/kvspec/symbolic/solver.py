"""z3, which has no types of its own: all that it makes is a `Term`."""

from importlib import import_module
from typing import Any

z3: Any = import_module("z3")

Term = Any
"""A term of first-order logic, of whichever sort."""
