"""Carry out the commands behind `docs/verified.md`, and write what they say into `docs/data/`.

`python docs/verified_runs.py` runs all, which takes more than an hour of one core; names of runs,
or of kinds of them, run those alone. `runs.json` has of each command how long it took and how it
ended, and beside it lies what the command wrote with `--json`; of a scope that did not end within
its seconds of CPU there is the first alone.
"""

import argparse
import json
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kvimpls.museum import registry

DATA = Path(__file__).parent / "data"
RUNS = DATA / "runs.json"
MUSEUM = DATA / "museum-explored.json"

CPU_LIMIT = 120
"""Seconds of CPU in which a scope must end, to be one of the largest."""

NEARLY = 0.9
"""So much of its seconds, by the clock here, has a command used whose limit has stopped it."""

SMALL = "--blocks 4 --seqs 2 --block-size 2"
MANY = "--max-states 1000000"

WHO = {"alone": "--spec", "reference": "reference", "torch": "torch_paged"}
"""What is explored: the specification alone, and two allocators."""

CAPABILITIES: dict[str, str] = {
    "sharing": "core,sharing",
    "rollback": "core,sharing,rollback",
    "reservation": "core,sharing,reservation,admission",
    "prefix": "core,prefix",
    "prefix-by-two": "core,prefix",
    "eviction": "core,prefix,eviction",
    "swap": "core,sharing,swap",
    "swap-lease": "core,sharing,rollback,swap,lease",
    "window": "core,sharing,rollback,window",
    "lease": "core,sharing,lease",
    "batch": "core,sharing,batch",
    "resize": "core,sharing,resize",
    "introspection": "core,sharing,introspection",
    "groups": "core,sharing,groups",
    "injection": "core,sharing,rollback,injection",
    "store": "core,sharing,rollback,store,attention",
}
"""What is explored together, by the name of the capability that it is for."""

Scope = tuple[int, ...]
"""Blocks and sequences, in blocks of 2 tokens; or with the block size and the greatest length."""

LADDER: dict[str, dict[str, tuple[Scope, ...]]] = {
    "alone": {
        "sharing": (
            (8, 3),
            (8, 4),
            (10, 4),
        ),
        "rollback": (
            (6, 3),
            (8, 3),
            (8, 4),
        ),
        "reservation": (
            (6, 2),
            (6, 3),
        ),
        "prefix": (
            (2, 2, 1, 2),
            (2, 2, 2, 2),
        ),
        "prefix-by-two": (
            (2, 1, 2, 3),
            (2, 1, 2, 4),
        ),
        "eviction": (
            (2, 1, 1, 2),
            (2, 2, 1, 2),
            (2, 2, 2, 2),
        ),
        "swap": (
            (8, 3),
            (8, 4),
        ),
        "swap-lease": (
            (4, 2),
            (6, 2),
        ),
        "window": (
            (6, 3),
            (8, 3),
        ),
        "lease": (
            (6, 2),
            (6, 3),
        ),
        "batch": (
            (6, 2),
            (8, 2),
            (6, 3),
        ),
        "resize": (
            (4, 3),
            (6, 3),
        ),
        "introspection": (
            (8, 3),
            (8, 4),
            (10, 4),
        ),
        "groups": (
            (6, 3),
            (8, 3),
            (8, 4),
            (10, 4),
        ),
    },
    "reference": {
        "rollback": (
            (6, 3),
            (8, 3),
            (8, 4),
        ),
        "reservation": (
            (6, 2),
            (6, 3),
        ),
        "prefix": (
            (2, 2, 1, 2),
            (2, 2, 2, 2),
        ),
        "eviction": (
            (2, 1, 1, 2),
            (2, 2, 1, 2),
            (2, 2, 2, 2),
        ),
        "swap": (
            (8, 3),
            (8, 4),
        ),
        "swap-lease": (
            (2, 2),
            (4, 2),
            (6, 2),
        ),
        "window": (
            (4, 2),
            (6, 2),
            (8, 2),
            (6, 3),
        ),
        "lease": (
            (4, 2),
            (6, 2),
            (6, 3),
        ),
        "batch": (
            (6, 2),
            (8, 2),
            (6, 3),
        ),
        "resize": (
            (4, 3),
            (6, 3),
        ),
        "introspection": (
            (6, 3),
            (8, 3),
            (8, 4),
        ),
        "groups": (
            (6, 3),
            (8, 3),
            (8, 4),
        ),
        "injection": (
            (6, 2),
            (6, 3),
            (8, 3),
        ),
        "store": (
            (6, 2),
            (6, 3),
            (8, 3),
        ),
    },
    "torch": {
        "rollback": (
            (6, 3),
            (8, 3),
            (8, 4),
        ),
        "reservation": (
            (3, 2),
            (4, 2),
            (6, 2),
            (6, 3),
        ),
        "prefix": (
            (2, 1, 1, 2),
            (2, 2, 1, 2),
        ),
        "eviction": (
            (2, 1, 1, 2),
            (2, 2, 1, 2),
        ),
        "swap": (
            (6, 2),
            (6, 3),
            (8, 3),
        ),
        "swap-lease": (
            (2, 2),
            (4, 2),
        ),
        "window": (
            (6, 2),
            (8, 2),
            (6, 3),
        ),
        "lease": (
            (2, 2),
            (4, 2),
            (6, 2),
        ),
        "batch": (
            (6, 2),
            (8, 2),
            (6, 3),
        ),
        "resize": (
            (4, 3),
            (6, 3),
        ),
        "introspection": (
            (6, 3),
            (8, 3),
            (8, 4),
        ),
        "groups": (
            (6, 3),
            (8, 3),
            (8, 4),
        ),
        "injection": (
            (6, 2),
            (6, 3),
            (8, 3),
        ),
        "store": (
            (6, 2),
            (6, 3),
        ),
    },
}
"""By what is explored, the scopes for each capability, in the order of what they cost."""


class Run(NamedTuple):
    """A command, and the seconds of CPU that it may take; none: as many as it likes."""

    command: str
    limit: int | None = None


def explored(who: str, name: str, scope: Scope) -> str:
    """The command that explores a scope: every model transition, driven once."""
    blocks, seqs, size, *most = (*scope, 2)[: max(3, len(scope))]
    words = [f"explore {WHO[who]} --blocks {blocks} --seqs {seqs} --block-size {size}"]
    words += [f"--max-tokens {tokens}" for tokens in most]
    if "swap" in name:
        words.append(f"--host-blocks {blocks}")
    if name == "window":
        words.append("--window 3")
    if who != "alone":
        words.append("--mode driven")
    return f"{' '.join(words)} {MANY} --capabilities {CAPABILITIES[name]}"


def runs() -> dict[str, Run]:
    """All commands, by the names of the files that they write."""
    found = {
        "check-reference": Run("check reference"),
        "check-torch-paged": Run("check torch_paged"),
        "check-best-fit": Run("check kvimpls.traditional:ContiguousBestFit"),
        "walk-reference": Run("walk reference --steps 50000"),
        "symbolic": Run("symbolic"),
        "symbolic-slow": Run("symbolic --slow"),
        "product-reference": Run(f"explore reference {SMALL} {MANY} --mode product"),
        "product-torch": Run(f"explore torch_paged {SMALL} {MANY} --mode product"),
    }
    for who, ladder in LADDER.items():
        for name, scopes in ladder.items():
            for scope in scopes:
                told = "-".join(map(str, scope))
                found[f"{who}-{name}-{told}"] = Run(explored(who, name, scope), CPU_LIMIT)
    return found


# ------------------------------------------------------------------------------ running


class Done(NamedTuple):
    """What became of a command: its data, where it came to its end."""

    seconds: float
    busy: float
    code: int
    data: dict[str, Any] | None


def carried_out(run: Run) -> Done:
    """Carry out one command."""
    limit = run.limit

    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.json"
        start, busy = time.perf_counter(), _busy()
        words = [sys.executable, "-m", "kvspec.cli", *shlex.split(run.command), "--json", str(path)]
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, preexec_fn=limited
        )
        seconds, busy = time.perf_counter() - start, _busy() - busy
        # Whoever has used up its seconds is killed by a signal; but so is whoever needs too much
        # memory, or is told to stop.
        used_up = limit is not None and busy > NEARLY * limit and done.returncode < 0
        if not path.is_file() and not used_up:
            raise SystemExit(f"kvspec {run.command}: exit code {done.returncode}\n{done.stderr}")
        data = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    return Done(round(seconds, 1), round(busy, 1), done.returncode, data)


def _busy() -> float:
    """Seconds of CPU of the commands so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def record(name: str, command: str, done: Done) -> None:
    """Write down what became of a command."""
    path = DATA / f"{name}.json"
    if done.data is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(json.dumps(done.data, indent=1) + "\n", encoding="utf-8")
    # Read again each time: another process may be running other commands.
    known = json.loads(RUNS.read_text(encoding="utf-8")) if RUNS.is_file() else {}
    known[name] = {
        "command": f"kvspec {command}",
        "seconds": done.seconds,
        "cpu_seconds": done.busy,
        "exit_code": done.code if done.data is not None else None,
    }
    ordered = {name: known[name] for name in runs() if name in known}
    RUNS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


# ------------------------------------------------------------------------------ the museum

ALSO = {"CountsTheReleased": ("window",), "ForgetsTheBound": ("reservation",)}
"""What some exhibits of the museum need beside core and sharing to show."""


def explored_museum() -> Iterator[dict[str, Any]]:
    """What exploring says of each fault of core and sharing in the museum, in both modes."""
    for exhibit in registry.MUSEUM:
        if exhibit.family not in ("core", "sharing"):
            continue
        capabilities = ",".join(("core", "sharing", *ALSO.get(exhibit.name, ())))
        target = f"{exhibit.factory.__module__}:{exhibit.name}"
        row: dict[str, Any] = {"name": exhibit.name, "capabilities": capabilities}
        for mode in ("product", "driven"):
            text = f"explore {target} {SMALL} --mode {mode} --capabilities {capabilities}"
            done = carried_out(Run(text))
            assert done.data is not None
            [search], trace = done.data["searches"], done.data["trace"]
            row[mode] = {
                "exit_code": done.code,
                "law": None if trace is None else trace["breaches"][0]["law"],
                "shortest_story": search["shortest_story"],
                "reduced": None if trace is None else len(trace["steps"]),
                "states": search["states"],
                "transitions": search["transitions"],
                "exhausted": search["exhausted"],
                "cpu_seconds": done.busy,
            }
        print(f"{exhibit.name}: {row['product']['law']}, {row['driven']['law']}", flush=True)
        yield row


def main() -> None:
    """Run the commands that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="names of runs, how they begin, or `museum`")
    names = tuple(parser.parse_args().names)
    DATA.mkdir(exist_ok=True)
    for name, run in runs().items():
        if not names or name.startswith(names):
            done = carried_out(run)
            record(name, run.command, done)
            print(f"{name}: {done.busy:.0f} s of CPU, {done.code}", flush=True)
    if not names or "museum" in names:
        rows = list(explored_museum())
        MUSEUM.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
