"""CrossHair on the arithmetic kernel: confirmed for all integers, and its broken twins refuted.

A verdict counts only in CrossHair's literal words. Three ways of hearing nothing read like
success there: a function that does not begin with an assert is skipped with exit code 0, one
whose preconditions contradict each other is "Confirmed", and a claim in the run of leading
asserts is a precondition. Hence the checks of form, the samples, and the twins.
"""

import ast
import functools
import inspect
import itertools
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvspec import geometry

HERE = Path(__file__).resolve().parent
OBLIGATIONS = HERE / "obligations.py"
TWINS = runpy.run_path(str(HERE / "twins.py"))["TWINS"]
CONFIRMED = "info: Confirmed over all paths."
REFUTED = re.compile(r"error: AssertionError: +when calling (?P<call>\w+\(.*\))$")

TRAPS = """\
def contradicts_itself(length: int) -> None:
    assert length >= 1
    assert length <= 0
    double = 2 * length
    assert double == length


def begins_with_no_assert(length: int) -> None:
    double = 2 * length
    assert double == length


def claims_among_the_preconditions(length: int) -> None:
    assert length >= 1
    assert 2 * length == length
    double = 2 * length
    assert double == length
"""


def functions(source: str) -> dict[str, ast.FunctionDef]:
    """The top-level functions of a module, by name."""
    return {n.name: n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)}


SOURCE = OBLIGATIONS.read_text()
NAMES = list(functions(SOURCE))
NAMED_TWINS = {f"{twin.of}_twin_{n}": twin for n, twin in enumerate(TWINS)}


def broken(name: str) -> str:
    """The source of the twin `name`: its obligation's, with the one exchange made."""
    twin = NAMED_TWINS[name]
    text = ast.get_source_segment(SOURCE, functions(SOURCE)[twin.of])
    assert text is not None
    assert text.count(twin.written) == 1, f"{twin.written!r} must be in {twin.of} exactly once"
    return text.replace(twin.written, twin.instead).replace(twin.of, name, 1)


@functools.cache
def all_broken() -> str:
    """The module of all twins, under the obligations' own imports."""
    imports = SOURCE[: SOURCE.index("\ndef ")]
    return "\n\n\n".join([imports, *map(broken, NAMED_TWINS)]) + "\n"


def run(source: str, name: str) -> Callable[..., None]:
    """The function `name` of a module's source, to be called with integers."""
    namespace: dict[str, Callable[..., None]] = {}
    exec(compile(source, f"<{name}>", "exec"), namespace)
    return namespace[name]


def satisfiable(function: Callable[..., None]) -> bool:
    """Whether some small integers pass the preconditions (and the claim)."""
    arity = len(inspect.signature(function).parameters)
    for sample in itertools.product(range(3), repeat=arity):
        try:
            function(*sample)
        except AssertionError:
            continue
        return True
    return False


def well_formed(function: ast.FunctionDef) -> bool:
    """Whether there are preconditions first, then something else, then the claim alone."""
    is_assert = [isinstance(s, ast.Assert) for s in function.body if not is_docstring(s)]
    work = list(itertools.dropwhile(bool, is_assert))
    return is_assert[0] and len(work) >= 2 and work[-1] and not any(work[:-1])


def is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What CrossHair, run once, says of each function: its words, by the function's name."""
    pytest.importorskip("crosshair", reason="CrossHair comes with kvspec[symbolic]")
    folder = tmp_path_factory.mktemp("symbolic")
    sources = {OBLIGATIONS: SOURCE, folder / "broken.py": all_broken(), folder / "traps.py": TRAPS}
    for path, source in sources.items():
        if path != OBLIGATIONS:
            path.write_text(source)
    command = [sys.executable, "-m", "crosshair", "check", "--analysis_kind=asserts"]
    command += ["--report_all", "--per_condition_timeout=5", *map(str, sources)]
    # Exit code 1 is due: the twins have counterexamples.
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300)
    assert done.returncode == 1, done.stderr
    said: dict[str, str] = {}
    for line in done.stdout.splitlines():
        match = re.fullmatch(r"(.+?):(\d+): (\w+: .*)", line)
        assert match, f"not a verdict: {line}"
        path, number, words = Path(match[1]), int(match[2]), match[3]
        for name, node in functions(sources[path]).items():
            if node.lineno <= number <= (node.end_lineno or number):
                assert name not in said, f"{name} has two verdicts: {said[name]} and {words}"
                said[name] = words
    return said


@pytest.mark.parametrize("name", NAMES)
def test_an_obligation_is_confirmed_over_all_paths(verdicts: dict[str, str], name: str) -> None:
    """For all integers that meet the preconditions; no size has an upper bound."""
    assert verdicts.get(name) == CONFIRMED


@pytest.mark.parametrize("name", NAMED_TWINS)
def test_a_broken_twin_is_refuted(verdicts: dict[str, str], name: str) -> None:
    """CrossHair's counterexample fails in plain Python too, and at the claim."""
    match = REFUTED.fullmatch(verdicts.get(name, "no verdict"))
    assert match, verdicts.get(name, "no verdict")
    call = ast.parse(match["call"], mode="eval").body
    assert isinstance(call, ast.Call)
    arguments = [ast.literal_eval(argument) for argument in call.args]
    claim = functions(all_broken())[name].body[-1]
    with pytest.raises(AssertionError) as failure:
        run(all_broken(), name)(*arguments)
    assert failure.traceback[-1].lineno == claim.lineno - 1  # pytest counts lines from 0


@pytest.mark.parametrize("name", NAMES)
def test_an_obligation_has_preconditions_then_work_then_one_claim(name: str) -> None:
    assert well_formed(functions(SOURCE)[name])


@pytest.mark.parametrize("name", NAMES)
def test_the_preconditions_of_an_obligation_can_be_met(name: str) -> None:
    assert satisfiable(run(SOURCE, name))


def test_every_obligation_has_a_broken_twin() -> None:
    assert {twin.of for twin in TWINS} == set(NAMES)


def test_every_function_of_the_kernel_has_an_obligation() -> None:
    kernel = {
        name
        for name, value in vars(geometry).items()
        if inspect.isfunction(value) and value.__module__ == geometry.__name__
    }
    called = {
        node.func.id
        for node in ast.walk(ast.parse(SOURCE))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert {name for name in kernel if not name.startswith("_")} <= called


def test_contradictory_preconditions_read_confirmed_and_are_caught_by_samples(
    verdicts: dict[str, str],
) -> None:
    assert verdicts["contradicts_itself"] == CONFIRMED
    assert not satisfiable(run(TRAPS, "contradicts_itself"))


def test_a_function_without_a_leading_assert_is_skipped_and_is_caught_by_form(
    verdicts: dict[str, str],
) -> None:
    assert "begins_with_no_assert" not in verdicts
    assert not well_formed(functions(TRAPS)["begins_with_no_assert"])


def test_a_claim_among_the_preconditions_reads_confirmed_and_is_caught_by_samples(
    verdicts: dict[str, str],
) -> None:
    assert verdicts["claims_among_the_preconditions"] == CONFIRMED
    assert not satisfiable(run(TRAPS, "claims_among_the_preconditions"))
