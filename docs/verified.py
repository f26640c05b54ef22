"""Make `docs/verified.md` from what the commands wrote into `docs/data/`.

`python docs/verified.py` makes the page, and `--check` fails where it is stale against the data,
which `docs/verified_runs.py` makes. The page says nothing of its own about what holds: every
number in it is from the data, and so is what `docs/symbolic.md` says of single laws.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import verified_runs  # beside this file

from kvspec.kernel.names import plural
from kvspec.rooms import LAWS
from kvspec.symbolic.results import twins_of

DOCS = Path(__file__).parent
DATA = DOCS / "data"
PAGE = DOCS / "verified.md"

SAMPLED = "sampled"
ALONE = "specification alone"
DRIVEN = "every model transition driven once"
PRODUCT = "exhausted over the product"
CONFIRMED = "confirmed by CrossHair within these bounds"
PROVED = "proved with z3, from the axioms"

ASSUMED = {
    SAMPLED: "what goes wrong does so within a few calls, in small pools",
    ALONE: "the scope is large enough; no allocator takes part",
    DRIVEN: "the scope is large enough; what the allocator hides makes no difference",
    PRODUCT: "the scope is large enough; the fingerprint shows all that is inside",
    CONFIRMED: "CrossHair, z3, and the shape; no allocator takes part",
    PROVED: "the [axioms](symbolic.md#what-is-trusted), z3, the model; no allocator takes part",
}
"""What is assumed, by the word."""

HEAD = f"""\
<!-- Made by docs/verified.py from docs/data: change those, not this. -->

# What *verified* means here

Six words, from the weakest to the strongest. Each says what was looked at, and by what; none of
them says more than that.

| word | what it says |
|---|---|
| *{SAMPLED}* | an allocator was driven at random, the law was asked so often, and it did bite \
at least so often |
| *{ALONE}* | every outcome that is allowed, in every state of the scope, was judged: no law \
rejects what another account allows |
| *{DRIVEN}* | every call in every believed state of the scope, up to names, on the allocator that \
came there first |
| *{PRODUCT}* | the same for every pair of believed state and what the allocator has inside |
| *{CONFIRMED}* | all integers, in the shape that the function fixes |
| *{PROVED}* | any number of blocks and sequences, in a model of the rules |

So nothing here proves an allocator. What is proved is that an allocator which does what is
allowed, step by step, keeps the laws; that a given one does so is sampled, and exhausted in small
scopes.

The first table has for each law how far each word goes: 8/3 is a scope of 8 blocks and 3
sequences. The law's own section says it in full: the command that shows it, the seconds of CPU that
it took, and what is assumed. A law is counted for a scope only if it did bite there; of the scopes
with the same word it is the one in which blocks times sequences are the most, and of such the one
with the most states. A smaller scope may have more states, with other capabilities.
"""


class Run(NamedTuple):
    """What one command wrote, and how many seconds of CPU it took."""

    name: str
    command: str
    busy: float
    code: int | None
    data: dict[str, Any]

    @property
    def who(self) -> str:
        """What was explored: the name that a page has for it."""
        who = self.data["allocator"]
        return who if who in ("reference", "torch_paged") else "specification"

    @property
    def search(self) -> dict[str, Any]:
        """The one search of an exploration."""
        [search] = self.data["searches"]
        assert search["exhausted"], self.name
        return dict(search)

    @property
    def extent(self) -> tuple[int, int]:
        """By what scopes are compared: blocks times sequences, and then how many states."""
        blocks: int = self.data["geometry"]["num_blocks"]
        return blocks * self.data["sequences"], self.search["states"]

    @property
    def scope(self) -> str:
        """Blocks and sequences."""
        return f"{self.data['geometry']['num_blocks']}/{self.data['sequences']}"


class Row(NamedTuple):
    """A word that holds of a law: for whom, how far, by which command and in what time."""

    word: str
    who: str
    short: str
    far: str
    command: str
    busy: float


def read_all() -> tuple[dict[str, Run], dict[str, dict[str, Any]]]:
    """The commands that came to their end, and those that were stopped."""
    recorded = json.loads((DATA / "runs.json").read_text(encoding="utf-8"))
    runs, stopped = {}, {}
    for name, about in recorded.items():
        if about["exit_code"] is None:
            stopped[name] = about
            continue
        data = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
        busy, code = about["cpu_seconds"], about["exit_code"]
        runs[name] = Run(name, about["command"], busy, code, data)
    return runs, stopped


# ------------------------------------------------------------------------------ the rows


def rows(law: str, runs: Mapping[str, Run]) -> list[Row]:
    """All that is known of a law, from the weakest word to the strongest."""
    return [*_sampled(law, runs), *_explored(law, runs), *_symbolic(law, runs)]


def _sampled(law: str, runs: Mapping[str, Run]) -> list[Row]:
    found = []
    for name, run in runs.items():
        for report in run.data["allocators"] if name.startswith(("check-", "walk-")) else ():
            result = report["laws"][law]
            if result["verdict"] == "held":
                who = report["allocator"].rpartition(":")[2]
                how = "walk" if name.startswith("walk-") else "machine"
                far = (
                    f"{who}, {how}: asked {result['evaluations']:,} times, bit {result['bites']:,}"
                )
                found.append(Row(SAMPLED, who, who, far, run.command, run.busy))
    # A scheme of another kind is worth a word only where the others have none.
    own = [row for row in found if row.who in ("reference", "torch_paged")]
    return own or found


def _explored(law: str, runs: Mapping[str, Run]) -> Iterator[Row]:
    """For each word and allocator the largest scope in which the law bit."""
    best: dict[tuple[str, str], list[Run]] = {}
    for run in runs.values():
        if "searches" in run.data and run.data["laws"].get(law, {}).get("bites"):
            best.setdefault((run.search["mode"], run.who), []).append(run)
    for word in (ALONE, DRIVEN, PRODUCT):
        for who in ("specification", "reference", "torch_paged"):
            bit = sorted(best.get((word, who), ()), key=lambda run: run.extent, reverse=True)
            if not bit:
                continue
            run, also = bit[0], bit[1:]
            far = f"{who}: " if who != "specification" else ""
            far += f"{', '.join(run.data['capabilities'])}; {run.data['scope']}: "
            far += f"{run.search['states']:,} states, {run.search['transitions']:,} transitions"
            if also:
                far += f"; and in {plural(len(also), 'other scope')}"
            yield Row(word, who, run.scope, far, run.command, run.busy)


class Bearing(NamedTuple):
    """What of one part of `kvspec symbolic` bears on a law."""

    obligations: list[str]
    claims: list[str]
    proofs: int
    busy: float
    right: bool


PARTS = {
    "arithmetic": "all sizes",
    "steps": "at most 3 blocks a sequence",
    "wide": "at most 4 blocks a sequence",
    "operations": "any number of blocks and sequences",
}


def bearing(law: str, part: str, data: Mapping[str, Any]) -> Bearing | None:
    """What of a part bears on a law; `None`: nothing."""
    found = [r for r in data["results"] if r["part"] == part and law in r["laws"]]
    if not found:
        return None
    claims = list(dict.fromkeys(claim for result in found for claim in result["laws"][law]))
    return Bearing(
        [result["name"] for result in found],
        claims,
        sum(len(result["laws"][law]) for result in found),
        sum(r["seconds"] + sum(twin["seconds"] for twin in r["twins"]) for r in found),
        not any(result["problem"] for result in found),
    )


def _symbolic(law: str, runs: Mapping[str, Run]) -> Iterator[Row]:
    for name, part in (
        ("symbolic", "arithmetic"),
        ("symbolic", "steps"),
        ("symbolic-slow", "wide"),
        ("symbolic", "operations"),
    ):
        run = runs[name]
        found = bearing(law, part, run.data)
        if found is None:
            continue
        assert found.right, (law, part)
        tool = "z3" if part == "operations" else "crosshair"
        command = f"{run.command} --only {tool}"
        if part == "operations":
            count = plural(len(found.obligations), "operation")
            far = f"{PARTS[part]}: {plural(found.proofs, 'proof')} of {', '.join(found.claims)} "
            far += f"after {count}"
            yield Row(PROVED, tool, count, far, command, found.busy)
        else:
            names = ", ".join(f"`{obligation}`" for obligation in found.obligations)
            far = f"{PARTS[part]}: {names}"
            # The slow tier asks the same steps in a larger shape.
            short = "" if part == "steps" else PARTS[part].removesuffix(" a sequence")
            yield Row(CONFIRMED, tool, short, far, command, found.busy)


# ------------------------------------------------------------------------------ the page


def glance(runs: Mapping[str, Run]) -> Iterator[str]:
    """The table of all laws."""
    yield "| law | sampled | specification alone | reference | torch_paged | CrossHair | z3 |"
    yield "|---|---|---|---|---|---|---|"
    for law in LAWS:
        known = rows(law.id, runs)

        def cell(words: Sequence[str], *who: str, known: Sequence[Row] = known) -> str:
            found = [r for r in known if r.word in words and (not who or r.who in who)]
            named = {PRODUCT: "product ", DRIVEN: "driven "}
            texts = [named.get(r.word, "") + r.short for r in reversed(found)]
            return ", ".join(dict.fromkeys(filter(None, texts))) or "—"

        cells = [
            f"[{law.id}](#{law.id})",
            cell([SAMPLED]),
            cell([ALONE]),
            cell([DRIVEN, PRODUCT], "reference"),
            cell([DRIVEN, PRODUCT], "torch_paged"),
            cell([CONFIRMED]),
            cell([PROVED]),
        ]
        yield f"| {' | '.join(cells)} |"


def sections(runs: Mapping[str, Run]) -> Iterator[str]:
    """A section for each law."""
    for law in LAWS:
        yield f"### {law.id}\n\n[{law.statement}](laws.md#{law.id})\n"
        yield "| word | by what, how far | command | CPU, s | assumed |"
        yield "|---|---|---|---|---|"
        for row in rows(law.id, runs):
            cells = [row.word, row.far, f"`{row.command}`", f"{row.busy:.1f}", ASSUMED[row.word]]
            yield f"| {' | '.join(cells)} |"
        yield ""


def scopes(runs: Mapping[str, Run], stopped: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    """What was explored, each capability in its largest scope."""
    yet = {
        name: f"kvspec {run.command}"
        for name, run in verified_runs.runs().items()
        if name not in runs and name not in stopped
    }
    yield "| explored | by | scope | states | transitions | CPU, s | stopped after two minutes |"
    yield "|---|---|---|---|---|---|---|"
    for who in ("alone", "reference", "torch"):
        mine = [run for name, run in runs.items() if name.startswith(f"{who}-")]
        for run in mine:
            kind = _kind(run.name)
            others = [other.search["states"] for other in mine if _kind(other.name) == kind]
            if run.search["states"] < max(others):
                continue
            cut = [about["command"] for name, about in stopped.items() if _kind(name) == kind]
            more = [command for name, command in yet.items() if _kind(name) == kind]
            told = ["; ".join(f"`{command}`" for command in cut)] if cut else []
            told += ["not yet tried: " + "; ".join(f"`{c}`" for c in more)] if more else []
            cells = [
                ", ".join(run.data["capabilities"]),
                f"{run.who}, {run.search['mode']}" if who != "alone" else ALONE,
                run.data["scope"],
                f"{run.search['states']:,}",
                f"{run.search['transitions']:,}",
                f"{run.busy:,.0f}",
                "; ".join(told) or "no larger one was tried",
            ]
            yield f"| {' | '.join(cells)} |"


def _kind(name: str) -> str:
    return name.rstrip("-0123456789")


def museum() -> Iterator[str]:
    """The museum's faults of core and sharing."""
    yield (
        "| fault | explored | law | shortest story | reduced | states | transitions | CPU, s "
        "| driven once: law | story |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in json.loads((DATA / "museum-explored.json").read_text(encoding="utf-8")):
        product, driven = row["product"], row["driven"]
        cells = [
            row["name"],
            row["capabilities"].replace(",", ", "),
            product["law"] or "—",
            str(product["shortest_story"] or "—"),
            str(product["reduced"] or "—"),
            f"{product['states']:,}",
            f"{product['transitions']:,}",
            f"{product['cpu_seconds']:,.0f}",
            driven["law"] or ("—" if driven["exhausted"] else "NOT EXHAUSTED"),
            str(driven["shortest_story"] or "—"),
        ]
        yield f"| {' | '.join(cells)} |"


def tools(runs: Mapping[str, Run]) -> Iterator[str]:
    """How long the two tiers took."""
    yield "| tier | command | obligations | refutations | by broken twins | CPU, s |"
    yield "|---|---|---|---|---|---|"
    for name in ("symbolic", "symbolic-slow"):
        run = runs[name]
        results = run.data["results"]
        counts = (
            len(results),
            sum(twin["refuted"] for result in results for twin in result["twins"]),
            twins_of(results),
        )
        cells = [run.data["tier"], f"`{run.command}`", *map(str, counts)]
        yield f"| {' | '.join(cells)} | {run.busy:.0f} |"


def page() -> str:
    """The whole page."""
    runs, stopped = read_all()
    versions = " and ".join(f"{t} {v}" for t, v in runs["symbolic"].data["tools"].items())
    lines = [
        HEAD,
        *glance(runs),
        "",
        "## Each law",
        "",
        *sections(runs),
        "## Each capability in its largest scope",
        "",
        "Everything to its end: of the scopes that were tried, the largest that took no more than "
        "two minutes of CPU on one core, and the next larger one, which was stopped then. Tokens "
        "are of two letters, under two keys, and there are at most two leases at once.",
        "",
        *scopes(runs, stopped),
        "",
        "## The two tiers of `kvspec symbolic`",
        "",
        f"With {versions}. The seconds of a law are those of its obligations and of their broken "
        "twins; one obligation may count for several laws.",
        "",
        *tools(runs),
        "",
        "## The museum's faults of core and sharing",
        "",
        "`kvspec explore kvimpls.museum:EXHIBIT --blocks 4 --seqs 2 --block-size 2`, over the "
        "product and with every model transition driven once: the law that reports the fault, and "
        "how many calls the shortest story has, before its pool is made smaller and it is reduced, "
        "and after. It is the shortest in this pool and with these calls; with others there may be "
        "a shorter one. A dash: not found, though everything was tried.",
        "",
        *museum(),
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


# ------------------------------------------------------------------------------ symbolic.md


def symbolic_table() -> str:
    """What is confirmed and proved of each law, for the page of the tools."""
    runs, _ = read_all()
    lines = [
        "| law | confirmed by CrossHair, within these bounds | proved with z3, from the axioms |"
    ]
    lines.append("|---|---|---|")
    for law in LAWS:
        known = list(_symbolic(law.id, runs))
        if known:
            cells = [
                "; ".join(row.far for row in known if row.word == word) or "—"
                for word in (CONFIRMED, PROVED)
            ]
            lines.append(f"| [{law.id}](laws.md#{law.id}) | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Make the page, or say that it is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where the page is stale")
    text = page()
    if parser.parse_args().check:
        if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
            raise SystemExit("docs/verified.md is stale: run python docs/verified.py")
    else:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
