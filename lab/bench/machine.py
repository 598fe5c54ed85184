"""`python -m lab.bench machine`: a machine's page of measurements with a model, within ten minutes.

Passes by width, decoding, exactness, long prompts, the cost of a pause: all through the engine's
own calibration, passes and prefill chunks. One block to paste, headed by facts of the machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Final

import mlx.core as mx

from lab.bench import kernels
from lab.bench.cases import MODES
from lab.bench.console import Progress
from lab.bench.drive import NO_SPECULATION, request, settle
from lab.bench.drive import run as run_requests
from lab.bench.exact import HEAD as EXACT_HEAD
from lab.bench.exact import compare, questions, tolerance_of
from lab.bench.kernels import Expired, Part, Row, run_parts
from lab.bench.series import Series
from lab.bench.subject import Subject, read_subject
from omlx.cli.arguments import configured, find_model
from omlx.cli.doctor import machine_chapters, machine_warnings, read_machine, write_chapters
from omlx.cli.serve.address import find_server
from omlx.engine.calibration import STRIDE, Calibration
from omlx.engine.device.gpu import INTERVAL_S, evaluate_little
from omlx.engine.loop import EngineLoop
from omlx.engine.speculation.config import CONFIG
from omlx.engine.speculation.cost_model import PLAIN, CostModel
from omlx.engine.types import Failed, PrefillProgress, Request, Sampling
from omlx.errors import ModelError, OmlxError
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.footprint import limit_bytes
from omlx.settings.layers import add_flags
from omlx.settings.schema import Group

DEMO: Final = "omlx-demo/target"
DEMO_DRAFT: Final = "omlx-demo/draft"

BESIDE: Final = """\
A server is running on this machine: what it computes meanwhile falsifies these figures. Stop it
first.
"""

BATCHES: Final = (1, 2, 4)
TRIALS: Final = 3
ANSWER: Final = 96
"""Tokens of a timed answer."""

EXACT_MODES: Final = ("draft 4", "ngram", "auto")
EXACT_WORKLOAD: Final = "small edit"
EXACT_CONTEXT: Final = 120
EXACT_TOKENS: Final = 48

LONGEST: Final = 32768
"""Tokens of the long prompt."""

SLOW_PASS_S: Final = 20.0
"""Seconds of a prefill pass — the context grows no further: the next row would take minutes."""

MEMORY_SHARE: Final = 0.8
"""Share of the working set — bound of the long prompt's memory."""

PAUSE_S: Final = 3.0
PAUSES: Final = ("none", f"{PAUSE_S:g} s", f"{PAUSE_S:g} s, kept warm")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags to `parser`."""
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="a model on this machine; else the bundled pair"
    )
    add_flags(parser, [Group.SERVER, Group.MODELS])


def run(args: argparse.Namespace) -> int:
    """Print the page. Returns 2 if the model cannot be loaded."""
    name = args.model or DEMO
    try:
        configuration = configured(args)
        settings, machine = configuration.current.resolve().settings, read_machine()
        entry = find_model(name, configuration)
        draft = None if args.model else find_model(DEMO_DRAFT, configuration).path
        _check_room(entry, limit_bytes(settings.memory_limit))
        subject = read_subject(entry.path, draft, dtype=settings.dtype)
    except (OmlxError, OSError, ValueError) as error:
        sys.stderr.write(f"{name}: {error}\n")
        return 2
    sys.stdout.write("```\n")
    write_chapters({**machine_chapters(machine, settings), "warnings": machine_warnings(machine)})
    if find_server(settings.home) is not None:
        sys.stdout.write(f"{BESIDE}\n")
    for text in page(subject, BUDGET_S):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()  # what is measured next may end the process
    sys.stdout.write("```\n")
    return 0


def _check_room(entry: ModelEntry, limit: int) -> None:
    """Raise ModelError if the weights exceed the memory limit."""
    weights = sum(file.stat().st_size for file in entry.files.weights)
    if weights > limit:
        need_gb, limit_gb = (round(count / (1 << 30), 2) for count in (weights, limit))
        sizes = {"need_gb": need_gb, "limit_gb": limit_gb, "used_gb": 0.0}
        raise ModelError("model.no_room", param="model", model=entry.id, **sizes)


def widths(subject: Subject, seconds: float) -> Part:
    """Return a part on passes by width, measured by the engine's calibration."""
    head = ("tokens", "ms", "× a plain step", "in 2 rows, ms", "in 4 rows, ms")
    shown = (1, *CONFIG.widths)
    return Part("A pass by width", head, seconds, 1, partial(_widths, subject, shown))


def _widths(
    subject: Subject, shown: tuple[int, ...], progress: Progress, expired: Expired
) -> Iterator[Row]:
    loop = subject.new_loop(prefix_bytes=0)
    Calibration("bench", loop).run(expired)
    progress.tick()
    costs = loop.cost_model
    plain = costs.plain_step(1, 1)
    for width in (PLAIN, *shown):
        # Calibration may have ended before this width.
        if costs.batch_samples(1, width, 1):
            took = costs.batch_pass(1, width, 1)
            name = "plain" if width == PLAIN else str(width)
            ratio = f"{took / plain:.2f}" if plain else ""
            yield name, f"{1e3 * took:.2f}", ratio, *(_batch(costs, n, width) for n in (2, 4))


def _batch(costs: CostModel, rows: int, width: int) -> str:
    if not costs.batch_samples(rows, width, 1):
        return ""
    return f"{1e3 * costs.batch_pass(rows, width, 1):.2f}"


def decoding(subject: Subject, seconds: float) -> Part:
    """Return a part on plain decoding, alone and batched: tokens per second of all rows."""
    head = ("rows", "tok/s", "min–max", "× alone")
    return Part("Plain decoding", head, seconds, len(BATCHES) * TRIALS, partial(_decoding, subject))


def _decoding(subject: Subject, progress: Progress, expired: Expired) -> Iterator[Row]:
    alone = 0.0
    for rows in BATCHES:
        prompts = [subject.prompts[row % len(subject.prompts)] for row in range(rows)]
        asked = [request(prompt, ANSWER) for prompt in prompts]
        run_requests(subject.loop, [request(prompt, 4) for prompt in prompts])  # compiles kernels
        rates: list[float] = []
        for _ in range(TRIALS):
            settle()
            rates.append(run_requests(subject.loop, asked).rate)
            progress.tick()
            if expired():
                break
        series = Series(tuple(rates))
        alone = alone or series.median
        spread = f"{series.least:.1f}–{series.most:.1f}"
        yield str(rows), f"{series.median:.1f}", spread, f"{series.median / alone:.2f}"
        if expired():
            return


def exactness(subject: Subject, seconds: float) -> Part:
    """Return a part comparing modes of speculation with plain decoding, token by token."""
    able = [mode for mode in MODES if mode.name in EXACT_MODES]
    modes = [mode for mode in able if subject.draft is not None or not mode.needs_draft]
    asked = list(questions(subject, (EXACT_WORKLOAD,), 1, EXACT_CONTEXT, EXACT_TOKENS))

    def measure(progress: Progress, expired: Expired) -> Iterator[Row]:
        for comparison in compare(subject, modes, asked, progress):
            yield comparison.cells
        yield "near-tie:", "", "", "", "", "", f"{tolerance_of(subject):g}"

    title = "Speculation against plain decoding; differences in logits"
    return Part(title, EXACT_HEAD, seconds, len(modes) * len(asked), measure)


def prefill(subject: Subject, seconds: float, longest: int = LONGEST) -> Part:
    """Return a part on a growing prompt: speed and peak memory up to each length."""
    head = ("context", "tok/s", "longest pass s", "peak GB")
    chunks = longest // subject.loop.limits.prefill_chunk
    return Part("A long prompt", head, seconds, chunks, partial(_prefill, subject, longest))


def _prefill(subject: Subject, longest: int, progress: Progress, expired: Expired) -> Iterator[Row]:
    loop, slowest, since, done_before = subject.new_loop(prefix_bytes=0), 0.0, 0, 0
    settle()
    mx.reset_peak_memory()
    began = section = time.perf_counter()
    prompt = tuple(STRIDE * i % subject.vocab_size for i in range(longest))
    for done in _chunks(loop, prompt):
        now = time.perf_counter()
        slowest, began = max(slowest, now - began), now
        progress.tick()
        stop = _stop(slowest) or ("time" if expired() else "")
        # Lengths double from row to row; the last may be less than double.
        if done >= 2 * since or stop or done >= longest - 1:
            peak = mx.get_peak_memory() / 1e9
            speed = (done - done_before) / (now - section)
            yield f"{done:,}", f"{speed:.0f}", f"{slowest:.2f}", f"{peak:.2f}"
            mx.reset_peak_memory()
            since, done_before, section, slowest = done, done, now, 0.0
        if stop:
            yield "ended:", stop, "", ""
            return


def _chunks(loop: EngineLoop, tokens: tuple[int, ...]) -> Iterator[int]:
    """Prefill a prompt; yield the computed tokens after each chunk. Raises a failure's error."""
    asked = Request("prompt", tokens, Sampling(0.0), 1, speculation=NO_SPECULATION)
    loop.submit(asked)
    while loop.has_work:
        for event in loop.step():
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, PrefillProgress):
                yield event.done


def _stop(slowest: float) -> str:
    """Return why longer prompts are not tried; empty if they are."""
    if slowest > SLOW_PASS_S:
        return f"a pass took {slowest:.1f} s"
    room = int(mx.device_info().get("max_recommended_working_set_size", 0))
    if room and mx.get_peak_memory() > MEMORY_SHARE * room:
        return "memory"
    return ""


def pauses(subject: Subject, seconds: float, sleep: Callable[[float], None] = time.sleep) -> Part:
    """Return a part on decoding after a pause, with the GPU idle or kept warm."""
    units = len(PAUSES) * TRIALS
    head = ("pause", "ms of 4 tokens", "min–max")
    return Part("After a pause", head, seconds, units, partial(_pauses, subject, sleep))


def _pauses(
    subject: Subject, sleep: Callable[[float], None], progress: Progress, expired: Expired
) -> Iterator[Row]:
    asked = [request(subject.prompts[0][:8], 4)]
    run_requests(subject.loop, asked)
    for pause in PAUSES:
        times: list[float] = []
        for _ in range(TRIALS):
            run_requests(subject.loop, asked)
            if pause == PAUSES[1]:
                sleep(PAUSE_S)
            elif pause == PAUSES[2]:
                for _ in range(int(PAUSE_S / INTERVAL_S)):
                    sleep(INTERVAL_S)
                    evaluate_little()
            times.append(1e3 * run_requests(subject.loop, asked).total_s)
            progress.tick()
            if expired():
                break
        yield pause, f"{median(times):.1f}", f"{min(times):.1f}–{max(times):.1f}"
        if expired():
            return


BUDGET_S: Final = 540.0
"""Seconds of measuring — ten minutes, less the time to load a model."""


def parts(subject: Subject) -> list[Part]:
    # Parts that may end the process (memory) come last.
    return [
        kernels.calls(5),
        decoding(subject, 90),
        widths(subject, 90),
        exactness(subject, 120),
        pauses(subject, 45),
        kernels.products(45),
        kernels.attention(45),
        prefill(subject, 100),
    ]


def page(subject: Subject, seconds: float) -> Iterator[str]:
    """Measure for at most `seconds`; yield the text of each part once measured."""
    load = os.getloadavg()[0]
    yield f"Model: {subject.names[0]}, {_weights(subject)}\nLoad average before: {load:.2f}\n"
    yield from run_parts(parts(subject), seconds)


def _weights(subject: Subject) -> str:
    facts = subject.describe()["model"]
    assert isinstance(facts, dict)
    kinds = ", ".join(facts["dtype"])
    return f"{facts['architecture']}, {facts['parameters'] / 1e6:,.1f} M parameters, {kinds}"
