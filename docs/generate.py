"""Writes the parts of the documents that are made from the code.

`python docs/generate.py` writes them, or only the pages that are named; with `--check` it writes
nothing, names the files that are stale, and exits 1 if there are any. `laws.md` is made as a
whole. In the other files the text between `<!-- generated: NAME -->` and `<!-- end of NAME -->` is.
"""

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from attrs import asdict, define, evolve

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS / "examples"))

import adapted  # noqa: E402  # a neighbour, found by the line above
import faults  # noqa: E402  # the same
import mistakes  # noqa: E402  # the same
import records  # noqa: E402  # beside this file
import verified  # noqa: E402  # the same

from kvimpls import museum, traditional  # noqa: E402  # the same
from kvimpls.museum import registry  # noqa: E402  # the same
from kvspec import Contract, Geometry, check_allocator  # noqa: E402  # the same
from kvspec.driver.target import (  # noqa: E402  # the same
    TargetError,
    plain_geometry,
    promised,
    target,
)
from kvspec.engines.session import Session  # noqa: E402  # the same
from kvspec.kernel import generation  # noqa: E402  # the same
from kvspec.kernel.law import Law  # noqa: E402  # the same
from kvspec.kernel.names import call_text  # noqa: E402  # the same
from kvspec.rooms import (  # noqa: E402  # the same
    LAWS,
    OPERATIONS,
    ROOMS,
    specification,
)
from kvspec.suite import kill_tables  # noqa: E402  # the same
from kvspec.suite.contracts import ContractError, parse_contract  # noqa: E402  # the same
from kvspec.suite.kill_tables import linked  # noqa: E402  # the same
from kvspec.suite.killing import KillTable, from_data  # noqa: E402  # the same
from kvspec.traces.export import as_pytest  # noqa: E402  # the same
from kvspec.traces.reduce import Reducer  # noqa: E402  # the same
from kvspec.traces.table import as_text  # noqa: E402  # the same
from kvspec.traces.trace import CONVERTER, Trace  # noqa: E402  # the same

WIDTH = 96
"""Columns of a counterexample on a page."""

BROKEN_BY: Mapping[str, type] = {
    "limit": faults.ForgetsTheLimit,
    "write-bounds": faults.WritesUnreservedSlots,
    "misuse": faults.FreesTheUnknown,
    "well-formed": faults.SaysYesOrNo,
    "snapshot": museum.AliasedTable,
    "can-allocate": faults.AdmitsByPoolSize,
    "in-flight": museum.FirstLeaseReleases,
    "copy-on-write": museum.ForgottenCopyOnWrite,
    "fork": faults.ForksFullBlocksOnly,
    "batch": faults.CopiesForTheLastToo,
    "no-overlap": faults.FreesTwice,
    "needless-copy": faults.CopiesBeforeEveryWrite,
    "placement": faults.TakesFromTheTop,
    "atomicity": museum.HalfDoneAppend,
    "frame": faults.FreesForAll,
    "bounded-waste": museum.OffByOneAtBoundary,
    "retry": faults.RefusesAtFirst,
    "admission": museum.SpuriousRefusalAtExactFit,
    "ref-count": museum.DoubleHandOut,
    "conservation": museum.LeakOnRefusal,
    "read-back": faults.ForgetsToReport,
    "attention": faults.AttendsToWholeBlocks,
}
"""For a law an allocator that breaks it before any other; for the rest an exhibit does."""


def breakers(law: Law) -> Iterator[type]:
    """Allocators by which the law may be shown, the best first."""
    if law.id in BROKEN_BY:
        yield BROKEN_BY[law.id]
    yield from (exhibit.factory for exhibit in registry.MUSEUM if exhibit.law == law.id)


def name_of(kind: type) -> str:
    """The target by which a reader can check this allocator."""
    if kind.__module__.startswith("kvimpls.museum"):
        package = hasattr(museum, kind.__name__)
        return f"{'kvimpls.museum' if package else kind.__module__}:{kind.__name__}"
    return f"docs/examples/{kind.__module__}.py:{kind.__name__}"


@cache
def found(kind: type) -> Trace | None:
    """What `kvspec check` finds in this allocator, in the first profile that finds anything."""
    reports = (check_allocator(kind, name=name_of(kind), profile=p) for p in ("quick", "ci"))
    return next((report.trace for report in reports if report.trace is not None), None)


def counterexample(kind: type) -> Trace:
    """What `kvspec check` finds in this allocator."""
    trace = found(kind)
    if trace is None:
        raise SystemExit(f"{name_of(kind)} was found to be right: it shows nothing")
    return trace


def text_block(text: str, language: str = "text") -> str:
    """A fenced block."""
    return f"```{language}\n{text.rstrip()}\n```"


# ------------------------------------------------------------------------ the page of laws


def first_sentence(thing: object) -> str:
    """The first sentence of a docstring, without its full stop."""
    return (thing.__doc__ or "").strip().split(".\n")[0].split("\n\n")[0].rstrip(".")


def _uncapitalised(text: str) -> str:
    return text[:1].lower() + text[1:]


def one_field_contracts() -> Iterator[tuple[str, Contract]]:
    """The contracts that differ from the strict one in one field of few values."""
    yield "misuse=callers_duty", Contract(misuse="callers_duty")
    yield "relocates=true", Contract(relocates=True)
    yield "eager_fork=tail", Contract(eager_fork="tail")
    yield "eager_fork=all", Contract(eager_fork="all")
    yield "eviction=any", Contract(eviction="any")
    yield "forgets=true", Contract(forgets=True)


def shaped_for(law: Law, contract: Contract) -> Geometry:
    """The plainest geometry in which there is something to judge by the law."""
    room = next(room for room in ROOMS if room.capability == law.capability)
    return room.shaped(plain_geometry(contract), contract.geometries, None)


def _specified(law: Law, contract: Contract) -> tuple[Law, ...]:
    """The laws of the capability under a contract; none where it is not specified under that."""
    room = next(room for room in ROOMS if room.capability == law.capability)
    claims = tuple(dict.fromkeys(("core", law.capability, *room.needs)))
    try:
        return specification(shaped_for(law, contract), contract, claims).laws
    except ValueError:
        return ()


def _claims(law: Law, contract: Contract) -> bool:
    return law in _specified(law, contract) and not law.idle(contract)


def silence_of(law: Law) -> str:
    """Under which contracts the law claims nothing; empty where there are none."""
    if not _claims(law, Contract()):
        return "- It claims nothing under the strict contract."
    silent = [(t, contract) for t, contract in one_field_contracts() if not _claims(law, contract)]
    barred = [text for text, contract in silent if not _specified(law, contract)]
    lines = []
    if idle := [f"`{text}`" for text, _ in silent if text not in barred]:
        lines.append(f"- It claims nothing under the contract {' or '.join(idle)}.")
    if barred:
        told = " or ".join(f"`{text}`" for text in barred)
        lines.append(f"- The capability cannot be claimed under the contract {told}.")
    return "\n".join(lines)


def witness_of(law: Law) -> str:
    """The calls of the law's witness, in the plainest geometry."""
    calls = law.witness(shaped_for(law, Contract()))
    texts = [(call_text(OPERATIONS[call.method](**call.fields)), call.fault) for call in calls]
    return "\n".join(
        f"{text} failing at checkpoint {fault}" if fault else text for text, fault in texts
    )


def shown_by(law: Law) -> tuple[type, Trace]:
    """An allocator that breaks the law before any other, or else together with others."""
    too: tuple[type, Trace] | None = None
    for kind in breakers(law):
        trace = found(kind)
        if trace is not None and trace.law == law.id:
            return kind, trace
        if trace is not None and law.id in [breach.law for breach in trace.breaches]:
            too = too or (kind, trace)
    if too is None:
        raise SystemExit(f"no allocator shows how {law.id} is broken: add one to BROKEN_BY")
    return too


def section(law: Law) -> str:
    """What the page says of one law."""
    kind, trace = shown_by(law)
    others = "; ".join(_uncapitalised(first_sentence(other)) for other in law.shaken_by)
    lines = [
        f"## {law.id}",
        "",
        f"**{law.statement}**",
        "",
        f"- Capability: {law.capability}",
        f"- Source: {linked(law.source)}",
        f"- Other outcomes that are tried: {others}.",
    ]
    if silence := silence_of(law):
        lines.append(silence)
    lines += [
        "",
        f"Witness: {first_sentence(law.witness)}.",
        "",
        text_block(witness_of(law)),
        "",
        f"Broken by `{name_of(kind)}`: {first_sentence(kind)}.{_implied(law, trace)}",
        "",
        text_block(as_text(trace, width=WIDTH)),
    ]
    return "\n".join(lines)


def _implied(law: Law, trace: Trace) -> str:
    """That laws which imply this one come first, where they do."""
    if trace.law == law.id:
        return ""
    before = [breach.law for breach in trace.breaches]
    before = before[: before.index(law.id)]
    names = " and ".join(f"*{name}*" for name in before)
    return f" Here {names} imply it, and are reported before it."


def laws_page() -> str:
    """The page of laws, in the published order."""
    geometry = plain_geometry(Contract())
    rows = [f"| [{law.id}](#{law.id}) | {law.capability} | {law.statement} |" for law in LAWS]
    head = f"""\
<!-- Made by docs/generate.py from the code: change that, not this. -->

# The laws

Every law is asked of every step, and all that are broken are recorded. The one that is
reported is the first in the order of this page: the most specific first, since it explains
best, and last read-back and attention, which see everything and explain least. A trace stops at the
first step that breaks a law.

A law *bites* in a step where it is relevant and would reject some other outcome of that step;
each law below says which other outcomes are tried. Its *witness* is a short script in which it
bites, and which is run before anything else. The witnesses below are for
{geometry.num_blocks} blocks of {geometry.block_size} tokens. The counterexamples are what
`kvspec check` prints for an allocator with that fault; [reading-traces.md](reading-traces.md)
says how to read them.

| law | capability | statement |
|---|---|---|
"""
    return head + "\n".join(rows) + "\n\n" + "\n\n".join(section(law) for law in LAWS) + "\n"


# ------------------------------------------------------------------------ the other parts


def mine() -> str:
    """The example of one's own allocator, literally."""
    return text_block((DOCS / "examples" / "mine.py").read_text(encoding="utf-8"), "python")


def engine() -> str:
    """The example of an engine's own allocator, literally."""
    return text_block(inspect.getsource(adapted.BlockManager), "python")


def adapter() -> str:
    """The adapter of that engine, with what it imports."""
    lines = inspect.getsource(adapted).splitlines()
    source = "\n".join(lines[1 : lines.index("class BlockManager:")]).strip()
    return text_block(f"{source}\n\n\n{inspect.getsource(adapted.Adapter)}", "python")


def asking_adapter() -> str:
    """The adapter that asks first."""
    return text_block(inspect.getsource(adapted.Asking), "python")


def shown_counterexample() -> str:
    """The counterexample with which `make check` ends."""
    return text_block(as_text(counterexample(museum.ForgottenCopyOnWrite), width=WIDTH))


def moving_counterexample() -> str:
    """A counterexample in which blocks change hands."""
    return text_block(as_text(counterexample(faults.CopiesBeforeEveryWrite), width=WIDTH))


def flight_counterexample() -> str:
    """A counterexample with leases."""
    return text_block(as_text(counterexample(museum.FirstLeaseReleases), width=WIDTH))


def unsteady_counterexample() -> str:
    """How the heading reads when the violation did not come again."""
    trace = evolve(counterexample(museum.LeakOnRefusal), reduced=False)
    return text_block(as_text(trace, reproduced=2, replays=5, width=WIDTH).split("\n\n")[0])


def trace_as_json() -> str:
    """A trace as it is saved, laid out for the page."""
    data = CONVERTER.unstructure(counterexample(museum.LeakOnRefusal))
    return text_block(_laid_out(data), "json")


def _laid_out(data: Any, indent: int = 0) -> str:
    flat = json.dumps(data)
    if indent and (len(flat) + indent <= WIDTH - 20 or not isinstance(data, dict | list)):
        return flat
    pad = " " * (indent + 2)
    if isinstance(data, dict):
        inner = [f"{pad}{json.dumps(key)}: {_laid_out(data[key], indent + 2)}" for key in data]
        return "{\n" + ",\n".join(inner) + "\n" + " " * indent + "}"
    inner = [pad + _laid_out(item, indent + 2) for item in data]
    return "[\n" + ",\n".join(inner) + "\n" + " " * indent + "]"


def exported() -> str:
    """A trace as a test, as it is exported: no tool may format it."""
    block = text_block(as_pytest(counterexample(museum.LeakOnRefusal)), "python")
    return f"<!-- fmt: off -->\n{block}\n<!-- fmt: on -->"


def _mistakes() -> Iterator[type]:
    for thing in vars(mistakes).values():
        if isinstance(thing, type) and thing.__module__ == "mistakes":
            yield thing


def _setup_error(kind: type) -> str | None:
    try:
        target(kind, name_of(kind))
    except TargetError as error:
        return str(error)
    return None


def setup_mistakes() -> str:
    """The mistakes that are found before anything is run, and the lines that say so."""
    parts = [
        f"{first_sentence(kind)}:\n\n{text_block(f'kvspec: {error}')}"
        for kind in _mistakes()
        if (error := _setup_error(kind)) is not None
    ]
    return "\n\n".join(parts)


def contract_mistakes() -> str:
    """Texts that give no contract, and the lines that say so."""
    texts = ("strict", "eager_frok=tail", "eager_fork=some", "reservation=Granular:0")
    lines = []
    for text in texts:
        try:
            parse_contract(text, Contract())
        except ContractError as error:
            lines += [f"$ kvspec check reference --contract {text}", f"kvspec: {error}"]
    return text_block("\n".join(lines))


def law_mistakes() -> str:
    """The mistakes that a law finds, and what it says."""
    parts = []
    for kind in _mistakes():
        if _setup_error(kind) is None:
            breach = counterexample(kind).breaches[0]
            said = text_block(f"{breach.law}: {breach.because}")
            parts.append(f"{first_sentence(kind)}:\n\n{said}")
    return "\n\n".join(parts)


def schemes() -> str:
    """Every traditional scheme with its contract."""
    rows = ["| allocator | reservation | placement | moves | what it is |", "|---|---|---|---|---|"]
    for name in traditional.__all__:
        kind = getattr(traditional, name)
        contract = kind.contract
        reservation = type(contract.reservation).__name__
        details = ", ".join(f"{k}={v}" for k, v in asdict(contract.reservation).items())
        rows.append(
            f"| `{name}` | {reservation}{f' ({details})' if details else ''} | "
            f"{contract.placement} | {'yes' if contract.relocates else 'no'} | "
            f"{first_sentence(kind)} |"
        )
    return "\n".join(rows)


def against_paged(kind: type) -> Callable[[], str]:
    """What is found in a traditional allocator that is held to the promise of a paged one."""

    def story() -> str:
        name = f"kvimpls.traditional:{kind.__name__}"
        contract = parse_contract("paged", promised(kind, name))
        report = check_allocator(kind, name=name, contract=contract, profile="quick")
        assert report.trace is not None, name
        return text_block(as_text(report.trace, width=WIDTH))

    return story


@define
class Seeded:
    """A chooser that draws from a seeded generator."""

    random: Random

    def integer(self, low: int, high: int, near: Sequence[int] = ()) -> int:
        """One of `near`, or of the range."""
        return self.random.choice([*near, *range(low, high + 1)])

    def pick(self, items: Sequence[Any]) -> Any:
        """One of the items."""
        return self.random.choice(list(items))


def the_texts_picture() -> str:
    """The first violation in seeded walks of nothing but `allocate` and `free`, reduced."""
    kind = traditional.ContiguousFirstFit
    name = f"kvimpls.traditional:{kind.__name__}"
    tested = target(kind, name, parse_contract("paged", promised(kind, name)))
    for number in range(100):
        chooser = Seeded(Random(number))
        spec = tested.specification(generation.geometry(chooser, tested.contract, tested.rooms))
        few = (p for p in spec.proposals() if p.name in ("allocate", "free"))
        mix = generation.Mix(tuple((p, 1) for p in few))
        session = Session(kind, spec, name)
        while session.state.clock < 40 and not session.breaches:
            session.perform(generation.operation(chooser, mix, session.state, spec))
        if session.breaches:
            return text_block(as_text(Reducer(kind).reduce(session.trace), width=WIDTH))
    raise SystemExit("no walk of allocate and free ends in a violation")


# ------------------------------------------------------------------------ the museum


def kill_table() -> str:
    """The kill table as it was measured and committed, and by what: nothing is run for it."""
    table = _measured("museum.json")
    command = f"kvspec museum --seeds {table.seeds} --seed {table.seed} --profile {table.profile}"
    command += " --format json --output docs/data/museum.json"
    return f"{text_block(command, 'sh')}\n\n{kill_tables.as_markdown(table)}"


def _measured(name: str) -> KillTable:
    return from_data(json.loads((DOCS / "data" / name).read_text(encoding="utf-8")))


def kills_by_the_walk() -> str:
    """What the walk found, and what took it longest: nothing is run for it."""
    table = _measured("museum-walk.json")
    command = f"kvspec museum --engine walk --seconds {table.seconds:g} --seeds {table.seeds}"
    command += " --minimum-states 0 --format json --output docs/data/museum-walk.json"
    told = text_block(command, "sh"), kill_tables.summary(table), kill_tables.longest(table, 8)
    return "\n\n".join(told)


def museum_verdicts() -> str:
    """Where the run disagreed with what was expected, by what was right then."""
    told: dict[str, list[str]] = {}
    for exhibit in registry.MUSEUM:
        if exhibit.broke:
            case = f"`{exhibit.name}` ({exhibit.law}, and {' or '.join(exhibit.broke)} broke)"
            told.setdefault(exhibit.verdict, []).append(case)
    return "\n".join(f"- {', '.join(cases)}: {verdict}" for verdict, cases in told.items())


def museum_as_right() -> str:
    """The laws that broke and are as right as the expected ones: why, and of which exhibits."""
    table = _measured("museum.json")
    broke = {row.name: row.broke for row in table.exhibits}
    lines = []
    for law, why in registry.AS_RIGHT.items():
        its = [e for e in registry.MUSEUM if law in e.also and law in broke[e.name]]
        names = ", ".join(f"`{e.name}` ({e.law})" for e in its if law not in e.broke)
        if names:
            lines.append(f"- {law}, of {names}: {why}")
    return "\n".join(lines)


def museum_corrected() -> str:
    """The records whose sequence or mutant was wrong, with the exhibits that came of them."""
    lines = []
    for record, what in registry.CORRECTED.items():
        shown = [exhibit for exhibit in registry.MUSEUM if record in exhibit.records]
        names = ", ".join(f"`{exhibit.name}`" for exhibit in shown)
        sources = dict.fromkeys(source for exhibit in shown for source in exhibit.sources)
        lines.append(f"- {record} ({names}; {linked(', '.join(sources))}): {what}")
    return "\n".join(lines)


def museum_out_of_scope() -> str:
    """The records that no exhibit can show, each with the reason."""
    return "\n".join(f"- {record}: {why}" for record, why in registry.OUT_OF_SCOPE.items())


def explorer_table(number: int) -> Callable[[], str]:
    """One of the tables that `benchmarks/explore.py --json` wrote."""

    def table() -> str:
        data = json.loads((DOCS / "data" / "explorer.json").read_text(encoding="utf-8"))
        columns = dict(data["tables"][number]["columns"])
        lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        lines += [f"| {' | '.join(row)} |" for row in zip(*columns.values(), strict=True)]
        return "\n".join(lines)

    return table


PARTS: Mapping[str, Callable[[], str]] = {
    "mine": mine,
    "engine": engine,
    "adapter": adapter,
    "asking adapter": asking_adapter,
    "counterexample": shown_counterexample,
    "moving counterexample": moving_counterexample,
    "counterexample in flight": flight_counterexample,
    "unsteady counterexample": unsteady_counterexample,
    "trace as JSON": trace_as_json,
    "trace as a test": exported,
    "mistakes at set-up": setup_mistakes,
    "mistakes in a contract": contract_mistakes,
    "mistakes that laws find": law_mistakes,
    "kill table": kill_table,
    "kills by the walk": kills_by_the_walk,
    "laws as right": museum_as_right,
    "verdicts on expectations": museum_verdicts,
    "corrected records": museum_corrected,
    "records out of scope": museum_out_of_scope,
    "symbolic by law": verified.symbolic_table,
    "explorer beside others": explorer_table(0),
    "explorer's rates": explorer_table(1),
    "explorer's stages": explorer_table(2),
    "engines": records.engines_table,
    "findings": records.findings_text,
    "schemes": schemes,
    "preallocation against paged": against_paged(traditional.Preallocation),
    "contiguous against paged": against_paged(traditional.ContiguousFirstFit),
    "the text's picture": the_texts_picture,
    "doubling against paged": against_paged(traditional.DoublingFirstFit),
    "granules against paged": against_paged(traditional.Granular256),
    "buddies against paged": against_paged(traditional.BuddyOracle),
}


def _filled(text: str) -> str:
    def fill(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- generated: {name} -->\n{PARTS[name]()}\n<!-- end of {name} -->"

    return re.sub(
        r"<!-- generated: (?P<name>[^>]+) -->\n.*?<!-- end of (?P=name) -->",
        fill,
        text,
        flags=re.DOTALL,
    )


def pages(names: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Every document that has generated text, or those named, with the text it should have."""
    if not names or "laws.md" in names:
        yield DOCS / "laws.md", laws_page()
    for path in (ROOT / "README.md", *sorted(DOCS.glob("*.md"))):
        if path.name != "laws.md" and (not names or path.name in names):
            text = path.read_text(encoding="utf-8")
            if "<!-- generated: " in text:
                yield path, _filled(text)


def main(arguments: list[str]) -> int:
    """Write the generated text, or with `--check` say what is stale."""
    check = arguments[:1] == ["--check"]
    names = arguments[check:]
    if any(not name.endswith(".md") for name in names):
        print("usage: python docs/generate.py [--check] [PAGE.md ...]", file=sys.stderr)
        return 2
    stale = []
    for path, text in pages(names):
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.relative_to(ROOT))
            if not check:
                path.write_text(text, encoding="utf-8")
    for path in stale:
        print(f"{path}: {'stale: run python docs/generate.py' if check else 'written'}")
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
