"""Plain streams over HTTP: what is counted, and which side a ratio favours."""

import os
import socket
import threading

import pytest

from lab.bench import streams
from lab.bench.http.server import Server
from lab.bench.streams import Streamed

ANSWER = (
    b'data: {"choices": [{"delta": {"role": "assistant", "content": null}}]}\n\n',
    b'data: {"choices": [{"delta": {"content": "a word"}}]}\n\n',
    b'data: {"usage": {"completion_tokens": 7}}\n\ndata: [DONE]\n\n',
)


def serve(listener: socket.socket, answers: list[bytes]) -> threading.Thread:
    """Answer each connection with one of `answers`, and close it."""

    def run() -> None:
        for answer in answers:
            client, _ = listener.accept()
            with client:
                received = b""
                while not received.endswith(b'"include_usage": true}}'):
                    received += client.recv(1 << 16)
                client.sendall(answer)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_tokens_of_all_streams_are_counted():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = serve(listener, [b"".join(ANSWER)] * 2)
        server = Server("fake", listener.getsockname()[1], "toy", os.getpid())
        made = streams.stream(server, streams.prompts(2, 0), 9)
        thread.join()
    assert made.tokens == 14
    assert 0 < made.first_s <= made.seconds


def test_an_incomplete_stream_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = serve(listener, [b"".join(ANSWER[:2])])
        server = Server("fake", listener.getsockname()[1], "toy", os.getpid())
        with pytest.raises(RuntimeError, match="a word"):
            streams.stream(server, streams.prompts(1, 0), 9)
        thread.join()


def test_prompts_repeat_in_no_trial():
    texts = [text for trial in range(3) for text in streams.prompts(8, trial)]
    assert len(set(texts)) == len(texts)
    assert streams.prompts(8, 1) == streams.prompts(8, 1)


def test_ratios_above_one_favour_omlx():
    ours, theirs = Streamed(100, 1.0, 0.1, 0.5), Streamed(100, 2.0, 0.3, 2.0)
    ratios = {line[1]: line[4] for line in streams.compared(8, [(ours, theirs)])}
    assert ratios == {
        "tokens/s": "2.000",
        "first text, ms": "3.000",
        "processor, ms/token": "4.000",
    }
