"""The command `kvspec museum`: the suite's measuring, on the exhibits of this museum."""

from kvimpls.museum.registry import MUSEUM
from kvspec import museum_command

museum = museum_command(MUSEUM)
