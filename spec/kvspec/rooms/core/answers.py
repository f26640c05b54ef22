"""The laws about answers: what a call must come back with, and when it may be refused."""

from kvspec.geometry import DEVICE
from kvspec.kernel.law import Law, callers_duty
from kvspec.kernel.names import are, plural
from kvspec.kernel.perturb import (
    oddity,
    other_answer,
)
from kvspec.kernel.placement import runs
from kvspec.kernel.step import Step
from kvspec.rooms.core import witnesses


def _wrong_call(step: Step) -> bool:
    return bool(step.expected.errors) and not step.expected.injected


def _misuse(step: Step) -> str | None:
    if step.expected.allows(step.answer):
        return None
    wanted = " or ".join(sorted(step.expected.errors))
    return f"the call is wrong and must fail with {wanted}, but {said(step)}."


def said(step: Step) -> str:
    """How the call ended, as a sentence says it."""
    match step.answer.kind:
        case "done":
            return "it succeeded"
        case "refused":
            return "it was refused"
        case "error":
            return f"it failed with {step.answer.value}"
        case "injected":
            return f"it failed with the fault injected at {step.answer.value}"
        case "raised":
            return f"it raised {step.answer.value}"
        case "hang":
            return "it did not come back"
        case "nonsense":
            return f"it gave no answer ({step.answer.value})"


def _always(step: Step) -> bool:
    return True


def _well_formed(step: Step) -> str | None:
    answer = step.answer
    match answer.kind:
        case "raised":
            return f"the call raised {answer.value}, which is no answer of the interface."
        case "nonsense":
            return f"the call gave no answer of the interface: {answer.value}."
        case "hang":
            return "the call did not come back within the time that a call may take."
        case "injected" if step.outcome.fault is None:
            return f"the call failed at {answer.value}, where nothing was made to fail."
    if step.seen.oddities:
        return "; ".join(step.seen.oddities) + "."
    return None


def _was_just_refused(step: Step) -> bool:
    refused = step.before.refused
    if refused is None or step.answer.kind not in ("done", "refused"):
        return False
    return refused == step.operation


def _retry(step: Step) -> str | None:
    if step.done:
        return "the same call was refused just before, nothing happened since, and now it succeeds."
    return None


def _asks_for_blocks(step: Step) -> bool:
    right = not (step.expected.errors or step.expected.injected)
    return right and step.answer.kind in ("done", "refused", "error")


def _admission(step: Step) -> str | None:
    expected = step.expected
    if expected.allows(step.answer):
        return None
    where = "" if expected.place == DEVICE else f" of the {expected.place}"
    balance = f"it needs {plural(expected.fresh, 'block')}{where}{_copies_needed(step)} and "
    kept = step.spec.kept_text(step.before, expected.place)
    balance += f"{are(expected.available, 'block')} free{kept}"
    placement = step.spec.contract.placement
    if placement != "anywhere":
        sizes = ", ".join(str(len(run)) for run in runs(step.spec.free_blocks(step.before)))
        balance += f", placed {placement}, in holes of {sizes or 0}"
    must = "succeed" if expected.done else "be refused"
    return f"{balance}, so it must {must}, but {said(step)}."


def _copies_needed(step: Step) -> str:
    """That some of the blocks are for copies, which the call does not say."""
    copied = sum(need.copied for need in step.operation.needs(step.before, step.spec))
    return f" ({copied} for a copy of what is shared)" if copied else ""


MISUSE = Law(
    "misuse",
    "core",
    "A wrong call (unknown id, id in use, negative, absurd or too great length) is an error.",
    "LMCache/LMCache#5005, turboderp-org/exllamav3#320",
    _wrong_call,
    _misuse,
    (other_answer,),
    witnesses.misuse,
    idle=callers_duty,
)


WELL_FORMED = Law(
    "well-formed",
    "core",
    "Every call comes back, with an answer and of a type that the interface has.",
    "the interface",
    _always,
    _well_formed,
    (oddity,),
    witnesses.one_sequence,
)


RETRY = Law(
    "retry",
    "core",
    "A call that was refused is refused again when it is repeated at once.",
    "pytorch/pytorch#189504",
    _was_just_refused,
    _retry,
    (other_answer,),
    witnesses.refusal,
)


ADMISSION = Law(
    "admission",
    "core",
    "A right call succeeds exactly when the blocks that it needs are free.",
    "microsoft/onnxruntime-genai#2333, Wenyueh/MinivLLM#85, ggml-org/llama.cpp#13194",
    _asks_for_blocks,
    _admission,
    (other_answer,),
    witnesses.refusal,
)
