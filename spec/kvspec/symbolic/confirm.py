"""CrossHair on a module of obligations and on their broken twins, and what counts as a yes.

A verdict counts only in CrossHair's literal words. Four ways of asking nothing read like
success there: a function that does not begin with an assert is skipped with exit code 0; one
whose preconditions contradict each other is "Confirmed"; a claim that directly follows the
preconditions is one of them; and so is a claim that never fails, whatever the function does. Hence
the form is checked, each obligation has twins that must be refuted, each refutation must fail in
plain Python too, at the claim; and the numbers of at least one of them must meet the
preconditions, and the claim, of the obligation itself.
"""

import ast
import itertools
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attrs import frozen

from kvspec.symbolic.results import Refutation, Result
from kvspec.symbolic.twins import Twin, broken, functions

CONFIRMED = "Confirmed over all paths."
_SAID = re.compile(r".+?:\d+: (?:info|error): (?P<words>.*)")
_REFUTED = re.compile(r"AssertionError: +when calling (?P<call>\w+\(.*\))")

Say = Callable[[str], None]


@frozen
class Part:
    """A module of obligations by its source, with their twins."""

    name: str
    source: str
    twins: tuple[Twin, ...]

    @classmethod
    def of(
        cls,
        name: str,
        module: str,
        twins: tuple[Twin, ...],
        instead: Mapping[str, str] | None = None,
    ) -> "Part":
        """The part whose obligations are in `module`, which is read and not imported.

        What it imports from the keys of `instead` comes from their values.
        """
        spec = find_spec(module)
        path = spec.origin if spec is not None else None
        if path is None:
            raise ValueError(f"{module} is not a module with a source")
        source = Path(path).read_text(encoding="utf-8")
        for written, other in (instead or {}).items():
            assert source.count(f"from {written} import") == 1, written
            source = source.replace(f"from {written} import", f"from {other} import")
        return cls(name, source, twins)

    @property
    def obligations(self) -> dict[str, ast.FunctionDef]:
        """The functions of the module, each an obligation."""
        return functions(self.source)

    def twins_of(self, name: str) -> dict[str, Twin]:
        """The twins of an obligation, by the names of their functions."""
        found = [twin for twin in self.twins if twin.of == name]
        return {f"{name}_twin_{n}": twin for n, twin in enumerate(found, 1)}

    def broken(self) -> str:
        """The source of a module with all twins, under the obligations' own imports."""
        start = min(node.lineno for node in self.obligations.values())
        imports = "\n".join(self.source.splitlines()[: start - 1])
        texts = [
            broken(self.source, twin, name)
            for obligation in self.obligations
            for name, twin in self.twins_of(obligation).items()
        ]
        return "\n\n\n".join([imports, *texts]) + "\n"


def malformed(function: ast.FunctionDef) -> str:
    """Why CrossHair would not take the function for an obligation with one claim; or nothing."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    asserts = [isinstance(statement, ast.Assert) for statement in body]
    if not asserts or not asserts[0]:
        return "it does not begin with an assert: CrossHair would skip it"
    rest = list(itertools.dropwhile(bool, asserts))
    if len(rest) < 2:
        return "no statement stands between the preconditions and the claim"
    if not rest[-1] or any(rest[:-1]):
        return "its last statement, and no other after the preconditions, is the claim"
    return ""


# ------------------------------------------------------------------------------ CrossHair


@frozen
class Said:
    """What CrossHair said of one function, in its own words without the place, and the time."""

    words: str
    seconds: float


class _Worker:
    """A process with CrossHair in it."""

    def __init__(self, folder: Path, timeout: float) -> None:
        path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kvspec.symbolic.crosshair_worker", str(timeout)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            text=True,
        )

    def ask(self, name: str) -> Said:
        """What CrossHair says of the function with the qualified name `name`."""
        questions, answers = self.process.stdin, self.process.stdout
        assert questions is not None
        assert answers is not None
        try:
            questions.write(name + "\n")
            questions.flush()
            line = answers.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            return Said(f"CrossHair stopped with exit code {self.process.wait()}", 0.0)
        answer = json.loads(line)
        matches = [_SAID.fullmatch(said) for said in answer["lines"]]
        words = [m["words"] if m else s for m, s in zip(matches, answer["lines"], strict=True)]
        return Said(" / ".join(words) or "nothing was said", answer["seconds"])

    def stop(self) -> None:
        """End the process, whatever it is at."""
        self.process.kill()
        self.process.communicate()


@contextmanager
def _workers(folder: Path, count: int, timeout: float) -> Iterator[Callable[[str], Said]]:
    """So many processes; asking waits for one that has nothing to do."""
    workers = [_Worker(folder, timeout) for _ in range(count)]
    idle: queue.Queue[_Worker] = queue.Queue()
    for worker in workers:
        idle.put(worker)

    def ask(name: str) -> Said:
        worker = idle.get()
        try:
            return worker.ask(name)
        finally:
            idle.put(worker)

    try:
        yield ask
    finally:
        for worker in workers:
            worker.stop()


# ------------------------------------------------------------------------------ verdicts


def confirm(
    parts: Sequence[Part], *, workers: int = 2, timeout: float = 60, say: Say = lambda name: None
) -> list[Result]:
    """What CrossHair says of the obligations of `parts` and of all their twins.

    `timeout` is in seconds a function. `say` is told the name of each function that is done.
    """
    with tempfile.TemporaryDirectory(prefix="kvspec-") as name:
        folder = Path(name)
        asked: dict[str, tuple[str, str]] = {}
        for part in parts:
            module, twins = f"kvspec_asked_{part.name}", f"kvspec_broken_{part.name}"
            (folder / f"{module}.py").write_text(part.source, encoding="utf-8")
            (folder / f"{twins}.py").write_text(part.broken(), encoding="utf-8")
            for obligation in part.obligations:
                asked[f"{module}.{obligation}"] = part.name, obligation
                for twin in part.twins_of(obligation):
                    asked[f"{twins}.{twin}"] = part.name, twin
        with _workers(folder, workers, timeout) as ask, ThreadPoolExecutor(workers) as pool:

            def answer(qualified: str) -> Said:
                said = ask(qualified)
                say(qualified.rpartition(".")[2])
                return said

            said = dict(zip(asked.values(), pool.map(answer, asked), strict=True))
    return [
        _result(part, obligation, {name: s for (of, name), s in said.items() if of == part.name})
        for part in parts
        for obligation in part.obligations
    ]


def _result(part: Part, name: str, said: dict[str, Said]) -> Result:
    node = part.obligations[name]
    twins = part.twins_of(name)
    refutations = tuple(
        _refutation(part, name, twin_name, twin, said[twin_name])
        for twin_name, twin in twins.items()
    )
    reason = malformed(node)
    verdict = reason or said[name].words
    return Result(
        part=part.name,
        name=name,
        statement=(ast.get_docstring(node) or "").partition("\n")[0],
        verdict=verdict,
        confirmed=verdict == CONFIRMED,
        witness=next((twin.counterexample for twin in refutations if twin.meets), ""),
        seconds=said[name].seconds,
        twins=refutations,
    )


def _refutation(part: Part, name: str, twin_name: str, twin: Twin, said: Said) -> Refutation:
    match = _REFUTED.fullmatch(said.words)
    if match is None:
        return Refutation(str(twin), said.words, refuted=False, seconds=said.seconds)
    source = broken(part.source, twin, twin_name)
    claim = functions(source)[twin_name].body[-1]
    line = _fails_at(part.source, source, match["call"])
    at_the_claim = line is not None and claim.lineno <= line <= (claim.end_lineno or claim.lineno)
    own = match["call"].replace(twin_name, name, 1)
    return Refutation(
        exchange=str(twin),
        verdict=said.words.partition(" when calling")[0].strip(" :"),
        refuted=at_the_claim,
        seconds=said.seconds,
        counterexample=own,
        meets=at_the_claim and _fails_at(part.source, "", own) is None,
    )


def _fails_at(source: str, twin: str, call: str) -> int | None:
    """The line of the twin's source at which an assert of it fails in `call`; -1 elsewhere."""
    namespace: dict[str, Any] = {}
    exec(compile(source, "<obligations>", "exec"), namespace)
    exec(compile(twin, "<twin>", "exec"), namespace)
    try:
        eval(call, namespace)
    except AssertionError as error:
        frame, line = error.__traceback__, -1
        while frame is not None:
            if frame.tb_frame.f_code.co_filename == "<twin>":
                line = frame.tb_lineno
            frame = frame.tb_next
        return line
    return None
