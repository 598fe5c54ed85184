"""`omlx bench spec` on the bundled models: what it reports, and that it says the same tokens. Never a time."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import xml.etree.ElementTree as ET
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from omlx.bench.cli import add_arguments, run
from omlx.bench.exact import Parting, parting, seen_by_plain
from omlx.bench.sides import engine, request
from omlx.bench.speculation.document import BEGIN, END
from omlx.bench.speculation.document import main as document
from omlx.bench.speculation.modes import MODES, untrained
from omlx.bench.speculation.outcome import checksum
from omlx.bench.speculation.plot import plot
from omlx.bench.speculation.recital import Reciter
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.package.write_package import window_from_bench
from tests.bench.subjects import subject

DRAFT = BUNDLED / "omlx-demo/draft"
HYBRID = BUNDLED / "omlx-demo/hybrid"
SMALL = (
    "--model",
    str(DRAFT),
    "--dtype",
    "float32",
    "--trials",
    "1",
    "--context",
    "120",
    "--widths",
    "2,5",
)


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(["spec", *arguments])


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of the draft drafting for itself, beside the hybrid."""
    folder = tmp_path_factory.mktemp("bench")
    args = parse(
        *SMALL,
        *("--draft", str(DRAFT), "--hybrid", str(HYBRID), "--modes", "draft 2,ngram,auto"),
        *("--workloads", "prose,hostile", "--streams", "1", "--inflate", "1M"),
        *(
            "--title",
            "A title",
            "--json",
            str(folder / "report.json"),
            "--plot",
            str(folder / "report.svg"),
        ),
    )
    assert run(args) == 0
    return folder


@pytest.fixture(scope="module")
def report(measured: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((measured / "report.json").read_text())
    return content


def test_every_mode_says_what_plain_decoding_says(report: dict[str, Any]) -> None:
    assert len(report["results"]) == 2 * 2 * 3
    for result in report["results"]:
        assert result["errors"] == 0
        assert result["tokens"] > 0
        assert result["checksum"] == result["plain_checksum"], result["divergences"]
        assert result["divergences"] == []


def test_modes_draft_as_they_are_called(report: dict[str, Any]) -> None:
    def single(mode: str, workload: str = "prose") -> dict[str, Any]:
        key = ("model", workload, mode, 1)
        names = ("model", "workload", "mode", "streams")
        return next(r for r in report["results"] if tuple(r[name] for name in names) == key)

    fixed = single("draft 2")
    assert fixed["accepted"] > 0.8 * fixed["proposed"] > 0
    assert set(fixed["drafters"]) == {"draft"}
    assert set(single("ngram")["drafters"]) <= {"ngram"}
    hostile = single("draft 2", "hostile")
    assert hostile["accepted"] < 0.3 * hostile["proposed"]


def test_the_report_is_complete(report: dict[str, Any]) -> None:
    assert report["format"] == "omlx-bench-spec/1"
    assert {"machine", "versions", "settings", "models", "passes", "tables"} <= set(report)
    assert report["models"]["hybrid"]["model"]["architecture"] == "lfm2"
    assert report["models"]["model"]["model"]["parameters"] >= 1_000_000
    assert report["settings"]["dtype"] == "float32"
    assert report["missing"] == []
    for result in report["results"]:
        assert len(result["gain"]["samples"]) == 1
        assert (result["perfect_lookup"] is None) == (result["streams"] > 1)
    for role in ("model", "hybrid"):
        windows = report["passes"][role]["windows"]
        assert [row["window"] for row in windows] == [1, 4]
        assert all(row["plain_steps"] > 0 for row in windows)
    compared = {(each["model"], each["workload"]) for each in report["auto_against_best_fixed"]}
    assert compared == {
        (role, name) for role in ("model", "hybrid") for name in ("prose", "hostile")
    }
    assert len(report["hybrid_against_twin"]) == 2 * 3
    for each in (*report["hybrid_against_twin"], *report["auto_against_best_fixed"]):
        assert each["ratio"] == pytest.approx(
            each["gain"] / each["other_gain"]
        )  # of the only trial


def test_the_hybrid_writes_what_its_twin_writes(report: dict[str, Any]) -> None:
    said = {
        (result["workload"], result["mode"], result["model"]): result["checksum"]
        for result in report["results"]
    }
    for workload, mode, _ in said:
        assert said[workload, mode, "hybrid"] == said[workload, mode, "model"]


def test_a_reciter_says_its_text_wherever_its_cache_stands() -> None:
    it = subject("lfm2")
    text = (1, 2, 3, 4, 9, 8, 7, 6, 5)
    model = Reciter(it.model)
    plain = it.model(mx.array([text[:4]]))
    assert mx.array_equal(model(mx.array([text[:4]]), cache=model.make_cache()), plain)
    model.recite(text)
    cache = model.make_cache()
    assert mx.argmax(model(mx.array([text[:4]]), cache=cache), axis=-1).tolist() == [[2, 3, 4, 9]]
    assert mx.argmax(model(mx.array([text[4:]]), cache=cache), axis=-1).tolist() == [
        [8, 7, 6, 5, 5]
    ]
    raised = model(mx.array([[0]]), cache=model.make_cache())
    assert mx.sum(raised != it.model(mx.array([[0]]), cache=model.make_cache())).item() == 1


def test_a_package_can_take_its_window_from_the_report(measured: Path) -> None:
    window = window_from_bench(measured / "report.json")
    assert window.length.contradiction is None


def test_the_plot_has_a_bar_for_every_result(measured: Path, report: dict[str, Any]) -> None:
    root = ET.fromstring((measured / "report.svg").read_text())
    bars = [each for each in root if each.tag.endswith("rect") and len(each)]
    assert len(bars) == len(report["results"])


def test_labels_of_groups_do_not_run_into_each_other() -> None:
    gain = {"min": 0.9, "median": 1.5, "max": 7.0}
    names = ("verbatim", "small edit", "heavy edit", "warm coding", "tools")
    results = [
        {"model": "model", "streams": 1, "workload": name, "mode": "auto", "gain": gain}
        for name in names
    ]
    root = ET.fromstring(plot(results, "A title"))
    labels = {
        each.text: float(each.attrib["x"]) for each in root if each.get("text-anchor") == "middle"
    }
    assert tuple(labels) == names
    for (one, left), (other, right) in pairwise(labels.items()):
        assert right - left > 6 * (len(one) + len(other)) / 2, (
            one,
            other,
        )  # letters of 12 px are some 6 px wide
    assert max(labels.values()) + 6 * len(names[-1]) / 2 < float(root.attrib["width"])


def test_a_page_takes_the_tables_between_its_marks(measured: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{BEGIN}\nof last year\n{END}\n\nThe end.\n", encoding="utf-8")
    for _ in range(2):
        assert document([str(page), str(measured / "report.json")]) == 0
        text = page.read_text(encoding="utf-8")
        assert text.startswith("# Title\n")
        assert text.endswith("The end.\n")
        assert "of last year" not in text
        assert text.count("| prose |") > 2
        assert text.count("### A title") == 1
        assert "](measured/report.svg)" in text
        assert (tmp_path / "measured/report.svg").read_text() == (
            measured / "report.svg"
        ).read_text()


def test_a_page_without_marks_is_left_alone(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n", encoding="utf-8")
    assert document([str(page), str(measured / "report.json")]) == 2
    assert "needs the marks" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == "# Title\n"
    assert not (tmp_path / "measured").exists()


def test_a_page_takes_no_other_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, other = tmp_path / "page.md", tmp_path / "other.json"
    page.write_text(f"{BEGIN}{END}", encoding="utf-8")
    other.write_text('{"format": 1}')
    assert document([str(page), str(other)]) == 2
    assert "other.json is no report" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == f"{BEGIN}{END}"


def test_the_page_of_the_documentation_has_its_marks() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/benchmarks.md").read_text(encoding="utf-8")
    assert (page.count(BEGIN), page.count(END)) == (1, 1)


def test_out_of_time_it_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    args = parse(
        *SMALL, "--modes", "ngram", "--workloads", "tools,prose", "--streams", "1", "--budget", "0"
    )
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert run(args) == 0
    assert (
        signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    )  # who ends it gets what there is, too
    printed, told = capsys.readouterr()
    assert "model: tools, ngram: 0 of 1 trials" in printed
    assert "model: prose, ngram: 0 of 1 trials" in printed
    assert told == "what passes cost: 0 of 4 pairs\n"


def test_streams_run_together(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    modes = ("--modes", "ngram", "--workloads", "hostile", "--streams", "2", "--json", str(file))
    assert run(parse(*SMALL, *modes)) == 0
    (result,) = json.loads(file.read_text())["results"]
    assert (result["streams"], result["errors"], result["divergences"]) == (2, 0, [])
    assert result["perfect_lookup"] is None
    assert set(result["reasons"]) == {"spec.paused.several_active"}


def test_without_a_draft_only_lookups_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    args = parse(
        *SMALL, "--workloads", "verbatim", "--streams", "1", "--quantize", "4", "--json", str(file)
    )
    assert run(args) == 0
    report = json.loads(file.read_text())
    assert [result["mode"] for result in report["results"]] == ["ngram", "auto"]
    assert report["draft_window"] is None
    assert "uint32" in report["models"]["model"]["model"]["dtype"]


def test_a_mode_that_nobody_can_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(parse(*SMALL, "--modes", "ngram,draft 4,chain")) == 2
    assert capsys.readouterr().err.startswith("draft 4, chain: without a draft model")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--modes", "draft 3"), "draft 3: choose from"),
        (("--workloads", "chess"), "chess: choose from"),
        (("--widths", "1,2"), "2 to 65 tokens wide"),
        (("--widths", "8,66"), "2 to 65 tokens wide"),
        (("--streams", "2-1"), "has no numbers"),
        (("--budget", "nan"), "not a number from 0 on"),
        (("--budget=-1",), "not a number from 0 on"),
    ],
)
def test_bad_values_are_named(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(*SMALL, *arguments)
    assert told in capsys.readouterr().err


def test_a_hybrid_of_another_vocabulary_cannot_recite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = shutil.copytree(HYBRID, tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    one, two = list(tokenizer["model"]["vocab"])[300:302]
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert run(parse(*SMALL, "--hybrid", str(other))) == 2
    assert "another vocabulary" in capsys.readouterr().err


def test_modes_cover_fixed_windows_and_every_strategy() -> None:
    assert [mode.name for mode in MODES[-4:]] == ["draft", "ngram", "chain", "auto"]
    assert [mode.window for mode in MODES if mode.window] == [1, 2, 4, 8, 16]
    assert [mode.name for mode in MODES if not mode.needs_draft] == ["ngram", "auto"]


def test_an_untrained_model_knows_nothing_and_leaves_the_other_alone() -> None:
    model = subject().model
    tokens = mx.arange(6)[None]
    before = model(tokens)
    other = untrained(model)
    assert other is not None
    assert mx.array_equal(before, model(tokens))
    assert not mx.allclose(before, other(tokens))
    assert untrained(None) is None


def test_a_checksum_sees_tokens_and_where_answers_end() -> None:
    assert checksum([(1, 2), (3,)]) == checksum([[1, 2], [3]])
    assert checksum([(1, 2), (3,)]) != checksum([(1,), (2, 3)])
    assert checksum([(1, 2)]) != checksum([(1, 3)])


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_margin_is_that_of_what_the_token_was_chosen_by(temperature: float) -> None:
    it = subject()
    asked = request((1, 2, 3, 4), 12, temperature=temperature, seed=7)
    (answer,) = engine(it.loop, [asked]).tokens
    for place, chosen in enumerate(answer):
        scores = seen_by_plain(it, asked, answer[:place])
        assert int(mx.argmax(scores)) == chosen
        *_, third, second, _ = (int(token) for token in mx.argsort(scores))
        to_second, to_third = (
            float(scores[chosen]) - float(scores[token]) for token in (second, third)
        )
        found = parting(it, asked, answer, (*answer[:place], third))
        assert found is not None
        assert found.token == place
        assert (found.margin, found.apart) == pytest.approx((to_second, to_third), abs=1e-5)
    assert parting(it, asked, answer, answer[:5]) == Parting(5, inf, inf)
    assert parting(it, asked, answer, answer) is None
