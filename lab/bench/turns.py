"""`python -m lab.bench turns`: turns after a tool's result, with prewarming and without.

Two servers in this process hold the same conversations, in changing order. Of each turn are
measured: the time to its first token, the passes of the model, the tokens that it computes and
those of the result; with --calls, in a run of its own, the calls of Python functions.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from mlx_lm.tokenizer_utils import load as load_tokenizer

from lab.bench.console import Json, add, environment, numbers, positive, table, write_json
from lab.bench.series import Series
from omlx.measure.sample import rotate
from omlx.measure.texts import TEXTS
from omlx.models.catalog.registry import ModelEntry, Registry
from omlx.settings.schema import Settings
from tests.server.running import Running, omlx

SIDES: Final[dict[str, Literal["off", "always"]]] = {"off": "off", "on": "always"}
"""Prewarming of the two servers."""

KINDS: Final = {"as generated": False, "without reasoning": True}
"""Whether the model thinks: clients do not return it, so that the answer is another prompt."""

TOOL: Final[Json] = {
    "type": "function",
    "function": {
        "name": "run",
        "parameters": {
            "type": "object",
            "properties": {"command": {"enum": ["git status --short", "git diff --stat"]}},
            "required": ["command"],
            "additionalProperties": False,
        },
    },
}
HEAD: Final = ("answer", "result", "prewarm", "first token", "on / off", "passes", "computed")


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn after a result: seconds until its first token, passes, tokens, calls by thread."""

    seconds: float
    passes: int
    prompt: int
    computed: int
    calls: Counter[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags to `parser`."""
    add(parser, "--model", "--json")
    for flag, default, text in (
        ("--context", 2000, "tokens before the first turn"),
        ("--trials", 9, "default %(default)s"),
        ("--tool-ms", 500, "milliseconds that the tool takes; default %(default)s"),
    ):
        parser.add_argument(flag, type=positive, default=default, metavar="N", help=text)
    parser.add_argument(
        "--results", type=numbers, default=(8, 200), metavar="N,…", help="tokens of results"
    )
    parser.add_argument("--calls", action="store_true", help="count calls; times are longer")


def run(args: argparse.Namespace) -> int:
    """Measure, write the file, print the table."""
    load_before = os.getloadavg()
    rows: list[Sequence[str]] = [HEAD]
    records: list[Json] = []
    tokenizer = load_tokenizer(args.model)
    ids = tokenizer.encode((TEXTS / "functions.txt").read_text(encoding="utf-8"))
    with servers(args.model, calls=args.calls) as sides:
        for kind, thinks in KINDS.items():
            for length in args.results:
                turns: dict[str, list[Turn]] = {side: [] for side in sides}
                for trial in range(args.trials + 1):  # the first one warms up
                    system = tokenizer.decode([*ids[trial:], *ids][: args.context])
                    result = tokenizer.decode(ids[-length - trial :][:length])
                    texts = f"{kind} {length} {trial}\n{system}", result
                    for side, running in rotate([*sides.items()], trial):
                        turn = hold(running, *texts, thinks=thinks, tool_s=args.tool_ms / 1000)
                        turns[side] += [turn] if trial else []
                rows += _rows(kind, length, turns)
                records.append({"kind": kind, "result": length, **_record(turns)})
    write_json(args.json, {**environment(load_before), "model": args.model.name, "turns": records})
    sys.stdout.write(table(rows) + "\n")
    return 0


@contextmanager
def servers(model: Path, *, calls: bool) -> Iterator[dict[str, Running]]:
    """Serve a model twice, by the names of `SIDES`; calls of all their threads are counted."""
    registry = Registry((ModelEntry(model.name, model, "model_dir"),))
    if calls:
        threading.setprofile(_count)
    with ExitStack() as stack:
        sides = {
            side: stack.enter_context(
                omlx(
                    Settings(prewarm=prewarm, speculation="off"),
                    registry=registry,
                    default=model.name,
                )
            )
            for side, prewarm in SIDES.items()
        }
        yield sides
    threading.setprofile(None)


def hold(running: Running, system: str, result: str, *, thinks: bool, tool_s: float) -> Turn:
    """Ask for a call of a tool, and return the turn after its result."""
    body: dict[str, Any] = {
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": "Look at the folder."},
        ],
        "tools": [TOOL],
        "tool_choice": "required",
        "max_tokens": 400,
        "chat_template_kwargs": {"enable_thinking": thinks},
        "seed": 4,
    }
    choice = _post(running, body)["choices"][0]
    said = {key: choice["message"][key] for key in ("role", "content", "tool_calls")}
    time.sleep(tool_s)  # a tool runs
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": result}
        for call in said["tool_calls"]
    ]
    body["messages"] += [said, *results]
    before = running.engine.passes
    _CALLS.clear()
    started = time.perf_counter()
    usage = _post(running, body | {"tool_choice": "auto", "max_tokens": 1})["usage"]
    seconds, calls = time.perf_counter() - started, Counter(_CALLS)
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    passes, prompt = running.engine.passes - before, usage["prompt_tokens"]
    return Turn(seconds, passes, prompt, prompt - cached, calls)


_CALLS: Counter[str] = Counter()


def _count(frame: object, event: str, argument: object) -> None:
    if event in ("call", "c_call"):
        _CALLS[threading.current_thread().name.rstrip("0123456789_-")] += 1


def _post(running: Running, body: Json) -> Any:
    answer = running.http.post("/v1/chat/completions", json=body)
    if answer.status_code != 200:
        raise SystemExit(answer.json()["error"]["message"])  # of a template without tools
    return answer.json()


def _rows(kind: str, length: int, turns: dict[str, list[Turn]]) -> Iterator[Sequence[str]]:
    off = Series.of(turn.seconds for turn in turns["off"])
    for side, some in turns.items():
        times = Series.of(turn.seconds for turn in some)
        ratio = times.over(off)
        middle = sorted(some, key=lambda turn: turn.computed)[len(some) // 2]
        yield (
            kind,
            f"{length}",
            side,
            f"{1000 * times.median:.1f} ms",
            f"{ratio.median:.2f} ({ratio.least:.2f} to {ratio.most:.2f})",
            f"{middle.passes}",
            f"{middle.computed} of {middle.prompt}",
        )


def _record(turns: dict[str, list[Turn]]) -> Json:
    return {
        side: {
            "seconds": [turn.seconds for turn in some],
            "passes": [turn.passes for turn in some],
            "computed": [turn.computed for turn in some],
            "prompt": [turn.prompt for turn in some],
            "calls": [dict(turn.calls) for turn in some],
        }
        for side, some in turns.items()
    }
