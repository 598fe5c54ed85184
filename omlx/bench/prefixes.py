"""`omlx bench prefixes`: time to the first token of a prompt that is new, in memory, or on disk.

Each trial is a process of the server; all have one home folder. A process first continues the
conversations of the one before, whose KV caches are on disk. Then it is asked conversations that
are new, and continues them from memory.
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

from omlx.bench.arguments import add, numbers, positive
from omlx.bench.http.server import Message, Server, call, omlx_server
from omlx.bench.prompts import TEXTS
from omlx.bench.report import Json, environment, table, write_json
from omlx.measure.spread import Series

FLAGS: Final = ("--prewarm", "off")
"""Of the server: else it could read from disk before it is asked."""

HEAD: Final = ("prompt tokens", "cold", "memory", "of cold", "disk, after a restart", "of cold")
MIN_CACHED: Final = 0.9
"""Share of a prompt that must come from the cache where it should."""

_SAMPLE: Final = 4_000
"""Characters of which tokens are counted, to estimate how many a text of a given length has."""


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Seconds to the first token by trial, of prompts of about as many `tokens`."""

    tokens: int
    cold: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    disk: list[float] = field(default_factory=list)

    @property
    def cells(self) -> tuple[str, ...]:
        cold = Series(tuple(self.cold))
        cells = [f"{self.tokens}", f"{cold.median:.3f} s"]
        for values in (self.memory, self.disk):
            times = Series(tuple(values))
            shares = times.over(cold)
            cells += [
                f"{times.median:.3f} s ({times.least:.3f} to {times.most:.3f})",
                f"{shares.median:.1%} ({shares.least:.1%} to {shares.most:.1%})",
            ]
        return tuple(cells)

    def to_json(self) -> Json:
        cold, record = Series(tuple(self.cold)), dict[str, object](tokens=self.tokens)
        for name, values in (("cold", self.cold), ("memory", self.memory), ("disk", self.disk)):
            times = Series(tuple(values))
            record |= {f"{name}_s": values, f"{name}_of_cold": times.over(cold).median}
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
            sys.stderr.write(f"omlx bench: {error}\n")
            return 2
    report: Json = {
        **environment(load_before),
        "model": args.model.name,
        "settings": {"trials": args.trials},
        "prompts": [each.to_json() for each in times],
    }
    write_json(args.json, report)
    loads = load_before[0], os.getloadavg()[0]
    sys.stdout.write(f"{table([HEAD, *(each.cells for each in times)])}\n\n")
    sys.stdout.write(
        f"medians of {args.trials} (least to most); load of the machine, one minute: "
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
            if trial:
                for each in times:
                    before = conversation(server, trial - 1, each.tokens)
                    each.disk.append(first_token(server, continued(before, "Name one more.")))
            for each in times:
                asked = conversation(server, trial, each.tokens)
                cold = first_token(server, asked, cached=False)
                memory = first_token(server, continued(asked, "Name the last one."))
                if trial:
                    each.cold.append(cold)
                    each.memory.append(memory)
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


def first_token(server: Server, messages: Sequence[Message], *, cached: bool = True) -> float:
    """Return the seconds until an answer of one token is there.

    Raises RuntimeError if most of the prompt was to be `cached`, or nothing, and was not so.
    """
    body = {"model": server.model, "messages": list(messages), "max_tokens": 1, "temperature": 0}
    started = time.perf_counter()
    usage = call(server.port, "POST", "/v1/chat/completions", body)["usage"]
    seconds = time.perf_counter() - started
    prompt = usage["prompt_tokens"]
    share = usage["prompt_tokens_details"]["cached_tokens"] / prompt
    if share < MIN_CACHED if cached else share > 1 - MIN_CACHED:
        raise RuntimeError(f"of a prompt of {prompt} tokens, {share:.0%} were cached")
    return seconds
