"""`python -m lab.bench prefixes`: time to the first token: a new prompt, in memory, on disk.

Each trial is a process of the server; all have one home folder. A process first continues the
conversations of an earlier one, whose KV caches are on disk, and continues them once more, from
memory. Then it computes new ones.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lab.bench.console import Json, add, environment, numbers, positive, table, write_json
from lab.bench.http.server import Message, Server, call, omlx_server, processor_seconds
from lab.bench.series import Series
from omlx.measure.texts import TEXTS

FLAGS: Final = ("--prewarm", "off")
"""Of the server: else it could read from disk before it is asked."""

KINDS: Final = ("elapsed", "processor")
HEAD: Final = ("tokens", "time", "cold", "memory", "of cold", "disk, after a restart", "of cold")
ONCE_S: Final = 60.0
"""Prompts that take longer are computed once, not in every trial."""

TIMEOUT_S: Final = 3600.0
MIN_CACHED: Final = 0.8
"""Share of a prompt that must come from the cache where it should."""

_SAMPLE: Final = 4_000
"""Characters of which tokens are counted, to estimate how many a text of a given length has."""


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds to the first token: by the clock, and of the server's processor time."""

    elapsed: float
    processor: float


@dataclass(slots=True)
class FirstTokens:
    """Times by trial of prompts of about as many `tokens`; `asked` is the newest conversation that
    was computed.
    """

    tokens: int
    asked: Sequence[Message] = ()
    cold: list[Time] = field(default_factory=list)
    memory: list[Time] = field(default_factory=list)
    disk: list[Time] = field(default_factory=list)

    @property
    def costly(self) -> bool:
        return bool(self.cold) and self.cold[0].elapsed > ONCE_S

    def series(self, kind: str) -> tuple[Series, Series, Series]:
        """Return times of a kind (elapsed, processor): cold, from memory, from disk. Cold ones that
        were measured once are those of every trial.
        """
        cold = self.cold * len(self.disk) if self.costly else self.cold
        times = [
            Series(tuple(getattr(time, kind) for time in each))
            for each in (cold, self.memory, self.disk)
        ]
        return times[0], times[1], times[2]

    def cells(self, kind: str) -> tuple[str, ...]:
        cold, *cached = self.series(kind)
        cells = [f"{self.tokens}", kind, f"{cold.median:.3f} s"]
        for times in cached:
            shares = times.over(cold)
            cells += [
                f"{times.median:.3f} s ({times.least:.3f} to {times.most:.3f})",
                f"{shares.median:.1%} ({shares.least:.1%} to {shares.most:.1%})",
            ]
        return tuple(cells)

    def to_json(self) -> Json:
        record: Json = {"tokens": self.tokens}
        for kind in KINDS:
            cold, memory, disk = self.series(kind)
            record[kind] = {
                "cold_s": list(cold.values),
                "memory_s": list(memory.values),
                "disk_s": list(disk.values),
                "memory_of_cold": memory.over(cold).median,
                "disk_of_cold": disk.over(cold).median,
            }
        return record


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags to `parser`."""
    add(parser, "--model", "--json")
    parser.add_argument(
        "--tokens",
        type=numbers,
        default=(1000, 3900),
        metavar="N,…",
        help="lengths of prompts, up to the model's context length; default 1000,3900",
    )
    parser.add_argument(
        "--trials", type=positive, default=5, metavar="N", help="default %(default)s"
    )


def run(args: argparse.Namespace) -> int:
    """Measure, write the file, print the table. Return the exit status."""
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="omlx-bench-") as home:
        try:
            times = measure(args.model, Path(home), args.tokens, args.trials)
        except RuntimeError as error:
            sys.stderr.write(f"lab.bench: {error}\n")
            return 2
    report: Json = {
        **environment(load_before),
        "model": args.model.name,
        "settings": {"trials": args.trials},
        "prompts": [each.to_json() for each in times],
    }
    write_json(args.json, report)
    loads = load_before[0], os.getloadavg()[0]
    rows = [each.cells(kind) for each in times for kind in KINDS]
    sys.stdout.write(f"{table([HEAD, *rows])}\n\n")
    sys.stdout.write(
        f"medians of {args.trials} (least to most); cold once where it takes more than "
        f"{ONCE_S:.0f} s; load of the machine, one minute: "
        f"{loads[0]:.1f} before, {loads[1]:.1f} after; {os.cpu_count()} cores\n"
    )
    return 0


def measure(model: Path, home: Path, sizes: Sequence[int], trials: int) -> list[FirstTokens]:
    """Measure prompts of these sizes in tokens, the longest first.

    Raises RuntimeError if the server refuses a prompt or lacks a prefix that it should have.
    """
    times = [FirstTokens(size) for size in sorted(sizes, reverse=True)]
    for trial in range(trials + 1):  # the first one fills the disk
        with omlx_server(model, home, *FLAGS) as server:
            for each in times:
                if trial:
                    for taken, place in ((each.disk, "disk"), (each.memory, "memory")):
                        question = f"Name another, {place} {trial}."
                        taken.append(first_token(server, continued(each.asked, question)))
                if each.costly:
                    continue
                each.asked = conversation(server, trial, each.tokens)
                cold = first_token(server, each.asked, cached=False)
                if trial or cold.elapsed > ONCE_S:
                    each.cold.append(cold)
    return times


def conversation(server: Server, trial: int, tokens: int) -> list[Message]:
    """Return a conversation of about so many tokens that shares nothing with others."""
    text = f"Trial {trial} of {tokens}.\n" + (TEXTS / "functions.txt").read_text(encoding="utf-8")
    sample = text[:_SAMPLE]
    counted = len(server.tokens([{"role": "system", "content": sample}]))
    length = tokens * len(sample) // counted
    system = (text * (length // len(text) + 1))[:length]
    return [{"role": "system", "content": system}, {"role": "user", "content": "Name the first."}]


def continued(asked: Sequence[Message], question: str) -> list[Message]:
    """Return the next turn of a conversation."""
    answer, user = ("assistant", "It is there."), ("user", question)
    return [*asked, *({"role": role, "content": content} for role, content in (answer, user))]


def first_token(server: Server, messages: Sequence[Message], *, cached: bool = True) -> Time:
    """Return the time until an answer of one token is there.

    Raises RuntimeError if most of the prompt was to be `cached`, or nothing, and was not so.
    """
    body = {"model": server.model, "messages": list(messages), "max_tokens": 1, "temperature": 0}
    started, before = time.perf_counter(), processor_seconds(server.pid)
    usage = call(server.port, "POST", "/v1/chat/completions", body, TIMEOUT_S)["usage"]
    taken = Time(time.perf_counter() - started, processor_seconds(server.pid) - before)
    prompt = usage["prompt_tokens"]
    share = usage["prompt_tokens_details"]["cached_tokens"] / prompt
    if share < MIN_CACHED if cached else share > 1 - MIN_CACHED:
        raise RuntimeError(f"of a prompt of {prompt} tokens, {share:.0%} were cached")
    return taken
