"""The control link: frames cut anywhere, secrets, versions."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.engine.stage.link import MAX_PAYLOAD, Frame, Kind, Link, Order, introduce, welcome
from omlx.engine.stage.stages import Stages
from omlx.errors import StageError, StageLost
from tests.refusals import refused

SECRET = b"a secret of this group"
FACTS = {"omlx": "0.1.0", "mlx": "1"}


@pytest.fixture
def pair() -> Iterator[tuple[Link, Link]]:
    one, other = socket.socketpair()
    one.settimeout(5)
    other.settimeout(5)
    links = Link(one), Link(other)
    yield links
    for link in links:
        link.close()


@given(
    payloads=st.lists(st.binary(max_size=200), min_size=1, max_size=5),
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=8),
)
def test_frames_arrive_whole_however_they_are_cut(payloads: list[bytes], cuts: list[int]) -> None:
    sending, receiving = socket.socketpair()
    with sending, receiving:
        sent = [Frame(Kind.PLAN, lane, payload) for lane, payload in enumerate(payloads)]
        raw = b"".join(
            len(frame.payload).to_bytes(4, "big")
            + bytes([frame.kind])
            + frame.lane.to_bytes(4, "big")
            + frame.payload
            for frame in sent
        )
        thread = threading.Thread(target=_send_in_pieces, args=(sending, raw, cuts))
        thread.start()
        link = Link(receiving)
        assert [link.receive() for _ in sent] == sent
        thread.join()
        link.close()


def _send_in_pieces(sending: socket.socket, raw: bytes, cuts: list[int]) -> None:
    at = 0
    while at < len(raw):
        for cut in cuts:
            sending.sendall(raw[at : at + cut])
            at += cut


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        (MAX_PAYLOAD + 1).to_bytes(4, "big") + bytes([Kind.PLAN]) + bytes(4),
    ],
    ids=["another protocol", "a payload beyond the limit"],
)
def test_what_is_no_frame_is_refused_before_it_is_read(
    pair: tuple[Link, Link], sent: bytes
) -> None:
    one, other = pair
    one._socket.sendall(sent)
    with refused(StageError, "stage.protocol"):
        other.receive()


def test_half_a_frame_is_the_end(pair: tuple[Link, Link]) -> None:
    one, other = pair
    one._socket.sendall((10).to_bytes(4, "big") + bytes([Kind.PLAN]) + bytes(4) + b"half")
    one.close()
    assert other.receive() is None


def greeted(
    pair: tuple[Link, Link],
    *,
    secret: bytes = SECRET,
    facts: dict[str, str] | None = None,
    rank: int = 1,
) -> tuple[object, object]:
    """What leader and follower make of each other: a rank and None, or a code each."""
    one, other = pair
    results: dict[str, object] = {}

    def follow() -> None:
        try:
            introduce(other, secret, facts or FACTS, rank)
            results["follower"] = None
        except StageError as error:
            results["follower"] = error.code

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        results["leader"] = welcome(one, SECRET, FACTS, {1: "mac1", 2: "mac2"})
    except StageError as error:
        results["leader"] = error.code
    thread.join()
    return results["leader"], results["follower"]


@pytest.mark.parametrize(
    ("follower", "outcome"),
    [
        ({"rank": 2}, (2, None)),
        ({"secret": b"another"}, ("stage.secret",) * 2),
        ({"rank": 3}, ("stage.rank",) * 2),
        ({"facts": {**FACTS, "mlx": "2"}}, ("stage.mismatch",) * 2),
    ],
    ids=["known", "another secret", "second of a rank", "another version"],
)
def test_a_follower_is_welcomed_or_refused_and_both_know_why(
    pair: tuple[Link, Link], follower: dict[str, Any], outcome: tuple[object, object]
) -> None:
    assert greeted(pair, **follower) == outcome


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (Kind.WELCOME, b"{}"),
        (Kind.HELLO, b"[" * 100_000),
        (Kind.HELLO, b"[]"),
        (Kind.HELLO, b"{}"),
        (Kind.HELLO, b'{"proof": "\\u00e9"}'),
        (Kind.HELLO, b'{"proof": "\\ud800"}'),
        (Kind.HELLO, b'{"refused": "stage.lost", "params": 3}'),
    ],
)
def test_a_stranger_is_refused_whatever_it_sends(
    kind: Kind, payload: bytes, pair: tuple[Link, Link]
) -> None:
    one, other = pair
    other.send(kind, payload)
    with pytest.raises(StageError):
        welcome(one, SECRET, FACTS, {1: "mac1"})


def test_a_follower_that_reads_nothing_is_lost() -> None:
    near, far = socket.socketpair()
    lost: list[StageLost] = []
    with near, far, closing(Link(near)) as link:
        stages = Stages({1: link}, Order(("mac1", "mac2"), timeout_s=1.0), lost.append)
        stages.start()
        with refused(StageLost, "stage.lost", host="mac2"):
            stages.broadcast(Kind.PLAN, bytes(16 << 20))
        assert [failure.code for failure in lost] == ["stage.lost"]
