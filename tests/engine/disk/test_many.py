"""Many requests over shared prefixes and many restarts, with drafts and damaged files: the tokens
are those of a cold start.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from omlx.engine.speculation.strategy import AUTO, DRAFT, NGRAM, OFF
from omlx.engine.types import Request, Sampling, Speculation
from tests import zoo
from tests.engine.disk.restarts import started
from tests.engine.disk.test_trouble import ask, forget, stats
from tests.engine.harness import model, plain, prompt, request, unassisted
from tests.lanes import few

FAMILIES = ("llama", "gemma3_text", "qwen3_next")
FLIPS = 50


def wanted(chance: random.Random, name: str, prefixes: int) -> Request:
    """A request behind a part of one of so many prefixes, in any strategy."""
    salt = chance.randrange(prefixes)
    whole = prompt(40 + 11 * salt % 90, salt)
    rest = [chance.randrange(zoo.VOCAB_SIZE) for _ in range(chance.randrange(1, 20))]
    return request(
        name,
        (*whole[: chance.choice((len(whole), 24, 40))], *rest),
        Sampling(temperature=chance.choice((0.0, 0.8)), seed=salt),
        max_tokens=chance.randrange(2, 9),
        stable=len(whole) * chance.randrange(2),
        speculation=Speculation(chance.choice((AUTO, DRAFT, NGRAM, OFF))),
    )


def flip(folder: Path, chance: random.Random, times: int) -> None:
    """Flip so many bits of what is on disk, but for the table."""
    segments = sorted(folder.rglob("*.records"))
    for segment in chance.choices(segments, k=times):
        content = bytearray(segment.read_bytes())
        if content:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            segment.write_bytes(content)


def restarted(family: str, root: Path, requests: int, prefixes: int, restarts: int) -> int:
    """Prove every request. Return how many tokens came from disk, of records that were whole."""
    chance, hits, damaged = random.Random(f"{family} {requests}"), 0, 0
    for start in range(restarts):
        with started(family, root, draft=model(family)) as bench:
            for at in range(requests // restarts // 2):
                pair = [wanted(chance, f"{at}-{i}", prefixes) for i in range(2)]
                bench._calls = 0  # those of a pair are bounded
                bench.run(*pair)
                assert not bench.failed
                for one in pair:
                    assert bench.tokens[one.id] == decoded(family, one), (start, one)
                if chance.random() < 0.1:
                    forget(bench)
            hits += stats(bench).hit_tokens
            damaged += stats(bench).damaged
        if start % 2:
            flip(root, chance, FLIPS)
    assert damaged
    return hits


def decoded(family: str, one: Request) -> list[int]:
    """What a cold start says, without keeping it."""
    return plain.__wrapped__(family, unassisted(one))


FEW, MANY = (24, 4, 4), (3400, 300, 20)
"""Requests, prefixes and restarts."""


@pytest.mark.parametrize(
    ("family", "counts"), few(product(FAMILIES, (FEW, MANY)), ("qwen3_next", FEW))
)
def test_requests_over_restarts(family: str, counts: tuple[int, int, int], tmp_path: Path) -> None:
    assert restarted(family, tmp_path, *counts) > 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_small_file_system(small_disk: Path) -> None:
    for _ in range(3):
        with started("llama", small_disk) as bench:
            ask(bench, *range(12))
            off = stats(bench).off
            assert off.code in ("prefix.disk.off.failed", "prefix.disk.daily")
            assert stats(bench).damaged == 0
