"""`omlx bench spec`: what to measure on which model, for how long, and where the report goes."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mlx_lm import load
from tqdm import tqdm

from omlx.bench.arguments import amount, model_dir, numbers, one_of, positive
from omlx.bench.result import Json
from omlx.bench.spec.compare import HYBRID, MODEL
from omlx.bench.spec.modes import MODES, Minds, untrained
from omlx.bench.spec.oracle import RoundCosts
from omlx.bench.spec.outcome import outcome
from omlx.bench.spec.passes import REPEATS, WIDTHS, draft_seconds, round_costs
from omlx.bench.spec.plot import plot
from omlx.bench.spec.recital import Recital, Reciter
from omlx.bench.spec.report import Passes, Report
from omlx.bench.spec.trials import Case, Measured, measure
from omlx.bench.subject import Subject, read_subject
from omlx.bench.workloads import WORKLOADS

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
    parser.add_argument("--model", type=model_dir, metavar="DIR", required=True, help="folder of the model")
    parser.add_argument("--draft", type=model_dir, metavar="DIR", help="folder of a draft model; without: lookups only")
    parser.add_argument(
        "--hybrid", type=model_dir, metavar="DIR", help="to hold against --model: recites its answers, same draft"
    )
    parser.add_argument(
        "--hostile-draft", type=model_dir, metavar="DIR", help="drafts the hostile workload; else the draft, untrained"
    )
    parser.add_argument(
        "--workloads", type=one_of(workloads), default=workloads, metavar="NAME,…", help=f"of {','.join(workloads)}"
    )
    parser.add_argument("--modes", type=one_of(modes), default=modes, metavar="NAME,…", help=f"of {','.join(modes)}")
    parser.add_argument("--streams", type=numbers, default=(1, 2, 4), metavar="N,…", help="requests at a time")
    parser.add_argument("--trials", type=positive, default=9, metavar="N", help="default %(default)s")
    parser.add_argument(
        "--context", type=positive, default=CONTEXT, metavar="N", help="tokens of prompt and answer, about"
    )
    parser.add_argument("--budget", type=float, metavar="MINUTES", help="stop measuring after this long")
    parser.add_argument("--widths", type=numbers, default=WIDTHS, metavar="N,…", help="passes to measure the cost of")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="convert the weights")
    parser.add_argument("--quantize", type=int, choices=(2, 3, 4, 6, 8), metavar="BITS", help="quantize the weights")
    parser.add_argument(
        "--inflate", type=amount, default=0, metavar="N", help="add identity layers up to N parameters, such as 20M"
    )
    parser.add_argument("--inflate-draft", action="store_true", help="grow the draft by the same factor")
    parser.add_argument("--title", default="Measured", metavar="TEXT", help="heads the report in a page")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything, raw samples too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the gains as SVG")


def run(args: argparse.Namespace) -> int:
    """Measure, print the tables, write the files. Returns the exit status: 2 if the models do not go together."""
    load_before = os.getloadavg()
    folders = {MODEL: args.model} | ({HYBRID: args.hybrid} if args.hybrid else {})
    try:
        subjects = {role: _read(folder, args) for role, folder in folders.items()}
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    settings = Settings(args.workloads, args.modes, args.streams, args.trials, args.context, args.budget, args.widths)
    hostile = load(str(args.hostile_draft))[0] if args.hostile_draft else untrained(subjects[MODEL].draft)
    report = replace(bench(subjects, hostile, settings, load_before), title=args.title)
    report.settings.update({name: getattr(args, name) for name in ("dtype", "quantize", "inflate", "inflate_draft")})
    sys.stdout.write(report.to_text())
    if args.json:
        args.json.write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    if args.plot:
        args.plot.write_text(plot(report.outcomes, f"{args.title}: times plain decoding"), encoding="utf-8")
    return 0


def bench(
    subjects: dict[str, Subject],
    random_draft: object | None,
    settings: Settings,
    load_before: tuple[float, ...],
) -> Report:
    """Measure rounds, then all pairs, with a progress bar on a terminal. Subjects by role."""
    started = time.monotonic()
    passes = {role: _passes(subject, settings) for role, subject in subjects.items()}
    cases = _cases(subjects[MODEL], random_draft, settings)
    if HYBRID in subjects:
        cases += _recited(subjects[HYBRID], subjects[MODEL], random_draft, settings)
    deadline = None if settings.budget is None else started + 60 * settings.budget
    with tqdm(total=len(cases) * (settings.trials + 1), unit="pair", disable=None) as bar:

        def tick(name: str) -> None:
            bar.set_description(name)
            bar.update()

        measured = measure(cases, settings.trials, tick, deadline)
    outcomes = [outcome(found, _costs(passes, found.case)) for found in measured]
    described: Json = {role: subject.describe() for role, subject in subjects.items()}
    return Report(
        settings=asdict(settings),
        models=described,
        outcomes=[found for found in outcomes if found is not None],
        passes=passes,
        missing=list(_missing(measured, settings.trials)),
        load_before=load_before,
    )


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
        if workload.name in settings.workloads
        and mode.name in settings.modes
        and (subject.draft is not None or not mode.needs_draft)
    ]


def _recited(hybrid: Subject, twin: Subject, random_draft: object | None, settings: Settings) -> list[Case]:
    """The hybrid's cases, the twin's answers in its mouth."""
    model = Reciter(hybrid.model)
    recital = Recital(twin, model)
    cases = _cases(replace(hybrid, model=model), random_draft, settings)
    return [replace(case, role=HYBRID, recital=recital) for case in cases]


def _costs(passes: dict[str, Passes], case: Case) -> RoundCosts | None:
    """For the bound of a perfect lookup, which is one of a single stream."""
    return passes[case.role].rounds if case.streams == 1 else None


def _missing(measured: Seq[Measured], trials: int) -> list[str]:
    return [
        f"{found.case.name}: {len(found.trials)} of {trials} trials" for found in measured if len(found.trials) < trials
    ]
