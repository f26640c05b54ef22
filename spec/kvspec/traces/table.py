"""A trace as a table for the terminal: the calls, the answers, who has which block, the count."""

from io import StringIO
from itertools import groupby

from attrs import frozen
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from kvspec.kernel.law import Law
from kvspec.kernel.names import call_text, entries_text, plural, sequence_name
from kvspec.kernel.state import State
from kvspec.kernel.step import Step
from kvspec.rooms import LAWS
from kvspec.traces.trace import Trace, TraceStep, believed

_LAWS: dict[str, Law] = {law.id: law for law in LAWS}

_GAP = 2
"""Columns between columns."""

_CAP = 24
"""Columns for a call or an answer where there is no room for more."""

_MOST_SIDE_BY_SIDE = 32
"""Pools of more blocks than these are shown by their blocks in use."""


def shown(text: str) -> str:
    """A text from a trace, fit for a terminal: one line, and nothing that steers the terminal.

    >>> shown("one\\ntwo \\x1b[31m")
    'one two \ufffd[31m'
    """
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)


def _answer(step: Step) -> str:
    answer = step.answer
    if answer.kind in ("refused", "hang"):
        return "hangs" if answer.kind == "hang" else "refused"
    if answer.kind != "done":
        said = {"raised": "raises ", "injected": "fails at "}
        return said.get(answer.kind, "") + answer.value
    parts = [answer.value] if answer.value else []
    if step.operation.answers == "blocks":
        parts = [f"{{{answer.value}}}"]
    several = len(step.operation.touched) > 1
    for seq in step.operation.touched:
        if seq in step.after.sequences:
            parts += [sequence_name(seq)] if several else []
            for table in step.after.homes(seq):
                if table in step.seen.tables:
                    tier = "" if table.place.tier == "device" else f"{table.place.tier} "
                    parts.append(tier + entries_text(step.after.entries(table)))
    parts += [f"copy {copy.source}→{copy.destination}" for copy in answer.copies]
    return " ".join(parts) or "ok"


def _owners(state: State, block: int) -> str:
    """Who has the block: letters for tables, `~` in flight, `*` in the cache, `.` for nobody.

    Nothing where the pool has been resized, and there is no such block.
    """
    place = state.place_of("device", block)
    occupancy = state.at(place)
    seqs = dict.fromkeys(holder.seq for holder in occupancy.users.get(block, ()))
    name = "+".join(sequence_name(seq) for seq in seqs)
    name += "~" if block in occupancy.pins else ""
    name += "*" if block in occupancy.keeps else ""
    return name or ("." if block in state.blocks(place) else "")


def _side_by_side(states: list[State], blocks: range) -> list[str]:
    """For each state, who has each block, in the order of the ids."""
    rows = [[_owners(state, block) for block in blocks] for state in states]
    width = max((len(owner) for row in rows for owner in row), default=1)
    return [" ".join(owner.ljust(width) for owner in row).rstrip() for row in rows]


def _by_runs(state: State, blocks: range) -> str:
    """Who has which blocks, as runs of ids: `0-3:A 4:A+B`; `.` where nobody has any."""
    held = [block for block in blocks if _owners(state, block) not in (".", "")]
    runs = []
    for owner, group in groupby(
        enumerate(held), lambda pair: (_owners(state, pair[1]), pair[1] - pair[0])
    ):
        run = [block for _, block in group]
        ids = f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}"
        runs.append(f"{ids}:{owner[0]}")
    return " ".join(runs) or "."


@frozen
class _Steps:
    """The steps as a table that fits the width, with the blocks side by side if there is room."""

    trace: Trace

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table(options.max_width)

    def _table(self, most: int) -> Table:
        trace, steps = self.trace, believed(self.trace)
        states, blocks = [step.after for step in steps], _all_blocks(trace)
        calls = [called(step) for step in trace.steps]
        answers = [shown(_answer(step)) for step in steps]
        counts = [" ".join(map(str, step.seen.free.values())) for step in steps]
        mark = f"<- {shown(trace.law)}" if trace.law else ""
        runs = [_by_runs(state, blocks) for state in states]
        side = _side_by_side(states, blocks) if len(blocks) <= _MOST_SIDE_BY_SIDE else runs
        heading = _heading_of(blocks)
        # What gives way first: the name of the law, long calls and answers, the blocks.
        for tables, cap, name in (
            (side, most, mark),
            (side, most, mark[:2]),
            (side, _CAP, mark[:2]),
            (runs, most, mark[:2]),
            (runs, _CAP, mark[:2]),
        ):
            widths = (min(_widest(calls), cap), min(_widest(answers), cap))
            taken = len(str(len(calls))) + sum(widths) + _widest([heading, *tables])
            if taken + len("free") + len(name) + 5 * _GAP <= most:
                break
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
        table.add_column("#", justify="right", style="dim", no_wrap=True)
        table.add_column("call", min_width=widths[0], max_width=widths[0], overflow="fold")
        table.add_column("answer", max_width=max(widths[1], len("answer")), overflow="fold")
        table.add_column(heading, overflow="fold")
        table.add_column("free", justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        for number, call in enumerate(calls):
            last = number == len(steps) - 1 and trace.law is not None
            told = [column[number] for column in (answers, tables, counts) if number < len(steps)]
            cells = [str(number), call, *told, name if last else ""]
            table.add_row(*map(Text, cells), style="bold" if last else "")
        return table


def called(step: TraceStep) -> str:
    """The call as it is shown, and the checkpoint at which it was made to fail."""
    fault = f" failing at checkpoint {step.fault}" if step.fault else ""
    return call_text(step.operation) + fault


def _all_blocks(trace: Trace) -> range:
    """The device blocks that there are at any time in the trace, as far as it was believed."""
    spec = trace.specification
    states = [spec.initial(), *(step.after for step in believed(trace))]
    device = [b for s in states for place, b in s.pools.items() if place.tier == "device"]
    return range(min(b.start for b in device), max(b.stop for b in device))


def _widest(texts: list[str]) -> int:
    return max(map(cell_len, texts), default=0)


def _heading_of(blocks: range) -> str:
    plain = blocks.start == 0 and len(blocks) <= 8
    return "blocks" if plain else f"blocks {blocks.start}-{blocks.stop - 1}"


def _heading(trace: Trace, reproduced: int | None, replays: int) -> list[Text]:
    geometry = trace.geometry
    lines = []
    if trace.law is not None:
        law = _LAWS.get(trace.law)
        lines.append(Text(shown(trace.law), style="bold red"))
        if law is not None:
            lines[0].append(f": {law.statement}", style="default not bold")
            lines[0].append(f"  ({law.capability})", style="dim")
    pool = f"pool: {plural(geometry.num_blocks, 'block')} of {plural(geometry.block_size, 'token')}"
    if geometry.max_tokens is not None:
        pool += f", at most {plural(geometry.max_tokens, 'token')} a sequence"
    if geometry.window is not None:
        pool += f", window {geometry.window}"
    if geometry.num_host_blocks:
        pool += f", {plural(geometry.num_host_blocks, 'host block')}"
    for number, group in enumerate(geometry.groups or ()):
        window = "" if group.window is None else f", window {group.window}"
        own = "" if group.num_blocks is None else f", own pool of {group.num_blocks}"
        pool += f"; group {number}: {plural(group.block_size, 'token')}{window}{own}"
    parts = [pool, shown(trace.allocator), plural(len(trace.steps), "step")]
    if trace.reduced:
        parts.append("1-minimal")
    elif reproduced is not None and reproduced < replays:
        parts.append(f"not reproduced ({reproduced} of {replays})")
    lines.append(Text(" · ".join(parts)))
    relaxed = trace.contract.relaxations()
    if relaxed:
        lines.append(Text(f"contract: {', '.join(relaxed)} relaxed"))
    return lines


def _because(label: str, text: str) -> Table:
    """A reason, wrapped beside its label."""
    grid = Table.grid()
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(f"    {label}: "), Text(shown(text)))
    return grid


def render(trace: Trace, reproduced: int | None = None, replays: int = 0) -> RenderableType:
    """The trace for a rich console: heading, steps, and why the last one is wrong."""
    parts: list[RenderableType] = [*_heading(trace, reproduced, replays), Text(), _Steps(trace)]
    for n, breach in enumerate(trace.breaches):
        parts.append(_because("because" if n == 0 else f"also {shown(breach.law)}", breach.because))
    return Group(*parts)


def as_text(trace: Trace, reproduced: int | None = None, replays: int = 0, width: int = 100) -> str:
    """The trace as plain text of at most `width` columns."""
    out = StringIO()
    console = Console(file=out, width=width, color_system=None, legacy_windows=False)
    console.print(render(trace, reproduced, replays))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
