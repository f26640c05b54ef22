"""`kvspec explore`: exit codes, what it says of how far it came, and what it leaves."""

import json
from pathlib import Path

import pytest
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS

from kvspec.engines.exploration import Exploration
from kvspec.engines.scope import Scope
from kvspec.geometry import Geometry
from kvspec.suite.explore_command import line
from kvspec.suite.exploring import explore_specification
from kvspec.traces.trace import load

SMALL = ("--blocks", 2, "--seqs", 2)
FORGETFUL = "kvimpls.museum:ForgottenCopyOnWrite"


def test_the_specification_alone_is_explored_without_a_target(kvspec):
    """Or with the target `spec`; exit 0, and the mode and the bounds in words."""
    done = kvspec("explore", "--spec", *SMALL)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("specification: core, sharing\n  specification alone: ")
    assert "scope: 2 blocks of 2 tokens, 2 sequences, lengths up to 5" in done.out
    again = kvspec("explore", "spec", *SMALL)
    assert again.out.splitlines()[0] == done.out.splitlines()[0]


def test_an_allocator_without_a_fault_is_exit_0(kvspec):
    done = kvspec("explore", "reference", *SMALL, "--capabilities", "core")
    assert done.code == 0
    assert "exhausted over the product: " in done.out
    assert "told apart by its pickle" in done.out


def test_a_fault_is_exit_1_with_its_story_which_is_saved(kvspec, folder):
    """A trace like all others: it is shown, saved, and replays."""
    done = kvspec("explore", FORGETFUL, *SMALL, "--save-traces", "traces", "--json", "out.json")
    assert done.code == 1
    assert done.out.startswith("copy-on-write: ")
    assert "  over the product: a law is broken: " in done.out
    [path] = Path("traces").iterdir()
    trace = load(path)
    assert (trace.law, len(trace.steps), trace.reduced) == ("copy-on-write", 3, True)
    assert kvspec("replay", path, "--allocator", FORGETFUL).code == 1
    data = json.loads(Path("out.json").read_text())
    assert (data["exit_code"], data["reproduced"]) == (1, 5)
    assert data["trace"]["breaches"][0]["law"] == "copy-on-write"


def test_what_is_cut_off_says_so_and_is_exit_0(kvspec):
    """Then every model transition is driven once as well, unless another mode was asked for."""
    done = kvspec("explore", "reference", *SMALL, "--max-states", 9)
    assert done.code == 0
    assert "NOT EXHAUSTED, over the product: " in done.out
    assert "every model transition driven once" in done.out
    only = kvspec("explore", "reference", *SMALL, "--max-states", 9, "--mode", "product")
    assert "driven" not in only.out


def test_the_json_has_the_counts_of_every_search(kvspec):
    kvspec("explore", "--spec", *SMALL, "--capabilities", "core", "--json", "out.json")
    data = json.loads(Path("out.json").read_text())
    (search,) = data["searches"]
    report = explore_specification(Geometry(2, 2), 2, capabilities=("core",))
    assert search["states"] == report.searches[0].states
    assert search["mode"] == "specification alone"
    assert search["exhausted"] is True
    assert data["laws"]["conservation"]["bites"] > 0
    assert data["geometry"]["num_blocks"] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name either a target or --spec"),
        (("reference", "--spec"), "name either a target or --spec"),
        (("reference", "--capabilities", "trim"), "there is no capability trim"),
        (("nobody",), "nobody"),
        (("--spec", "--contract", "relocates=true"), "relocating"),
        (("kvimpls.traditional:Preallocation",), "the contract excludes"),
        (("reference", "--json", "missing/out.json"), "there is no such folder"),
    ],
)
def test_what_cannot_be_carried_out_is_one_line_and_exit_2(kvspec, arguments, said):
    assert said in kvspec("explore", *arguments).refused()


def test_a_fingerprint_that_fails_is_one_line_and_exit_2(kvspec, folder):
    """Not a traceback: it was right at first."""
    lines = [
        "from kvimpls.reference import Reference",
        "class Failing(Reference):",
        "    fresh = 1",
        "    def allocate(self, *arguments, **more):",
        "        self.fresh = 0",
        "        return super().allocate(*arguments, **more)",
        "    def fingerprint(self):",
        "        return 1 / self.fresh",
    ]
    Path("failing.py").write_text("\n".join(lines) + "\n")
    said = kvspec("explore", "failing.py:Failing", *SMALL).refused()
    assert "its fingerprint() fails: ZeroDivisionError" in said
    assert kvspec("explore", "failing.py:Failing", *SMALL, "--mode", "driven").code == 0


def test_the_line_of_progress_says_how_far_it_is():
    """Seconds, states, what is yet to be looked at, and transitions a second."""
    spec = explore_specification(Geometry(1, 1), 1).spec
    found = Exploration("specification alone", Scope(spec, 1), 10)
    found.seconds, found.transitions, found.states, found.waiting = 2.0, 3000, 40, 7
    assert line(found) == "2 s · 40 states · 7 to look at · 3,000 transitions · 1,500/s · depth 0"


def test_a_backend_that_is_not_installed_is_one_line(kvspec, monkeypatch):
    """`kvspec check --hypothesis-backend crosshair`, without the extra."""
    monkeypatch.delitem(AVAILABLE_PROVIDERS, "crosshair", raising=False)
    done = kvspec("check", "reference", "--hypothesis-backend", "crosshair")
    assert done.refused() == (
        "hypothesis-crosshair is not installed: pip install 'kvspec[crosshair]'"
    )
