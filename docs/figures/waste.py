"""The tables and pictures of docs/waste.md.

    python docs/figures/waste.py --data DIR    replays the traces in DIR, then draws and fills
    python docs/figures/waste.py               fills the page's tables from waste.json
    python docs/figures/waste.py --check       says whether they are stale

The replays take some minutes a trace. What the page says of the traces is data: it is in
waste.json, with the day on which it was measured.
"""

import json
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import click

from kvimpls.waste import Replay, Result, parse_schemes, prefix_hits, read, replay, tables
from kvimpls.waste.memory_map import memory_map
from kvimpls.waste.pictures import as_png, many_bars
from kvimpls.waste.record import MemoryMap
from kvimpls.waste.result import Tally
from kvimpls.waste.tables import percent

FIGURES = Path(__file__).resolve().parent
PAGE = FIGURES.parent / "waste.md"
JSON = FIGURES / "waste.json"

CAPACITY = 131_072
COMMON = "oracle,pow2,ondemand,growp2,buddy,paged:256,paged:16"
SWEEP = "paged:8,paged:32,paged:64,paged:128,paged:512"
TRACES = {
    "azure_llm_2023_conv.csv": f"prealloc:8192,{COMMON},{SWEEP}",
    "azure_llm_2023_code.csv": f"prealloc:8192,{COMMON}",
    "arxiv_summarization_lengths_head.csv": f"prealloc:8192,prealloc:4096,{COMMON}",
    "mooncake_conversation_head.jsonl": f"prealloc:8192,prealloc:131072,{COMMON}",
    "mooncake_synthetic.jsonl": f"prealloc:8192,prealloc:131072,{COMMON}",
}
"""The schemes of each trace: with preallocation to what its longest requests need, too."""

TITLES = {
    "azure_llm_2023_conv.csv": "Azure conversation",
    "azure_llm_2023_code.csv": "Azure code",
    "arxiv_summarization_lengths_head.csv": "arXiv summarisation",
    "mooncake_conversation_head.jsonl": "Mooncake conversation",
    "mooncake_synthetic.jsonl": "Mooncake synthetic",
}

MAPPED, MAPPED_STEPS, MAPPED_STRIDE = "oracle:ff", 1600, 3

# -------------------------------------------------------------------------------- measuring


def one(job: tuple[Path, str]) -> tuple[str, Result]:
    """One replay, in a process of its own."""
    path, name = job
    [scheme] = parse_schemes(name)
    return path.name, replay(read(path), scheme, CAPACITY)


def measure(data: Path) -> dict[str, Any]:
    """Replay everything: what waste.json has."""
    jobs = [
        (data / trace, scheme.name)
        for trace, schemes in TRACES.items()
        for scheme in parse_schemes(schemes)
    ]
    results: dict[str, list[Result]] = {}
    with ProcessPoolExecutor() as processes:
        for name, result in processes.map(one, jobs):
            click.echo(f"{name} {result.scheme}", err=True)
            results.setdefault(name, []).append(result)
    traces = []
    for name in TRACES:
        trace = read(data / name)
        hits = prefix_hits(trace, CAPACITY)
        traces.append(tables.as_data(trace, CAPACITY, None, hits, results[name]))
    return {"measured": date.today().isoformat(), "traces": traces}


def mapped(data: Path) -> bytes:
    """The map of a contiguous pool, over the first steps."""
    trace = read(data / "azure_llm_2023_conv.csv", 3000)
    [scheme] = parse_schemes(MAPPED)
    memory = MemoryMap(MAPPED_STRIDE, MAPPED_STEPS // MAPPED_STRIDE)
    run = Replay(trace, scheme, CAPACITY)
    while run.time < MAPPED_STEPS and run.step():
        memory(run)
    title = f"The pool of {MAPPED}: Azure conversation, the first {MAPPED_STEPS:,} steps"
    return as_png(memory_map(memory, CAPACITY, title), colours=128)


# ----------------------------------------------------------------------------------- tables


def result_of(row: dict[str, Any], capacity: int) -> Result:
    """A result as it was before it was data."""
    total, window = ({**row[name]} for name in ("total", "window"))
    del total["reserved"], window["reserved"]
    return Result(
        scheme=row["scheme"],
        capacity=capacity,
        contiguous=row["external_fragmentation_index"] is not None,
        served=row["served"],
        rejected=row["rejected"],
        total=Tally(**total),
        window=Tally(**window),
        peak=row["concurrency_peak"],
        preempted=row["preempted"],
        recomputed=row["recomputed_tokens"],
        relocated=row["relocated_tokens"],
    )


class Figures:
    """What waste.json has, and the parts of the page that are made of it."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.measured = content["measured"]
        self.traces = {trace["trace"]["name"]: trace for trace in content["traces"]}
        self.results = {
            name: {row["scheme"]: result_of(row, CAPACITY) for row in trace["schemes"]}
            for name, trace in self.traces.items()
        }

    def parts(self) -> dict[str, str]:
        """The parts by name."""
        details = {f"detail {name}": self.detail(name) for name in self.traces}
        return {
            "date": f"Measured on {self.measured}, with a capacity of {CAPACITY:,} tokens.",
            "traces": self.lengths(),
            "stored": self.stored(),
            "published": self.published(),
            "preallocation": self.preallocation(),
            "granularity": self.granularity(),
            "utilisation": self.utilisation(),
            "block sizes": self.block_sizes(),
            "prefix hits": self.prefix(),
            **details,
        }

    def lengths(self) -> str:
        """The traces themselves."""
        head = ("trace", "file", "requests", "mean prompt", "mean output", "longest")
        rows = []
        for name, data in self.traces.items():
            trace = data["trace"]
            count = trace["requests"]
            means = (trace["prompt_tokens"] / count, trace["output_tokens"] / count)
            longest = trace["longest"]
            rows.append((TITLES[name], f"`{name}`", count, *(f"{m:,.1f}" for m in means), longest))
        return markdown(head, rows)

    def stored(self) -> str:
        """The share of the capacity that stores tokens."""
        schemes = {s: None for results in self.results.values() for s in results}
        swept = set(SWEEP.split(","))
        rows = [
            (
                f"`{scheme}`",
                *(
                    percent(shares.stored)
                    if scheme in results and (shares := results[scheme].shares)
                    else ""
                    for results in self.results.values()
                ),
            )
            for scheme in sorted(schemes, key=_order)
            if scheme not in swept
        ]
        return markdown(("scheme", *TITLES.values()), rows)

    def published(self) -> str:
        """Beside the figures of the paper."""
        rows = [
            (system, published, f"`{scheme}`", *(self._stored(n, scheme) for n in self.traces))
            for system, published, schemes in PUBLISHED
            for scheme in schemes
        ]
        head = ("system in the paper", "published", "nearest here", *TITLES.values())
        return markdown(head, rows)

    def _stored(self, name: str, scheme: str) -> str:
        if scheme == "prealloc":  # to what the longest requests of the trace need
            scheme = next(s for s in reversed(self.results[name]) if s.startswith("prealloc"))
        shares = self.results[name][scheme].shares
        return percent(shares and shares.stored)

    def preallocation(self) -> str:
        """The text's 87.5 percent: one minus mean length over M, and what was measured."""
        rows = []
        for name, results in self.results.items():
            trace = self.traces[name]["trace"]
            mean = (trace["prompt_tokens"] + trace["output_tokens"]) / trace["requests"]
            for scheme, result in results.items():
                family, _, size = scheme.partition(":")
                if family != "prealloc" or result.shares is None:
                    continue
                few = 100 * result.rejected <= trace["requests"]
                formula = percent(1 - mean / int(size)) if few else "–"
                wasted = percent(1 - result.shares.stored)
                mean_stored = result.window.stored / result.window.running
                running = f"{result.concurrency:.2f}"
                rows.append(
                    (
                        TITLES[name],
                        f"`{scheme}`",
                        f"{mean:,.1f}",
                        formula,
                        f"{mean_stored:,.1f}",
                        running,
                        wasted,
                        result.rejected,
                    )
                )
        head = ("trace", "scheme", "mean final length", "1 − mean / M, %", "mean stored")
        return markdown((*head, "running", "measured not stored, %", "rejected"), rows)

    def granularity(self) -> str:
        """Blocks of 256 and of 16 tokens: reserved and not stored."""
        rows = []
        for name, results in self.results.items():
            for scheme in ("paged:256", "paged:16"):
                result = results[scheme]
                window = result.window
                size = int(scheme.partition(":")[2])
                each = window.stored / window.running
                rows.append(
                    (
                        TITLES[name],
                        f"`{scheme}`",
                        f"{each:,.1f}",
                        f"{(window.future + window.internal) / window.running:.2f}",
                        f"{(size - 1) / 2:.1f}",
                        percent(1 - (window.utilisation or 0.0)),
                    )
                )
        head = ("trace", "scheme", "stored a request", "unfilled a request", "(B − 1) / 2")
        return markdown((*head, "unfilled, % of reserved"), rows)

    def utilisation(self) -> str:
        """The text's 50 to 65 percent: where each family is."""
        families: dict[str, list[tuple[float, float | None]]] = {}
        for results in self.results.values():
            for scheme, result in results.items():
                family = scheme if scheme.startswith("paged") else scheme.partition(":")[0]
                if result.shares is not None and scheme not in SWEEP.split(","):
                    utilisation = result.total.utilisation
                    families.setdefault(family, []).append((result.shares.stored, utilisation))
        rows = []
        for family in sorted(families, key=_order):
            row = [f"`{family}`"]
            for values in zip(*families[family], strict=True):
                within = sum(0.50 <= value <= 0.65 for value in values)
                row.append(f"{percent(min(values))} to {percent(max(values))}")
                row.append(f"{within} of {len(values)}")
            rows.append(row)
        stored = ("stored, % of the capacity", "between 50 and 65")
        return markdown(("family", *stored, "U_res, %", "between 50 and 65"), rows)

    def block_sizes(self) -> str:
        """The sweep."""
        results = self.results["azure_llm_2023_conv.csv"]
        paged = sorted((s for s in results if s.startswith("paged")), key=_order, reverse=True)
        rows = []
        for scheme in paged:
            result = results[scheme]
            shares = result.shares
            if shares is None:
                continue
            parts = (shares.stored, shares.future, shares.internal, shares.free)
            events = (result.preempted, result.total.steps)
            rows.append((f"`{scheme}`", *map(percent, parts), *events))
        head = ("scheme", "stored", "future", "internal", "free", "preempted", "steps")
        return markdown(head, rows)

    def prefix(self) -> str:
        """What a prefix cache would have had."""
        rows = []
        for name, data in self.traces.items():
            hits = data["prefix_hits"]
            if hits is not None:
                shares = (percent(hits["infinite_share"]), percent(hits["lru_share"]))
                rows.append((TITLES[name], f"{hits['prompt_tokens']:,}", *shares))
        head = ("trace", "prompt tokens", "infinite cache, %", f"LRU of {CAPACITY:,} tokens, %")
        return markdown(head, rows)

    def detail(self, name: str) -> str:
        """All quantities of one trace."""
        swept = set(SWEEP.split(","))
        rows = []
        for scheme, result in self.results[name].items():
            if scheme in swept:
                continue
            shares, index = result.shares, result.fragmentation_index
            parts = (shares.stored, shares.future, shares.internal, shares.free) if shares else ()
            rows.append(
                (
                    f"`{scheme}`",
                    *map(percent, parts),
                    percent(result.fragmentation_waste),
                    "–" if index is None else f"{index:.4f}",
                    percent(result.total.utilisation),
                    f"{result.concurrency:.2f}",
                    result.peak,
                    result.preempted,
                    result.recomputed,
                    result.relocated,
                    result.rejected,
                    result.total.steps,
                )
            )
        head = ("scheme", "stored", "future", "internal", "free", "ext. waste", "ext. index")
        head = (*head, "U_res", "running", "peak", "preempted", "recomputed", "relocated")
        return markdown((*head, "rejected", "steps"), rows)


PUBLISHED = (
    ("Orca (Max)", "20.4", ("prealloc",)),
    ("Orca (Pow2)", "26.8", ("buddy:pow2", "pow2:ff")),
    ("Orca (Oracle)", "38.2", ("buddy:oracle", "oracle:ff")),
    ("vLLM", "96.3", ("paged:16",)),
)
"""Kwon et al., SOSP 2023, figure 2: percent of the KV memory that stores tokens."""


def _order(scheme: str) -> tuple[int, int]:
    family, _, variant = scheme.partition(":")
    families = ("prealloc", "oracle", "pow2", "ondemand", "growp2", "buddy", "paged")
    return families.index(family), -int(variant) if variant.isdigit() else 0


def markdown(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table; numbers to the right, with commas."""
    lines = [[f"{c:,}" if isinstance(c, int) else str(c) for c in row] for row in rows]
    numeric = [all(re.fullmatch(r"[\d.,–]*", line[i]) for line in lines) for i in range(len(head))]
    rule = ["---:" if right else "---" for right in numeric]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [list(head), rule, *lines])


def filled(text: str, figures: Figures) -> str:
    """The page, with its parts made anew."""
    parts = figures.parts()

    def fill(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- waste: {name} -->\n\n{parts[name]}\n\n<!-- end of {name} -->"

    pattern = r"<!-- waste: (?P<name>[^>]+) -->\n.*?<!-- end of (?P=name) -->"
    return re.sub(pattern, fill, text, flags=re.DOTALL)


def bars(figures: Figures) -> bytes:
    """The bars of all traces: the schemes that each has, the first fits."""
    shown = {
        TITLES[name]: [
            results[scheme.name]
            for scheme in parse_schemes(f"prealloc:8192,{COMMON}")
            if not scheme.name.endswith(":bf")
        ]
        for name, results in figures.results.items()
    }
    title = f"Where a memory of {CAPACITY:,} tokens is, mean over the saturated window"
    return as_png(many_bars(shown, title), colours=128)


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--pictures", is_flag=True, help="Draw again, without replaying all: with --data.")
@click.option("--check", is_flag=True, help="Only say whether the page is stale.")
def main(data: Path | None, pictures: bool, check: bool) -> None:
    """Make the tables and pictures of docs/waste.md."""
    if data is not None and not pictures:
        JSON.write_text(json.dumps(measure(data), indent=1) + "\n", encoding="utf-8")
    figures = Figures(json.loads(JSON.read_text(encoding="utf-8")))
    if data is not None:
        (FIGURES / "waste-schemes.png").write_bytes(bars(figures))
        (FIGURES / "waste-map.png").write_bytes(mapped(data))
    before = PAGE.read_text(encoding="utf-8")
    after = filled(before, figures)
    if before != after:
        if check:
            click.echo("docs/waste.md: stale: run python docs/figures/waste.py")
            sys.exit(1)
        PAGE.write_text(after, encoding="utf-8")
        click.echo("docs/waste.md: written")


if __name__ == "__main__":
    main()
