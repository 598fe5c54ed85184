"""`python -m lab.bench answers`: what a replay needs."""

from __future__ import annotations

import json

from lab.bench.answers import answers
from lab.bench.subject import read_subject
from lab.bench.workloads import WORKLOADS
from omlx.models.catalog.discovery import BUNDLED

DRAFT = BUNDLED / "omlx-demo/draft"


def test_a_model_agrees_with_itself_and_a_random_draft_counts_as_always_wrong() -> None:
    subject = read_subject(DRAFT, DRAFT, dtype="float32")
    by_name = {workload.name: workload for workload in WORKLOADS}
    for name, right in (("reasoning", "1"), ("prose", "1"), ("hostile", "0")):
        recorded = json.loads(json.dumps(answers(subject, by_name[name], 1)))
        assert recorded, name
        for entry in recorded:
            assert entry["prompt"]
            assert entry["drafted"] == right * len(entry["answer"]), name
