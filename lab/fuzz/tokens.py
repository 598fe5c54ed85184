"""Compare the answers of a busy, speculating server with plain decoding of one request at a time.

python -m lab.fuzz.tokens --requests 20000 [--families llama,lfm2] [--drafter eagle] [--salt 1]

Every family of the zoo is saved with the bundled tokenizer, beside a perturbed copy as its draft
model. The reference answers each request alone, without drafts and without a prefix cache. Then
the same requests come alone or several at once, with drafts, and some are cut off midway.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any, Final

import httpx
import mlx.core as mx

from lab.fuzz.near_tie import near_tie
from lab.fuzz.token_requests import Json, TokenRequest, token_request
from omlx.cli.main import run_process
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.inspect_checkpoint import inspect_checkpoint
from omlx.models.catalog.registry import ModelEntry, Registry
from omlx.models.catalog.tokenizer import read_tokenizer, tokenizer_length
from omlx.settings.schema import Settings
from tests import zoo
from tests.server.running import TARGET, omlx
from tests.zoo.build import noisy_weights, save_borrowed, save_family

GROUPS: Final = (1, 1, 1, 1, 2, 3, 6)
"""Requests at once: drafts are for one that is alone or that others join midway."""

FOLLOW_SHARE: Final = 0.25
"""Share of requests that are the next turn of an earlier conversation."""

CUT_SHARE: Final = 0.08
"""Share of requests whose client disconnects midway; they are not compared."""

BEGINNINGS: Final = 12
"""Distinct beginnings that the prompts of one family share."""

DRAFT: Final = "draft"
MTP: Final = "mtp"
DRAFTERS: Final = (DRAFT, "eagle", "dflash", "dflash2", "dspark", MTP)
TRAINED: Final = (
    *product(("llama", "qwen3_5"), DRAFTERS[1:-1]),
    *((name, MTP) for name in ("deepseek_v4", "glm5_next", "glm_moe_dsa", "nemotron_h")),
)
"""Families with the trained drafters that they are compared with, beside a draft model."""
NOISE: Final = 0.05
PATIENCE_S: Final = 120
LIMITS: Final = httpx.Limits(keepalive_expiry=1.0)  # before the server closes a connection
COMPARED: Final = ("text", "message", "finish_reason")


@dataclass
class Outcome:
    """Counts of one family; `differences` are requests whose answers differ and are no near-tie."""

    family: str
    compared: int = 0
    cut: int = 0
    near_ties: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    drafted: int = 0
    accepted: int = 0
    cached: int = 0
    differences: list[Json] = field(default_factory=list)

    def __str__(self) -> str:
        statuses = " ".join(f"{code}x{count}" for code, count in sorted(self.statuses.items()))
        return (
            f"{self.family:20} {self.compared:5} compared, {self.cut:4} cut, {statuses}, "
            f"{self.drafted} drafted, {self.accepted} accepted, {self.cached} cached, "
            f"{self.near_ties} near-ties, {len(self.differences)} differ"
        )


def save_pair(name: str, folder: Path, drafter: str = DRAFT) -> Registry:
    """Save the tiny model of a family and its perturbed copy; return a registry of both.

    Another `drafter` than a draft model has random weights.
    """
    entries: list[ModelEntry] = []
    for kind in ("target", "draft"):
        place = folder / name / kind
        shutil.copytree(BUNDLED / TARGET, place)
        if name in zoo.FAMILIES:
            save_family(zoo.FAMILIES[name], place)
        else:
            save_borrowed(name, place)
        entries.append(ModelEntry(f"{name}/{kind}", place, "bundled"))
    if drafter == DRAFT:
        _perturb(entries[1].path)
    else:
        from tests.engine.borrowed import save_drafter  # noqa: PLC0415 — imports mlx-vlm

        save_drafter(drafter, name, entries[1].path)
        entries[1] = inspect_checkpoint(entries[1].id, entries[1].path, "bundled")
    return Registry(tuple(entries))


def _perturb(folder: Path) -> None:
    """Replace saved weights by a copy with noise: about half of its drafts are accepted."""
    file = str(folder / "model.safetensors")
    weights = dict(noisy_weights(list(mx.load(file).items()), NOISE))
    mx.eval(weights)
    mx.save_safetensors(file, weights)


@contextmanager
def client(registry: Registry, settings: Settings) -> Iterator[httpx.Client]:
    with (
        omlx(settings, registry=registry, default=registry.entries[0].id) as running,
        httpx.Client(base_url=running.url, timeout=PATIENCE_S, limits=LIMITS) as http,
    ):
        yield http


def answer(http: httpx.Client, request: TokenRequest, body: Json) -> tuple[int, Json]:
    response = http.post(request.path, json=body)
    return response.status_code, response.json()


def cut_off(http: httpx.Client, request: TokenRequest, after: int) -> None:
    """Stream the answer, and disconnect after some chunks."""
    body = {**request.compared(), "stream": True}
    with http.stream("POST", request.path, json=body) as response:
        for number, _ in enumerate(response.iter_lines()):
            if number >= after:
                return


def content(choices: Sequence[Json]) -> list[Json]:
    """The compared part of every choice: ids of tool calls are random."""
    parts: list[Json] = []
    for choice in sorted(choices, key=lambda choice: int(choice["index"])):
        part = json.loads(json.dumps({name: choice.get(name) for name in COMPARED}))
        for call in (part["message"] or {}).get("tool_calls") or ():
            del call["id"]
        parts.append(part)
    return parts


def fuzz_family(name: str, requests: int, salt: int, folder: Path, drafter: str = DRAFT) -> Outcome:
    """Compare `requests` answers of one family."""
    outcome = Outcome(name if drafter == DRAFT else f"{name} {drafter}")
    rng = Random(f"{name} {salt}")
    registry = save_pair(name, folder, drafter)
    target, draft = (entry.id for entry in registry.entries)
    limits: dict[str, Any] = {"max_context": 1024, "max_tokens": 128}
    alone = Settings(prefix_bytes=0, speculation="off", **limits)
    with client(registry, alone) as http:
        drawn, expected = _references(http, rng, target, requests)
    drawn = [request.drafted_by(registry.entries[1].drafter or DRAFT) for request in drawn]
    busy = Settings(prefix_bytes=4 << 20, draft_model=draft, **limits)
    with client(registry, busy) as http, ThreadPoolExecutor(max(GROUPS)) as pool:
        cuts = [rng.randint(1, 40) if rng.random() < CUT_SHARE else None for _ in drawn]

        def send(number: int) -> tuple[int, Json] | None:
            sleep(starts[number])
            after = cuts[number]
            if after is None:
                return answer(http, drawn[number], drawn[number].compared())
            cut_off(http, drawn[number], after)
            return None

        starts = [rng.random() * 0.05 for _ in drawn]  # seconds: some join midway
        number = 0
        while number < requests:
            group = range(number, min(requests, number + rng.choice(GROUPS)))
            for one, got in zip(group, pool.map(send, group), strict=True):
                if got is None:
                    outcome.cut += 1
                else:
                    _compare(outcome, drawn[one], expected[one], got)
            number = group.stop
    return outcome


def _references(
    http: httpx.Client, rng: Random, model: str, requests: int
) -> tuple[list[TokenRequest], list[tuple[int, Json]]]:
    """Draw requests, some of them a next turn of an earlier one, and answer each alone."""
    drawn: list[TokenRequest] = []
    expected: list[tuple[int, Json]] = []
    conversations: list[list[Json]] = []
    for _ in range(requests):
        earlier: list[Json] = []
        if conversations and rng.random() < FOLLOW_SHARE:
            earlier = rng.choice(conversations[-8:])
        request = token_request(rng, model, BEGINNINGS, earlier)
        drawn.append(request)
        expected.append(answer(http, request, request.reference()))
        status, body = expected[-1]
        if status == 200 and "messages" in request.body:
            text = body["choices"][0]["message"]["content"] or "nothing"
            said = {"role": "assistant", "content": text}
            conversations.append([*request.body["messages"], said])
    return drawn, expected


def _compare(
    outcome: Outcome, request: TokenRequest, expected: tuple[int, Json], got: tuple[int, Json]
) -> None:
    outcome.compared += 1
    outcome.statuses[got[0]] += 1
    if got[0] == expected[0] == 200:
        timings = got[1].get("timings", {})
        outcome.drafted += timings.get("draft_n", 0)
        outcome.accepted += timings.get("draft_n_accepted", 0)
        details = got[1]["usage"].get("prompt_tokens_details") or {}
        outcome.cached += details.get("cached_tokens", 0)
        if content(got[1]["choices"]) == content(expected[1]["choices"]):
            return
        if request.body.get("logprobs") is not None and near_tie(
            request.body, expected[1], got[1], *_tokens()
        ):
            outcome.near_ties += 1
            return
    elif got[0] == expected[0] < 500:
        return
    outcome.differences.append(
        {"request": request, "expected": expected, "got": got, "family": outcome.family}
    )


@cache
def _tokens() -> tuple[dict[str, list[int]], int]:
    """Token ids of the bundled tokenizer by text, and how many there are."""
    tokenizer = read_tokenizer(ModelEntry(TARGET, BUNDLED / TARGET, "bundled"))
    ids: dict[str, list[int]] = {}
    width = tokenizer_length(tokenizer)
    for token in range(width):
        ids.setdefault(tokenizer.decode([token]), []).append(token)
    return ids, width


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.fuzz.tokens", description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000, help="in all")
    servable = [name for name in zoo.MAIN_NAMES if not zoo.FAMILIES[name].module]
    parser.add_argument("--families", help="names of the zoo, with the drafter alone")
    parser.add_argument("--drafter", choices=DRAFTERS, default=DRAFT, help="others need mlx-vlm")
    parser.add_argument("--salt", type=int, default=0, help="other requests")
    parser.add_argument("--seconds", type=float, default=7200.0, help="start no family after this")
    arguments = parser.parse_args()
    if arguments.families is not None:
        pairs = [(name, arguments.drafter) for name in arguments.families.split(",")]
    else:
        trained = TRAINED if find_spec("mlx_vlm") is not None else ()
        pairs = [*((name, DRAFT) for name in servable), *trained]
    until = monotonic() + arguments.seconds
    failed = total = 0
    for name, drafter in pairs:
        if monotonic() > until:
            print(f"out of time before {name} {drafter}")  # noqa: T201 — a report on a terminal
            break
        each = max(1, arguments.requests // len(pairs))
        with tempfile.TemporaryDirectory(prefix="omlx-fuzz-") as folder:
            outcome = fuzz_family(name, each, arguments.salt, Path(folder), drafter)
        total += outcome.compared
        failed += len(outcome.differences)
        print(outcome, flush=True)  # noqa: T201
        for difference in outcome.differences[:3]:
            print(json.dumps(_report(difference))[:4000], flush=True)  # noqa: T201
    print(f"{total} compared, {failed} differ")  # noqa: T201
    sys.stdout.flush()
    os._exit(1 if failed else 0)  # as the server itself leaves: see docs/log.md


def _report(difference: Json) -> Json:
    request: TokenRequest = difference["request"]
    shown: dict[str, Any] = {**difference, "request": [request.path, request.compared()]}
    return shown


if __name__ == "__main__":
    run_process(main)
