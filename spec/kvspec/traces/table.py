"""A trace as a table for the terminal: the calls, the answers, who has which block, the count."""

from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvspec.kernel.law import Law
from kvspec.kernel.names import call_text, entries_text, plural, sequence_name
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import State
from kvspec.kernel.step import Step
from kvspec.rooms import LAWS
from kvspec.traces.trace import Trace

_LAWS: dict[str, Law] = {law.id: law for law in LAWS}


def believed(trace: Trace) -> list[Step]:
    """The steps of the trace, believed anew from the recorded outcomes, as far as there are any."""
    spec = trace.specification
    state, steps = spec.initial(), []
    for recorded in trace.steps:
        if recorded.outcome is None:
            break
        steps.append(spec.believe(state, recorded.operation, recorded.outcome))
        state = steps[-1].after
    return steps


def _answer(step: Step) -> str:
    answer = step.answer
    if answer.kind in ("refused", "hang"):
        return "hangs" if answer.kind == "hang" else "refused"
    if answer.kind != "done":
        return f"raises {answer.value}" if answer.kind == "raised" else answer.value
    parts = [answer.value] if answer.value else []
    for seq in step.operation.touched:
        if seq in step.after.sequences and seq in step.seen.tables:
            parts.append(entries_text(step.after.table(seq)))
    parts += [f"copy {copy.source}→{copy.destination}" for copy in answer.copies]
    return " ".join(parts) or "ok"


def _owners(state: State, block: int) -> str:
    """Who has the block: letters for tables, `~` for something in flight, `.` for nobody."""
    occupancy = state.at()
    seqs = dict.fromkeys(holder.seq for holder in occupancy.users.get(block, ()))
    name = "+".join(sequence_name(seq) for seq in seqs)
    return name + ("~" if block in occupancy.pins else "") or "."


def _steps_table(trace: Trace, spec: Specification) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("#", justify="right", style="dim")
    table.add_column("call")
    table.add_column("answer")
    table.add_column("blocks")
    table.add_column("free", justify="right")
    table.add_column("")
    steps = believed(trace)
    owners = [[_owners(step.after, block) for block in spec.blocks] for step in steps]
    width = max((len(owner) for row in owners for owner in row), default=1)
    for number, (step, row) in enumerate(zip(steps, owners, strict=True)):
        last = number == len(steps) - 1
        free = step.seen.free
        table.add_row(
            str(number),
            call_text(step.operation),
            _answer(step),
            " ".join(owner.ljust(width) for owner in row).rstrip(),
            "" if free is None else str(free),
            f"<- {trace.law}" if last and trace.law else "",
            style="bold" if last and trace.law else "",
        )
    for number, recorded in enumerate(trace.steps[len(steps) :], start=len(steps)):
        table.add_row(str(number), call_text(recorded.operation), "", "", "", "")
    return table


def _heading(trace: Trace, reproduced: int | None, replays: int) -> list[Text]:
    geometry = trace.geometry
    lines = []
    if trace.breaches:
        law = _LAWS.get(trace.breaches[0].law)
        lines.append(Text(trace.breaches[0].law, style="bold red"))
        if law is not None:
            lines[0].append(f": {law.statement}", style="default not bold")
            lines[0].append(f"  ({law.capability})", style="dim")
    pool = f"pool: {plural(geometry.num_blocks, 'block')} of {plural(geometry.block_size, 'token')}"
    if geometry.max_tokens is not None:
        pool += f", at most {plural(geometry.max_tokens, 'token')} a sequence"
    parts = [pool, trace.allocator, plural(len(trace.steps), "step")]
    if trace.reduced:
        parts.append("1-minimal")
    elif reproduced is not None and reproduced < replays:
        parts.append(f"not reproduced ({reproduced} of {replays})")
    lines.append(Text(" · ".join(parts)))
    relaxed = trace.contract.relaxations()
    if relaxed:
        lines.append(Text(f"contract: {', '.join(relaxed)} relaxed"))
    return lines


def render(trace: Trace, reproduced: int | None = None, replays: int = 0) -> RenderableType:
    """The trace for a rich console: heading, steps, and why the last one is wrong."""
    parts: list[RenderableType] = [
        *_heading(trace, reproduced, replays),
        Text(),
        _steps_table(trace, trace.specification),
    ]
    for n, breach in enumerate(trace.breaches):
        label = "because" if n == 0 else f"also {breach.law}"
        parts.append(Text(f"    {label}: {breach.because}"))
    return Group(*parts)


def as_text(trace: Trace, reproduced: int | None = None, replays: int = 0, width: int = 100) -> str:
    """The trace as plain text of at most `width` columns."""
    out = StringIO()
    console = Console(file=out, width=width, color_system=None, legacy_windows=False)
    console.print(render(trace, reproduced, replays))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
