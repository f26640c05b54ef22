"""The page on attention: its examples, which are Python sessions, show what really comes out."""

import doctest
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "attention.md"


def test_the_sessions_of_the_page_on_attention_run() -> None:
    """All `pycon` blocks, in order, in one namespace."""
    text = PAGE.read_text(encoding="utf-8")
    sessions = re.findall(r"^```pycon\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    page = doctest.DocTestParser().get_doctest("".join(sessions), {}, PAGE.name, str(PAGE), 0)
    results = doctest.DocTestRunner().run(page)
    assert results.failed == 0
    assert results.attempted > 40
