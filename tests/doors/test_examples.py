"""The example of one's own allocator: small, of nothing that is ours, and right."""

import ast
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "mine.py"


def test_the_example_of_ones_own_allocator_conforms(check):
    """It claims the core alone, and holds every law of it."""
    done = check(f"{EXAMPLE}:Mine")
    assert (done.code, done.err) == (0, "")
    assert "BROKEN" not in done.out
    assert "VACUOUS" not in done.out


def test_the_example_needs_nothing_of_ours():
    """It imports nothing at all, and fits on a page."""
    source = EXAMPLE.read_text()
    imports = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import | ast.ImportFrom)]
    assert imports == []
    assert len([line for line in source.splitlines() if line]) <= 40
