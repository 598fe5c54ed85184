"""`omlx bench spec`: what to measure on which model, for how long, and where the report goes."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from omlx.bench.arguments import add, model_dir, not_negative, numbers, one_of, positive
from omlx.bench.progress import Progress
from omlx.bench.report import write_json
from omlx.bench.speculation.compare import HYBRID, MODEL
from omlx.bench.speculation.modes import MODES, Minds, chosen, untrained
from omlx.bench.speculation.outcome import outcome
from omlx.bench.speculation.passes import REPEATS, WIDTHS, draft_seconds, round_costs
from omlx.bench.speculation.plot import plot
from omlx.bench.speculation.recital import Recital, Reciter
from omlx.bench.speculation.report import Passes, Report
from omlx.bench.speculation.trials import Case, measure
from omlx.bench.subject import Subject, read_subject
from omlx.bench.workloads import WORKLOADS
from omlx.draft_length import MAX_DRAFT_LENGTH

CONTEXT = 600


@dataclass(frozen=True, slots=True)
class Settings:
    """`context` is the length of prompt and answer, in tokens, that workloads aim at; `budget` is in minutes; `widths`
    are those of the passes whose cost is measured."""

    workloads: tuple[str, ...]
    modes: tuple[str, ...]
    streams: tuple[int, ...]
    trials: int
    context: int
    budget: float | None
    widths: tuple[int, ...] = WIDTHS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `omlx bench spec`."""
    workloads, modes = tuple(w.name for w in WORKLOADS), tuple(m.name for m in MODES)
    add(parser, "--model", "--draft")
    parser.add_argument(
        "--hybrid",
        type=model_dir,
        metavar="DIR",
        help="to hold against --model: recites its answers, same draft",
    )
    parser.add_argument(
        "--workloads",
        type=one_of(workloads),
        default=workloads,
        metavar="NAME,…",
        help=f"of {','.join(workloads)}",
    )
    parser.add_argument(
        "--modes", type=one_of(modes), metavar="NAME,…", help=f"of {','.join(modes)}"
    )
    parser.add_argument(
        "--streams", type=numbers, default=(1, 2, 4), metavar="N,…", help="requests at a time"
    )
    parser.add_argument(
        "--trials", type=positive, default=9, metavar="N", help="default %(default)s"
    )
    parser.add_argument(
        "--context",
        type=positive,
        default=CONTEXT,
        metavar="N",
        help="tokens of prompt and answer, about",
    )
    parser.add_argument(
        "--budget", type=not_negative, metavar="MINUTES", help="stop measuring after this long"
    )
    parser.add_argument(
        "--widths",
        type=_widths,
        default=WIDTHS,
        metavar="N,…",
        help="passes to measure the cost of",
    )
    parser.add_argument(
        "--title", default="Measured", metavar="TEXT", help="heads the report in a page"
    )
    add(parser, "--dtype", "--quantize", "--inflate", "--inflate-draft", "--json", "--plot")


def run(args: argparse.Namespace) -> int:
    """Measure, write the files, print the tables. Returns the exit status: 2 if the models do not go together."""
    load_before = os.getloadavg()
    folders = {MODEL: args.model} | ({HYBRID: args.hybrid} if args.hybrid else {})
    try:
        modes = chosen(args.modes, draft=args.draft is not None)
        subjects = {role: _read(folder, args) for role, folder in folders.items()}
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    vocabulary, *others = (subject.tokenizer.get_vocab() for subject in subjects.values())
    if any(other != vocabulary for other in others):
        sys.stderr.write(
            f"{args.hybrid} has another vocabulary than {args.model}: it cannot recite its answers\n"
        )
        return 2
    names = tuple(mode.name for mode in modes)
    settings = Settings(
        args.workloads, names, args.streams, args.trials, args.context, args.budget, args.widths
    )
    report = replace(bench(subjects, settings, load_before), title=args.title)
    report.settings.update(
        {name: getattr(args, name) for name in ("dtype", "quantize", "inflate", "inflate_draft")}
    )
    write_json(args.json, report.to_json())
    if args.plot:
        results = [each.to_json() for each in report.outcomes]
        args.plot.write_text(plot(results, f"{args.title}: times plain decoding"), encoding="utf-8")
    sys.stdout.write(report.to_text())
    return 0


def bench(
    subjects: dict[str, Subject], settings: Settings, load_before: tuple[float, ...]
) -> Report:
    """Measure rounds, then all pairs. Subjects by role."""
    started = time.monotonic()
    random_draft = untrained(subjects[MODEL].draft)
    cases = _cases(subjects[MODEL], random_draft, settings)
    if HYBRID in subjects:
        cases += _recited(subjects[HYBRID], subjects[MODEL], random_draft, settings)
    deadline = None if settings.budget is None else started + 60 * settings.budget
    with Progress(len(cases) * (settings.trials + 1), "pair", deadline) as progress:
        progress.runs("what passes cost")
        passes = {role: _passes(subject, settings) for role, subject in subjects.items()}
        measured = measure(cases, settings.trials, progress, deadline)
    # The bound of a perfect lookup is one of a single stream.
    outcomes = [
        outcome(each, passes[each.case.role].rounds if each.case.streams == 1 else None)
        for each in measured
    ]
    timed = [0 if found is None else len(found.gain.known) for found in outcomes]
    return Report(
        settings=asdict(settings),
        models={role: subject.describe() for role, subject in subjects.items()},
        outcomes=[found for found in outcomes if found is not None],
        passes=passes,
        missing=[
            f"{each.case.name}: {n} of {settings.trials} trials"
            for each, n in zip(measured, timed, strict=True)
            if n < settings.trials
        ],
        load_before=load_before,
    )


def _widths(text: str) -> tuple[int, ...]:
    """Of passes over the newest token and a draft."""
    found = numbers(text)
    if found[0] < 2 or found[-1] > 1 + MAX_DRAFT_LENGTH:
        raise argparse.ArgumentTypeError(
            f"{text!r}: a pass with a draft is 2 to {1 + MAX_DRAFT_LENGTH} tokens wide"
        )
    return found


def _read(folder: Path, args: argparse.Namespace) -> Subject:
    return read_subject(
        folder,
        args.draft,
        dtype=args.dtype,
        inflate_to=args.inflate,
        inflate_draft=args.inflate_draft,
        bits=args.quantize,
    )


def _passes(subject: Subject, settings: Settings) -> Passes:
    draft = None if subject.draft is None else draft_seconds(subject.draft, settings.context)
    repeats = min(REPEATS, settings.trials)
    return Passes(round_costs(subject, settings.context, settings.widths, repeats), draft)


def _cases(subject: Subject, random_draft: object | None, settings: Settings) -> list[Case]:
    minds = Minds(subject, random_draft)
    return [
        Case(MODEL, subject, minds, workload, mode, streams, settings.context)
        for streams in settings.streams
        for workload in WORKLOADS
        for mode in MODES
        if workload.name in settings.workloads and mode.name in settings.modes
    ]


def _recited(
    hybrid: Subject, twin: Subject, random_draft: object | None, settings: Settings
) -> list[Case]:
    """The hybrid's cases, the twin's answers in its mouth."""
    model = Reciter(hybrid.model)
    recital = Recital(twin, model)
    cases = _cases(replace(hybrid, model=model), random_draft, settings)
    return [replace(case, role=HYBRID, recital=recital) for case in cases]
