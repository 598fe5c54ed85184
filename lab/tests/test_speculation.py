"""`python -m lab.bench speculation` on bundled models: its report, and that tokens are the same."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from lab.bench.__main__ import main
from lab.bench.drive import drive, request
from lab.bench.recital import Reciter
from lab.tests.subjects import subject
from omlx.draft_length import DraftLength
from omlx.engine.speculation.strategy import NGRAM
from omlx.engine.types import Speculation
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.package import window_from_bench

DRAFT = BUNDLED / "omlx-demo/draft"
HYBRID = BUNDLED / "omlx-demo/hybrid"
MODEL = ("--model", str(DRAFT), "--dtype", "float32")
SMALL = (*MODEL, "--trials", "1", "--context", "90", "--widths", "2,5")
ROLES = ("model", "hybrid")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A report of the draft drafting for itself, beside the hybrid."""
    file = tmp_path_factory.mktemp("bench") / "report.json"
    models = ("--draft", str(DRAFT), "--hybrid", str(HYBRID), "--inflate", "1M")
    size = ("--modes", "draft 2,ngram,auto", "--workloads", "prose,hostile", "--streams", "1")
    assert main(["speculation", *SMALL, *models, *size, "--json", str(file)]) == 0
    content: dict[str, Any] = json.loads(file.read_text())
    return content


@pytest.mark.slow
def test_every_mode_writes_what_plain_decoding_writes(report: dict[str, Any]) -> None:
    assert len(report["results"]) == 2 * 2 * 3
    for result in report["results"]:
        assert result["errors"] == 0
        assert result["tokens"] > 0
        assert result["checksum"] == result["plain_checksum"], result["divergences"]
        assert result["divergences"] == []


def test_modes_draft_as_their_names_say(report: dict[str, Any]) -> None:
    results = {}
    for result in report["results"]:
        results[result["model"], result["workload"], result["mode"]] = result
    fixed = results["model", "prose", "draft 2"]
    assert fixed["accepted"] > 0.8 * fixed["proposed"] > 0
    assert set(fixed["drafters"]) == {"draft"}
    assert set(results["model", "prose", "ngram"]["drafters"]) <= {"ngram"}
    worst_case = results["model", "hostile", "draft 2"]
    assert worst_case["accepted"] < 0.3 * worst_case["proposed"]


def test_the_report_is_complete(report: dict[str, Any]) -> None:
    assert report["format"] == "omlx-bench-spec/1"
    assert {"machine", "versions", "settings", "models", "passes", "tables"} <= set(report)
    assert report["models"]["hybrid"]["model"]["architecture"] == "lfm2"
    assert report["models"]["model"]["model"]["parameters"] >= 1_000_000
    assert report["settings"]["dtype"] == "float32"
    assert report["missing"] == []
    for result in report["results"]:
        bound = result["perfect_lookup"]
        assert bound["speedup"] > 0
        assert len(bound["reached"]["samples"]) == 1
    for role in ROLES:
        windows = report["passes"][role]["windows"]
        assert [row["window"] for row in windows] == [1, 4]
        assert all(row["plain_steps"] > 0 for row in windows)
    titles = [table["title"] for table in report["tables"]]
    assert "Break-even acceptance rate by draft length (hybrid)" in titles
    assert titles.index("Upper bound of prompt lookup") < len(titles) - 3


def test_auto_and_the_hybrid_are_compared(report: dict[str, Any]) -> None:
    compared = [(item["model"], item["workload"]) for item in report["auto_against_best_fixed"]]
    assert set(compared) == set(product(ROLES, ("prose", "hostile")))
    assert len(report["hybrid_against_twin"]) == 2 * 3
    for item in (*report["hybrid_against_twin"], *report["auto_against_best_fixed"]):
        ratio = item["gain"] / item["other_gain"]  # of the only trial
        assert item["ratio"] == pytest.approx(ratio)


def test_the_hybrid_writes_what_its_twin_writes(report: dict[str, Any]) -> None:
    checksums: dict[tuple[str, str], set[str]] = {}
    for result in report["results"]:
        case = (result["workload"], result["mode"])
        checksums.setdefault(case, set()).add(result["checksum"])
    assert all(len(both) == 1 for both in checksums.values())


def reported(file: Path, *arguments: str) -> dict[str, Any]:
    """Run the command and return its JSON."""
    assert main(["speculation", *SMALL, *arguments, "--json", str(file)]) == 0
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def test_a_single_stream_is_compared_with_plain_decoding(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    modes = ("--draft", str(DRAFT), "--modes", "draft 2,auto")
    report = reported(file, *modes, "--workloads", "prose", "--streams", "1")
    assert report["format"] == "omlx-bench-spec/1"
    fixed, auto = report["results"]
    for result in (fixed, auto):
        assert result["errors"] == 0
        assert result["checksum"] == result["plain_checksum"], result["divergences"]
        assert len(result["gain"]["samples"]) == 1
    assert fixed["accepted"] > 0.8 * fixed["proposed"] > 0
    (comparison,) = report["auto_against_best_fixed"]
    assert comparison["ratio"] == pytest.approx(comparison["gain"] / comparison["other_gain"])
    declared = window_from_bench(file)
    assert report["draft_window"]["initial_window"] == declared.length.initial == 2


def test_streams_run_together_and_have_no_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = ("--modes", "ngram", "--workloads", "hostile", "--streams", "2")
    (result,) = reported(tmp_path / "report.json", *size)["results"]
    assert result["streams"] == 2
    assert result["errors"] == 0
    assert result["divergences"] == []
    assert set(result["reasons"]) <= {"spec.on", "spec.observing", "spec.off.does_not_pay"}
    assert result["perfect_lookup"] is None
    assert "Upper bound" not in capsys.readouterr().out


@pytest.mark.slow
def test_without_a_draft_only_prompt_lookup_is_measured(tmp_path: Path) -> None:
    size = ("--workloads", "verbatim", "--streams", "1", "--quantize", "4")
    report = reported(tmp_path / "report.json", *size)
    assert [result["mode"] for result in report["results"]] == ["ngram", "auto"]
    assert report["draft_window"] is None
    assert "uint32" in report["models"]["model"]["model"]["dtype"]


def test_a_report_out_of_time_names_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    size = ("--modes", "ngram", "--workloads", "tools,prose", "--streams", "1", "--budget", "0")
    assert main(["speculation", *SMALL, *size]) == 0
    printed = capsys.readouterr().out
    assert "model: tools, ngram: 0 of 1 trials" in printed
    assert "model: prose, ngram: 0 of 1 trials" in printed


def test_a_mode_that_cannot_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speculation", *SMALL, "--modes", "ngram,draft 4,chain"]) == 2
    assert capsys.readouterr().err.startswith("draft 4, chain: without a draft model")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--modes", "draft 3"), "draft 3: choose from"),
        (("--workloads", "chess"), "chess: choose from"),
        (("--streams", "2-1"), "has no numbers"),
        (("--budget", "nan"), "not a number from 0 on"),
        (("--budget=-1",), "not a number from 0 on"),
    ],
)
def test_bad_values_are_named(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["speculation", *SMALL, *arguments])
    assert message in capsys.readouterr().err


def test_a_reciter_writes_its_text_wherever_its_cache_stands() -> None:
    hybrid = subject("lfm2").model
    text = (1, 2, 3, 4, 9, 8, 7, 6, 5)
    first, second = mx.array([text[:4]]), mx.array([text[4:]])
    model = Reciter(hybrid)
    assert mx.array_equal(model(first, cache=model.make_cache()), hybrid(first))
    model.recite([text])
    cache = model.make_cache()
    assert mx.argmax(model(first, cache=cache), axis=-1).tolist() == [[2, 3, 4, 9]]
    assert mx.argmax(model(second, cache=cache), axis=-1).tolist() == [[8, 7, 6, 5, 5]]
    token = mx.array([[0]])
    raised = model(token, cache=model.make_cache())
    assert mx.sum(raised != hybrid(token, cache=model.make_cache())).item() == 1


def test_rows_that_share_passes_recite_a_text_each_and_draft_from_it() -> None:
    hybrid = subject("lfm2")
    reciting = replace(hybrid, model=Reciter(hybrid.model))
    texts = [(1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6), (9, 1, 2, 3, 7, 7, 8, 1, 2, 3, 7, 7, 8, 6)]
    reciting.model.recite(texts)
    lookups = Speculation(NGRAM, DraftLength.exactly(3))
    asked = [replace(request(text[:6], len(text) - 6), speculation=lookups) for text in texts]
    driven = drive(reciting.loop, asked)
    told = [(*text[:6], *tokens) for text, tokens in zip(texts, driven.sample.tokens, strict=True)]
    assert told == texts
    assert all(stats.drafters["ngram"].accepted for stats in driven.stats.values())


def test_a_hybrid_of_another_vocabulary_cannot_recite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = shutil.copytree(HYBRID, tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert main(["speculation", *SMALL, "--hybrid", str(other)]) == 2
    assert "another vocabulary" in capsys.readouterr().err


@pytest.mark.parametrize("widths", ["1,2", "8,66"])
def test_impossible_widths_are_refused(widths: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["speculation", *MODEL, "--widths", widths])
    assert "2 to 65 tokens wide" in capsys.readouterr().err


@pytest.mark.parametrize("size", ["many", "infM", "-5M"])
def test_sizes_are_numbers_of_parameters(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["engine", *MODEL, f"--inflate={size}"])
    assert "such as 20M" in capsys.readouterr().err
