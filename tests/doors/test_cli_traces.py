"""`kvspec show`, `replay` and `export`: what becomes of a saved trace."""

import ast
import json
from pathlib import Path

import pytest

from kvspec.kernel.law import LawBroken

FORGETFUL = "kvimpls.museum:ForgottenCopyOnWrite"


def test_show_prints_the_story(kvspec, check, counterexample):
    """A saved trace is shown as it was when it was found."""
    done = kvspec("show", counterexample)
    assert (done.code, done.err) == (0, "")
    assert check(FORGETFUL).out.startswith(done.out)


def test_showing_a_trace_imports_nothing_that_it_names(kvspec, counterexample):
    """The allocator in the trace is a name for the reader only."""
    data = json.loads(counterexample.read_text())
    data["allocator"] = "trap.py:Mine"
    Path("trap.py").write_text("raise SystemExit('imported')")
    counterexample.write_text(json.dumps(data))
    assert "trap.py:Mine" in kvspec("show", counterexample).out
    assert kvspec("export", counterexample).code == 0


def test_replaying_on_the_broken_allocator_breaks_the_law_again(kvspec, counterexample):
    """Exit 1, and in how many replays the law was broken."""
    done = kvspec("replay", counterexample, "--allocator", FORGETFUL)
    assert done.code == 1
    assert done.out.splitlines()[-1] == "copy-on-write: broken again (5 of 5)"


def test_replaying_on_a_right_allocator_holds(kvspec, counterexample):
    """A counterexample that is mended is exit 0, and says that it did not come again."""
    done = kvspec("replay", counterexample, "--allocator", "reference")
    assert done.code == 0
    assert done.out.splitlines()[-1].startswith("copy-on-write: not reproduced (0 of 5)")


def test_replaying_on_an_allocator_that_breaks_another_law_is_not_green(kvspec, counterexample):
    """The law of the trace holds, another does not: exit 1, and not reproduced."""
    source = "from kvimpls.museum import SpuriousRefusalAtExactFit as Mine\n"
    Path("mine.py").write_text(source)
    done = kvspec("replay", counterexample, "--allocator", "mine.py:Mine")
    assert done.code == 1
    assert done.out.startswith("admission: ")
    assert done.out.splitlines()[-1] == "copy-on-write: not reproduced (0 of 5)"


def test_replaying_needs_the_capabilities_of_the_trace(kvspec, counterexample):
    """An allocator without `fork` cannot replay a fork: exit 2, and no broken law."""
    example = Path(__file__).parents[2] / "docs" / "examples" / "mine.py"
    line = kvspec("replay", counterexample, "--allocator", f"{example}:Mine").refused()
    assert "sharing" in line or "reservation" in line


@pytest.mark.parametrize("target", ["no.py:Mine", "nonsense"])
def test_replaying_on_nothing_is_one_line(kvspec, counterexample, target):
    """A target that is none could not be replayed on."""
    assert kvspec("replay", counterexample, "--allocator", target).refused().startswith(target)


def exported(source):
    """The test of an exported file."""
    namespace = {}
    exec(compile(source, "exported", "exec"), namespace)
    [test] = [value for name, value in namespace.items() if name.startswith("test_")]
    return test


def test_an_exported_trace_is_a_test(kvspec, counterexample):
    """The file needs nothing of the trace, fails on the broken allocator and passes on another."""
    assert kvspec("export", counterexample, "-o", "test_it.py").out == ""
    source = Path("test_it.py").read_text()
    counterexample.unlink()
    with pytest.raises(AssertionError, match="copy-on-write: A writes into block 0"):
        exported(source)()
    exported(source.replace(repr(FORGETFUL), "'kvimpls.reference:Reference'"))()


def test_an_exported_trace_tests_what_it_is_told_to(kvspec, counterexample):
    """`--allocator` is written into the file, and not imported on the way."""
    done = kvspec("export", counterexample, "--allocator", "not/there.py:Mine")
    assert done.code == 0
    assert "ALLOCATOR = 'not/there.py:Mine'" in done.out


def test_an_export_that_cannot_be_written_is_one_line(kvspec, counterexample):
    """A folder that is not there could not be written to."""
    done = kvspec("export", counterexample, "-o", "no/test_it.py")
    assert done.refused() == "no/test_it.py: it cannot be written: No such file or directory"


def test_an_exported_trace_runs_nothing_that_the_trace_says(kvspec, counterexample):
    """Texts of a hostile trace stay texts: the file has its six names and its one test."""
    data = json.loads(counterexample.read_text())
    escape = '"""\nimport os\nos.abort()\n"""'
    for breach in data["breaches"]:
        breach["because"] = escape
    data["breaches"][0]["law"] = f"x():\n    import os\n{escape}\ndef y"
    counterexample.write_text(json.dumps(data))
    tree = ast.parse(kvspec("export", counterexample).out)
    kinds = [type(node).__name__ for node in tree.body]
    assert kinds == ["Expr"] + ["ImportFrom"] * 5 + ["Assign"] * 5 + ["FunctionDef"]
    data["allocator"] = "os:abort()"
    counterexample.write_text(json.dumps(data))
    assert "'os:abort()' is no target" in kvspec("export", counterexample).refused()


def test_a_trace_does_not_steer_the_terminal(kvspec, counterexample):
    """Control characters in a trace are shown as what they are."""
    data = json.loads(counterexample.read_text())
    data["allocator"] = "mine\x1b[2J\x07"
    data["breaches"][0]["because"] = "one\r\ntwo\x1b]0;title\x07"
    counterexample.write_text(json.dumps(data))
    out = kvspec("show", counterexample).out
    assert not {"\x1b", "\x07", "\r"} & set(out)


def test_a_law_that_is_broken_raises_its_own_exception(check):
    """Without the command, a report raises with the story as its text."""
    from kvimpls.museum import ForgottenCopyOnWrite
    from kvspec import check_allocator

    report = check_allocator(ForgottenCopyOnWrite, profile="quick")
    with pytest.raises(LawBroken, match=r"^copy-on-write: ") as caught:
        report.raise_for_status()
    assert type(caught.value).__name__ == "CopyOnWriteBroken"
    assert "because: " in str(caught.value)
