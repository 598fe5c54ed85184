"""What is measured is what the server runs."""

from __future__ import annotations

import mlx.core as mx
from mlx.utils import tree_flatten

from lab.bench.subject import read_subject
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.pool.opening import open_model

DRAFT = BUNDLED / "omlx-demo/draft"


def types(model) -> set[mx.Dtype]:
    return {array.dtype for _, array in tree_flatten(model.parameters())}


def test_weights_have_the_type_that_the_server_gives_them() -> None:
    served, *_ = open_model(DRAFT, "auto", trusted=False)
    subject = read_subject(DRAFT, DRAFT)
    assert types(subject.model) == types(subject.draft) == types(served)


def test_weights_are_converted_if_asked_for() -> None:
    assert types(read_subject(DRAFT, None, dtype="float16").model) == {mx.float16}
