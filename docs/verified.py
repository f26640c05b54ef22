"""Make `docs/verified.md` from what the commands wrote into `docs/data/`.

`python docs/verified.py` makes the page, `--check` fails where it is stale against the data, and
`--run` runs all the commands first, which takes about half an hour of one core, or with
`--only NAME` one of them. The page says nothing of its own about what holds: every number in it is
from the data.
"""

import argparse
import json
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kvimpls.museum import registry
from kvspec.kernel.names import plural
from kvspec.rooms import LAWS

DOCS = Path(__file__).parent
DATA = DOCS / "data"
PAGE = DOCS / "verified.md"
RUNS = DATA / "runs.json"
MUSEUM = DATA / "museum-explored.json"
STOPPED = DATA / "larger-scopes.json"

DATE = "2026-11-30"
"""When the commands were last run."""

SMALL = "--blocks 4 --seqs 2 --block-size 2"
MANY = "--max-states 1000000"
LARGE = f"--blocks 6 --seqs 3 --block-size 2 {MANY}"
WIDE = f"--blocks 6 --seqs 2 --block-size 2 {MANY}"
WIDER = f"--blocks 8 --seqs 3 --block-size 2 {MANY}"
WIDEST = f"--blocks 8 --seqs 4 --block-size 2 {MANY}"
CACHED = f"--blocks 2 --seqs 2 --block-size 1 --max-tokens 2 {MANY}"

COMMANDS: dict[str, str] = {
    "check-reference": "check reference",
    "check-torch-paged": "check torch_paged",
    "check-best-fit": "check kvimpls.traditional:ContiguousBestFit",
    "walk-reference": "walk reference --steps 200000",
    "symbolic": "symbolic",
    "alone-sharing": f"explore --spec {WIDER} --capabilities core,sharing",
    "alone-rollback": f"explore --spec {WIDER} --capabilities core,sharing,rollback",
    "alone-reservation": f"explore --spec {WIDE} --capabilities core,sharing,reservation,admission",
    "alone-swap": "explore --spec --blocks 8 --seqs 3 --block-size 2 --host-blocks 8 "
    f"{MANY} --capabilities core,sharing,swap",
    "alone-swap-lease": "explore --spec --blocks 4 --seqs 2 --block-size 2 --host-blocks 4 "
    f"{MANY} --capabilities core,sharing,rollback,swap,lease",
    "alone-window": f"explore --spec {LARGE} --window 3 "
    "--capabilities core,sharing,rollback,window",
    "alone-lease": f"explore --spec {WIDE} --capabilities core,sharing,lease",
    "alone-batch": f"explore --spec {WIDE} --capabilities core,sharing,batch",
    "alone-resize": "explore --spec --blocks 4 --seqs 3 --block-size 2 "
    f"{MANY} --capabilities core,sharing,resize",
    "alone-prefix": f"explore --spec {CACHED} --capabilities core,prefix",
    "alone-prefix-by-two": "explore --spec --blocks 2 --seqs 1 --block-size 2 --max-tokens 3 "
    f"{MANY} --capabilities core,prefix",
    "reference-product": f"explore reference {SMALL} --mode product",
    "reference-driven": f"explore reference {LARGE} --mode driven "
    "--capabilities core,sharing,rollback",
    "reference-introspection": f"explore reference {SMALL} --mode driven "
    "--capabilities core,reservation,admission,sharing,introspection",
    "reference-swap": f"explore reference {SMALL} --host-blocks 4 --mode driven "
    "--capabilities core,sharing,swap",
    "reference-window": f"explore reference {SMALL} --window 3 --mode driven "
    "--capabilities core,sharing,rollback,window",
    "reference-lease": f"explore reference {SMALL} --mode driven --capabilities core,sharing,lease",
    "reference-batch": f"explore reference {SMALL} --mode driven --capabilities core,sharing,batch",
    "reference-resize": f"explore reference {SMALL} --mode driven "
    "--capabilities core,sharing,resize",
    "reference-prefix": f"explore reference {CACHED} --mode driven --capabilities core,prefix",
    "reference-injection": f"explore reference {SMALL} --mode driven "
    "--capabilities core,sharing,rollback,injection",
    "torch-product": f"explore torch_paged {SMALL} --mode product",
    "torch-driven": f"explore torch_paged {LARGE} --mode driven "
    "--capabilities core,sharing,rollback",
    "torch-store": f"explore torch_paged {SMALL} --mode driven "
    "--capabilities core,sharing,rollback,store,attention",
}
"""What is run, by the name of the file that it writes."""

ALSO = {"CountsTheReleased": ("window",), "ForgetsTheBound": ("reservation",)}
"""What some exhibits of the museum need beside core and sharing to show."""

LARGER: dict[str, tuple[str, str]] = {
    "alone-sharing": (
        "4 sequences",
        f"explore --spec {WIDEST} --capabilities core,sharing",
    ),
    "alone-rollback": (
        "4 sequences",
        f"explore --spec {WIDEST} --capabilities core,sharing,rollback",
    ),
    "alone-reservation": (
        "3 sequences",
        f"explore --spec {LARGE} --capabilities core,sharing,reservation,admission",
    ),
    "alone-swap": (
        "4 sequences",
        f"explore --spec {WIDEST} --host-blocks 8 --capabilities core,sharing,swap",
    ),
    "alone-swap-lease": (
        "6 blocks, 6 host blocks",
        f"explore --spec {WIDE} --host-blocks 6 --capabilities core,sharing,rollback,swap,lease",
    ),
    "alone-window": (
        "8 blocks",
        f"explore --spec {WIDER} --window 3 --capabilities core,sharing,rollback,window",
    ),
    "alone-lease": (
        "3 sequences",
        f"explore --spec {LARGE} --capabilities core,sharing,lease",
    ),
    "alone-batch": (
        "3 sequences",
        f"explore --spec {LARGE} --capabilities core,sharing,batch",
    ),
    "alone-resize": (
        "6 blocks",
        f"explore --spec {LARGE} --capabilities core,sharing,resize",
    ),
    "alone-prefix": (
        "blocks of 2 tokens",
        f"explore --spec --blocks 2 --seqs 2 --block-size 2 --max-tokens 2 {MANY} "
        "--capabilities core,prefix",
    ),
    "alone-prefix-by-two": (
        "lengths up to 4",
        f"explore --spec --blocks 2 --seqs 1 --block-size 2 --max-tokens 4 {MANY} "
        "--capabilities core,prefix",
    ),
}
"""By command, the next larger scope: what differs, and the command, which is stopped."""

CPU_LIMIT = 120
"""Seconds of CPU after which a larger scope is stopped."""

CONFIRMED: dict[str, tuple[str, tuple[str, ...], str]] = {
    "no-overlap": ("steps", (), "at most 3 blocks a sequence"),
    "conservation": ("steps", (), "at most 3 blocks a sequence"),
    "bounded-waste": (
        "arithmetic",
        ("blocks_", "waste_", "growth_", "last_entry"),
        "the arithmetic, all sizes",
    ),
    "copy-on-write": ("steps", ("copy_on_write", "append"), "at most 3 blocks a sequence"),
    "rollback": ("arithmetic", ("truncate",), "the arithmetic, all sizes"),
    "window": (
        "arithmetic",
        ("released_", "releases_", "a_window", "what_is_released", "kept_for", "no_window"),
        "the arithmetic, all sizes",
    ),
}
"""Which obligations of CrossHair are about a law: the part, how their names begin, the bounds."""

PROVED: dict[str, tuple[str, ...]] = {
    "no-overlap": ("in-pool", "no-overlap", "handed-out-once"),
    "conservation": ("no-leak", "free-count"),
    "bounded-waste": ("bounded-waste",),
    "ref-count": ("exact-counts",),
    "read-back": ("read-back",),
    "prefix-sound": ("prefix-sound",),
}
"""Which laws of the z3 model say what a law says."""

HEAD = """\
<!-- Made by docs/verified.py from docs/data: change those, not this. -->

# What *verified* means here

Five words, from the weakest to the strongest. Each says what was looked at, and by what; none of
them says more than that.

| word | what it says | what is assumed |
|---|---|---|
| *sampled* | an allocator was driven at random, and the law was asked and did bite so often | \
that what goes wrong does so within a few calls in small pools |
| *every model transition driven once* | every call in every believed state of the scope, up to \
names, on the allocator that came there first | that the scope is large enough; that what is \
hidden in the order of a free list makes no difference |
| *exhausted over the product* | the same for every pair of believed state and what the allocator \
has inside; wrong calls once in each kind of believed state | that the scope is large enough; \
that its fingerprint shows all that it has inside |
| *confirmed by CrossHair within these bounds* | all integers, in the shape that the function \
fixes; it is about the rules, and not about an allocator | CrossHair, z3, and the shape |
| *proved* | any number of blocks and sequences, by z3 from axioms; about a model of the rules | \
the [axioms](symbolic.md#what-is-trusted), z3, and that the model says what the conventions say |

*Specification alone* is between the second and the third: every outcome that is allowed, in every \
state of the scope, was judged, and no law rejects what another account allows. It is about the \
specification; no allocator takes part.

So nothing here proves an allocator. What is proved is that an allocator which does what is \
allowed, step by step, keeps the laws; that a given one does so is sampled, and exhausted in small \
scopes.
"""


class Run(NamedTuple):
    """What one command wrote, how long it took, and how it ended."""

    command: str
    seconds: float
    busy: float | None
    code: int
    data: dict[str, Any]


def run_all(only: Sequence[str]) -> None:
    """Run every command, or some, and write what each says and how long it took."""
    DATA.mkdir(exist_ok=True)
    for name in only or [*COMMANDS, MUSEUM.stem, STOPPED.stem]:
        if name == STOPPED.stem:
            for larger in LARGER:
                attempt(larger)
            continue
        if name == MUSEUM.stem:
            rows = list(explored_museum())
            MUSEUM.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            continue
        run = _run(COMMANDS[name])
        (DATA / f"{name}.json").write_text(json.dumps(run.data, indent=1) + "\n", encoding="utf-8")
        # Read again each time: another process may be running other commands.
        recorded = json.loads(RUNS.read_text(encoding="utf-8"))["runs"] if RUNS.is_file() else {}
        recorded[name] = {
            "command": run.command,
            "seconds": run.seconds,
            "cpu_seconds": run.busy,
            "exit_code": run.code,
        }
        runs = {name: recorded[name] for name in COMMANDS if name in recorded}
        text = json.dumps({"date": DATE, "runs": runs}, indent=1)
        RUNS.write_text(text + "\n", encoding="utf-8")
        print(f"{name}: {run.seconds:.0f} s, exit code {run.code}", flush=True)


def _run(text: str) -> Run:
    """Carry out one command."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.json"
        start, busy = time.perf_counter(), _busy()
        words = [sys.executable, "-m", "kvspec.cli", *shlex.split(text), "--json", str(path)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        seconds, busy = time.perf_counter() - start, _busy() - busy
        if not path.is_file():
            raise SystemExit(f"kvspec {text}: exit code {done.returncode}\n{done.stderr}")
        data = json.loads(path.read_text(encoding="utf-8"))
    return Run(f"kvspec {text}", round(seconds, 1), round(busy, 1), done.returncode, data)


def attempt(name: str) -> None:
    """Write down whether the next larger scope ends before its seconds of CPU are over."""
    differs, text = LARGER[name]
    done = subprocess.run(
        [sys.executable, "-m", "kvspec.cli", *shlex.split(text)],
        capture_output=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT, CPU_LIMIT)),
    )
    # Whoever has used up its seconds is killed by a signal.
    assert done.returncode <= 0, done.stderr.decode()
    ended = done.returncode == 0
    print(f"{text}: {'ended' if ended else 'stopped'}", flush=True)
    known = json.loads(STOPPED.read_text(encoding="utf-8")) if STOPPED.is_file() else {}
    known[name] = {"differs": differs, "command": f"kvspec {text}", "ended": ended}
    ordered = {name: known[name] for name in LARGER if name in known}
    STOPPED.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


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
            run = _run(text)
            [search], trace = run.data["searches"], run.data["trace"]
            row[mode] = {
                "exit_code": run.code,
                "law": None if trace is None else trace["breaches"][0]["law"],
                "shortest_story": search["shortest_story"],
                "reduced": None if trace is None else len(trace["steps"]),
                "states": search["states"],
                "transitions": search["transitions"],
                "exhausted": search["exhausted"],
                "cpu_seconds": run.busy,
            }
        print(f"{exhibit.name}: {row['product']['law']}, {row['driven']['law']}", flush=True)
        yield row


def _busy() -> float:
    """Seconds of CPU of the commands so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def read_all() -> tuple[str, dict[str, Run]]:
    """The date, and what each command wrote."""
    recorded = json.loads(RUNS.read_text(encoding="utf-8"))
    runs = {}
    for name, about in recorded["runs"].items():
        data = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
        busy = about.get("cpu_seconds")
        runs[name] = Run(about["command"], about["seconds"], busy, about["exit_code"], data)
    return recorded["date"], runs


# ------------------------------------------------------------------------------ the rows


def sampled(law: str, runs: Mapping[str, Run]) -> str:
    """How often the law was asked, and bit, in the runs that draw at random."""
    parts = []
    for name, run in runs.items():
        if not name.startswith(("check-", "walk-")):
            continue
        for report in run.data["allocators"]:
            result = report["laws"][law]
            if result["verdict"] == "held":
                engine = "walk" if name.startswith("walk-") else "machine"
                who = report["allocator"].rpartition(":")[2]
                parts.append(
                    f"{engine}, {who}: {result['evaluations']:,}, {result['bites']:,} bites"
                )
    if len(parts) > 3:  # one scheme of another kind is worth a word only where the others have none
        parts = [part for part in parts if "ContiguousBestFit" not in part]
    return "; ".join(parts) or "—"


def explored(law: str, runs: Mapping[str, Run]) -> str:
    """The scopes in which everything was tried and the law bit."""
    parts: dict[str, list[str]] = {}
    for name, run in runs.items():
        if not name.startswith(("alone-", "reference-", "torch-")):
            continue
        if not run.data["laws"].get(law, {}).get("bites"):
            continue
        for search in run.data["searches"]:
            who = "" if run.data["allocator"] == "specification" else f"{run.data['allocator']}, "
            parts.setdefault(f"{who}{_mode(search)}", []).append(_link(name))
    return "; ".join(f"{how}: {', '.join(links)}" for how, links in parts.items()) or "—"


def _mode(search: Mapping[str, Any]) -> str:
    if search["exhausted"]:
        return str(search["mode"])
    return f"NOT EXHAUSTED, {search['mode'].removeprefix('exhausted ')}"


def _link(name: str) -> str:
    return f"[{name.partition('-')[2]}](#{name})"


def symbolic(law: str, runs: Mapping[str, Run]) -> str:
    """What CrossHair confirmed of it."""
    if law not in CONFIRMED:
        return "—"
    part, starts, bounds = CONFIRMED[law]
    results = [
        result
        for result in runs["symbolic"].data["results"]
        if result["part"] == part and (not starts or result["name"].startswith(starts))
    ]
    assert results, law
    if any(result["problem"] for result in results):
        return "NOT CONFIRMED"
    seconds = sum(result["seconds"] for result in results)
    return f"{plural(len(results), 'obligation')}, {bounds}; {seconds:.1f} s"


def proved(law: str, runs: Mapping[str, Run]) -> str:
    """What z3 proved of it."""
    if law not in PROVED:
        return "—"
    wanted = PROVED[law]
    results = [r for r in runs["symbolic"].data["results"] if r["part"] == "operations"]
    if any(result["problem"] for result in results):
        return "NOT PROVED"
    count = sum(name in wanted for result in results for name in result["details"])
    given = "; the operations' own preconditions give it" if law == "bounded-waste" else ""
    return f"{count} proofs: {', '.join(wanted)}, over {len(results)} operations{given}"


def page() -> str:
    """The whole page."""
    date, runs = read_all()
    lines = [
        HEAD,
        f"The commands were run on {date}, on two cores that others used as well. *Sampled* has "
        "how often each law was asked, and how often at least it bit. The next column links what "
        "was explored, with its bounds and times, below; the last but one has the seconds of all "
        "its obligations together, and those of z3 take less than one each.",
        "",
        "| law | sampled | everything in a small scope "
        "| confirmed by CrossHair within these bounds | proved with z3, from the axioms |",
        "|---|---|---|---|---|",
    ]
    for law in LAWS:
        cells = [about(law.id, runs) for about in (sampled, explored, symbolic, proved)]
        lines.append(f"| [{law.id}](laws.md#{law.id}) | {' | '.join(cells)} |")
    lines += [
        "",
        "## Each capability in its largest scope",
        "",
        "Specification alone, everything to its end: of the scopes that were tried, the largest "
        "that took no more than two minutes of CPU on one core, and the next larger one, which was "
        "stopped then. Tokens are of two letters, under two keys, and there "
        "are at most two leases at once.",
        "",
        "| explored | scope | states | transitions | CPU, s | stopped after two minutes |",
        "|---|---|---|---|---|---|",
    ]
    larger = json.loads(STOPPED.read_text(encoding="utf-8"))
    for name, run in runs.items():
        if name.startswith("alone-"):
            next_one = "not tried"
            if name in larger:
                assert not larger[name]["ended"], f"{name} has a larger scope that ends"
                next_one = f"{larger[name]['differs']}: `{larger[name]['command']}`"
            [search] = run.data["searches"]
            assert search["exhausted"], name
            cells = [
                f"[{', '.join(run.data['capabilities'])}](#{name})",
                run.data["scope"],
                f"{search['states']:,}",
                f"{search['transitions']:,}",
                "—" if run.busy is None else f"{run.busy:,.0f}",
                next_one,
            ]
            lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "## The commands",
        "",
        "What was explored alone, and with an allocator; all numbers are from the files in "
        "`docs/data/`, which the commands wrote with `--json`.",
        "",
    ]
    for name, run in runs.items():
        lines += [f"### {name}", "", f"`{run.command}`", "", _told(name, run), ""]
    lines += [
        "## The museum's faults of core and sharing",
        "",
        f"`kvspec explore EXHIBIT {SMALL}`, over the product and with every model transition "
        "driven once: the law that reports the fault, and how many calls the shortest story has, "
        "before its pool is made smaller and it is reduced, and after. A dash: not found, though "
        "everything was tried.",
        "",
        "| fault | explored | law | shortest story | reduced | states | transitions "
        "| driven once: law | story |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in json.loads(MUSEUM.read_text(encoding="utf-8")):
        product, driven = row["product"], row["driven"]
        cells = [
            row["name"],
            row["capabilities"].replace(",", ", "),
            product["law"] or "—",
            str(product["shortest_story"] or "—"),
            str(product["reduced"] or "—"),
            f"{product['states']:,}",
            f"{product['transitions']:,}",
            driven["law"] or ("—" if driven["exhausted"] else "NOT EXHAUSTED"),
            str(driven["shortest_story"] or "—"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "## What is not covered",
        "",
        "- Stores are driven once in every model state: their data are new with every write, so "
        "that the product has no end.",
        "- With a prefix cache the scopes are tiny, since the states are many: two sequences in "
        "blocks of 2 tokens came to no end within two minutes.",
        "- Which lookups, counts of single blocks and attentions follow a call goes by the number "
        "of the step, and is no part of a state; each of these questions is tried as a call as "
        "well, but for attention.",
        "- What an allocator keeps outside of itself, in globals and files, is in no fingerprint.",
        "",
    ]
    return "\n".join(lines)


def _told(name: str, run: Run) -> str:
    busy = "" if run.busy is None else f", {run.busy:,.0f} s of CPU"
    took = f"{run.seconds:,.0f} s with its start{busy}, exit code {run.code}."
    if name == "symbolic":
        results = run.data["results"]
        twins = sum(len(result["twins"]) for result in results)
        tools = " and ".join(f"{tool} {version}" for tool, version in run.data["tools"].items())
        return f"{len(results)} obligations and {twins} broken twins, with {tools}. {took}"
    if name.startswith(("check-", "walk-")):
        steps = sum(report["steps"] for report in run.data["allocators"])
        return f"{steps:,} operations. {took}"
    parts = []
    for search in run.data["searches"]:
        apart = f", told apart by {search['told_apart_by']}" if search["told_apart_by"] else ""
        parts.append(
            f"{_mode(search)}: {search['states']:,} states, "
            f"{search['transitions']:,} transitions in {search['seconds']:,.1f} s{apart}."
        )
    return f"{' '.join(parts)} Scope: {run.data['scope']}. {took}"


def main() -> None:
    """Make the page, or say that it is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", action="store_true", help="run all the commands first")
    names = [*COMMANDS, MUSEUM.stem, STOPPED.stem]
    parser.add_argument("--only", action="append", choices=names, default=[])
    parser.add_argument("--check", action="store_true", help="fail where the page is stale")
    options = parser.parse_args()
    if options.run:
        run_all(options.only)
    text = page()
    if options.check:
        if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
            raise SystemExit("docs/verified.md is stale: run python docs/verified.py")
    else:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
