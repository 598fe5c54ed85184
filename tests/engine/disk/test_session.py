"""Session files: states restore the same tokens elsewhere; bad files are named."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omlx.engine.disk.record import Damaged, Record
from omlx.engine.disk.session import Session, read_head, read_states, write_session
from omlx.engine.session import Growth, open_states
from omlx.errors import TooLarge
from tests.engine.disk.records import BLOCK, prefix
from tests.engine.disk.restarts import PATIENCE_S, DiskBench, started
from tests.engine.harness import prompt, request
from tests.lanes import few

TOKENS = list(range(1, 25))


def head(tokens: list[int], **more: Any) -> Session:
    contents = {"response": {}, "items": [], "messages": []}
    return Session(id="a", model="m", saved_at=0.0, facts={}, tokens=tokens, **contents, **more)


def save(bench: DiskBench, tokens: list[int], path: Path) -> Session:
    """Save the states of a prompt that a loop has computed."""
    states = open_states(bench.loop)
    states.prefix.write(tokens)
    while states.tier.drain():
        bench.step()
    found = states.find(tokens).result(PATIENCE_S)
    spans = [(part.kind, part.id.start, part.id.stop) for part in found[1]]
    session = head(tokens, restored=found[0], states=list(dict.fromkeys(spans)))
    parts = {part.id: part for part in found[1]}.values()
    records = [states.worker.read(part).result(PATIENCE_S) for part in parts]
    write_session(path, session, [record for record in records if record is not None])
    return session


@pytest.mark.parametrize(
    "family",
    [
        *few(("llama", "qwen3_next", "gemma3_text", "llama_quantized"), "llama", "qwen3_next"),
        pytest.param("deepseek_v4", marks=pytest.mark.needs_extra),
    ],
)
def test_states_of_a_file_restore_the_same_tokens(family: str, tmp_path: Path) -> None:
    asked = request("a", prompt(53), max_tokens=8, stable=44)
    file = tmp_path / "file"
    with started(family, tmp_path / "first") as bench:
        bench.run(asked)
        session = save(bench, list(asked.tokens[:44]), file)
    kept = 40 if family.startswith("llama") else 44  # of dense models, whole blocks
    assert session.restored == kept
    follow_up = request("b", (*asked.tokens[:44], 5, 6), max_tokens=8)
    with started(family, tmp_path / "second") as bench, file.open("rb") as stream:
        states = open_states(bench.loop)
        assert read_head(stream) == session
        for record in read_states(stream, session, states.block_tokens):
            assert states.fits(record)
            states.worker.write(record)
        assert states.find(session.tokens).result(PATIENCE_S)[0] == kept
        bench.run(follow_up).proven(family, follow_up)
        assert bench.stats("b").cached_n == kept


EARLY: Any = ["list", {"float32": [1, 4, 8]}, {"float32": [1, 1, 8]}]
LATE: Any = ["list", {"float32": [1, 4, 8]}, {"float32": [1, 2, 8]}]


@pytest.mark.parametrize(
    ("parts", "tokens", "fits"),
    [
        ([{"float32": [1, 4, 8]}, {"float32": [1, 5, 8]}], 23, True),
        ([{"float32": [1, 4, 8]}, None], 3, True),
        ([{"float32": [1, 4, 8]}, None], 4, False),
        ([{"float32": [1, 5, 8]}, {"float32": [1, 4, 8]}], 23, False),
        ([{"float32": [1, 4, 8]}, {"float32": [1, 8, 5]}], 23, False),
        ([{"float32": [1, 4, 8]}, {"int32": [1, 5, 8]}], 23, False),
        ([{"float32": [1, 4, 8]}, {"float32": [1, 5.0, 8]}], 23, False),
        ([{"float32": [1, 4, 8]}], 23, False),
        (["x", {}], 23, False),
    ],
)
def test_growing_states_have_types_and_shapes(parts: Any, tokens: int, fits: bool) -> None:
    assert Growth(4, EARLY, LATE).fits(["list", *parts], tokens) is fits


def test_no_head_is_saved_that_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omlx.engine.disk.session.MAX_HEAD_BYTES", 100)
    with pytest.raises(TooLarge, match="more than the 100"):
        write_session(tmp_path / "file", head(TOKENS), [])
    assert not (tmp_path / "file").exists()


def test_a_file_that_cannot_be_completed_is_deleted(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # reached when the file is closed
    try:
        with pytest.raises(OSError, match="too large"):
            write_session(tmp_path / "file", head(TOKENS), [])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "file").exists()


def test_arrays_of_another_shape_do_not_fit(tmp_path: Path) -> None:
    with started("llama", tmp_path) as bench:
        asked = request("a", prompt(20), max_tokens=1)
        bench.run(asked)
        states = open_states(bench.loop)
        states.prefix.write(asked.tokens[:16])
        bench.until(lambda: not states.tier.drain())
        _, parts = states.find(asked.tokens[:16]).result(PATIENCE_S)
        record = states.worker.read(parts[0]).result(PATIENCE_S)
        assert states.fits(record)
        turned = {"bfloat16": [1, 8]}
        for spec in (turned, [turned, *record.spec[1:]], record.spec[:-1]):
            assert not states.fits(Record(record.id, spec, record.buffers))


BAD: dict[str, Callable[[bytes], bytes]] = {
    "does not begin": lambda data: b"{}" + data,
    "its head has more": lambda data: data[:8] + (1 << 40).to_bytes(8, "little") + data[16:],
    "cut off": lambda data: data[:20],
    "is cut off": lambda data: data[:-1],
    "checksum": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "longer": lambda data: data + b"x",
    "another record": lambda data: data.replace(b"[1,2,3,", b"[9,2,3,"),
    "of its tokens": lambda data: data.replace(b'["rows",8,16]', b'["rows",8,99]'),
    "states.0.0": lambda data: data.replace(b'["rows",0,8]', b'["roWs",0,8]'),
}


@pytest.mark.parametrize("reason", BAD)
def test_a_bad_file_is_named(reason: str, tmp_path: Path) -> None:
    spans: Any = [("rows", start, start + BLOCK) for start in range(0, 24, BLOCK)]
    session = head(TOKENS, restored=24, states=spans)
    path = tmp_path / "file"
    write_session(path, session, prefix(TOKENS))
    path.write_bytes(BAD[reason](path.read_bytes()))
    with path.open("rb") as file, pytest.raises(Damaged, match=reason):
        list(read_states(file, read_head(file), BLOCK))
