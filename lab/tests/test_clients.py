"""Clients over HTTP: what is counted, and which side a ratio favours."""

import os
import random
import socket
import threading

import pytest

from lab.bench import clients
from lab.bench.clients import Streamed
from lab.bench.http.server import Server
from lab.bench.real_questions import REAL
from lab.bench.workloads import Question, questions

ANSWER = (
    b'data: {"choices": [{"delta": {"role": "assistant", "content": null}}]}\n\n',
    b'data: {"choices": [{"delta": {"content": "a "}}]}\n\n',
    b'data: {"choices": [{"delta": {"content": "word"}}]}\n\n',
    b'data: {"choices": [], "usage": {"completion_tokens": 7}}\n\ndata: [DONE]\n\n',
)
QUESTION = Question([{"role": "user", "content": "Speak."}], 9)


def serve(listener: socket.socket, answers: list[bytes]) -> threading.Thread:
    """Answer each connection with one of `answers`, and close it."""

    def run() -> None:
        for answer in answers:
            client, _ = listener.accept()
            with client:
                received = b""
                while not received.endswith(b'"chat_template_kwargs": {"enable_thinking": false}}'):
                    received += client.recv(1 << 16)
                client.sendall(answer)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_tokens_of_all_streams_are_counted():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = serve(listener, [b"".join(ANSWER)] * 2)
        server = Server("fake", listener.getsockname()[1], "toy", os.getpid())
        made = clients.stream(server, [QUESTION] * 2, 9)
        thread.join()
    assert made.tokens == 14
    assert made.texts == ("a word", "a word")
    assert 0 < made.first_s <= made.seconds


def test_an_incomplete_stream_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = serve(listener, [b"".join(ANSWER[:3])])
        server = Server("fake", listener.getsockname()[1], "toy", os.getpid())
        with pytest.raises(RuntimeError, match="word"):
            clients.stream(server, [QUESTION], 9)
        thread.join()


@pytest.mark.parametrize("workload", REAL, ids=lambda workload: workload.name)
def test_questions_repeat_in_no_trial(workload):
    def asked() -> list[str]:
        made = [questions(workload, trial, 4, 600, len) for trial in range(3)]
        return [str(question.messages) for trial in made for question in trial]

    state = random.getstate()
    assert len(set(asked())) == 12
    assert asked() == asked()
    assert random.getstate() == state


def test_ratios_above_one_favour_the_first_side():
    ours = Streamed(100, 1.0, 0.1, 0.01, 0.5, ("same", "same"))
    theirs = Streamed(100, 2.0, 0.3, 0.02, 2.0, ("same", "other"))
    rows = clients.tables({("chat", 2): [{"auto": ours, "plain": theirs}] * 3})
    found = {table[0][0]: table[1][-1] for table in rows}
    assert found == {
        "tokens/s": "2.00 (2.00–2.00)",
        "first text, ms": "3.00 (3.00–3.00)",
        "later text, ms/token": "2.00 (2.00–2.00)",
        "processor, ms/token": "4.00 (4.00–4.00)",
        "equal texts": "3 of 6",
    }
