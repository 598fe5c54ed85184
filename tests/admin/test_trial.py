"""Trials with bundled models: complete, interrupted, cancelled, applied; with a picture."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from markupsafe import escape

from omlx.admin.trial_view import (
    OutcomeView,
    charts,
    estimate_record,
    outcome_view,
    report_record,
    trial_card,
)
from omlx.admin.web.rendering import render
from omlx.catalog import catalog
from omlx.errors import Reason
from omlx.measure.planning import Estimate
from omlx.measure.runner import State
from omlx.measure.sample import Sample
from omlx.measure.samples import Place, TrialConfiguration, verdict
from omlx.measure.texts import Kind
from omlx.measure.trial import Plan, Trial
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry, Registry
from omlx.server.http.transport import Json
from omlx.settings.store import Store
from tests.admin.running import API, Administered, administered
from tests.server.media.pictures import some_uri
from tests.server.running import DEMO, DRAFT, HYBRID, SEEING, TARGET, VISION, VISION_DRAFT
from tests.storage import homes

TRIAL = f"{API}/models/{TARGET}/trial"
SMALL: dict[str, Any] = {"drafts": [DRAFT], "kinds": ["code", "data"], "tokens": 16}
SETUPS = ["off", "ngram", f"draft:{DRAFT}", f"auto:{DRAFT}"]


@pytest.fixture
def copied(tmp_path: Path) -> Registry:
    """The bundled models in writable folders."""
    entries = []
    for entry in DEMO.entries:
        folder = tmp_path / "models" / entry.id
        shutil.copytree(BUNDLED / entry.id, folder)
        entries.append(ModelEntry(entry.id, folder, "test"))
    return Registry(tuple(entries))


@pytest.fixture
def own(tmp_path: Path, copied: Registry) -> Iterator[Administered]:
    with administered(tmp_path / "home", copied) as running:
        yield running


def events(client: httpx.Client, trial: str = TRIAL) -> Iterator[dict[str, Any]]:
    """Yield the reports of the trial until it is over, with a new stream after each one."""
    report: dict[str, Any] = {}
    while report.get("state") not in ("done", "cancelled", "failed"):
        with client.stream("GET", f"{trial}/events") as stream:
            assert stream.status_code == 200
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    report = json.loads(line.removeprefix("data: "))
                    yield report


def to_the_end(client: httpx.Client, **body: Any) -> dict[str, Any]:
    assert client.post(TRIAL, json=SMALL | body).status_code == 202
    *_, last = events(client)
    return last


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def stored(server: Administered) -> dict[str, Any]:
    return dict(Store(server.home).read().layer(TARGET).values)


def test_from_the_estimate_to_the_verdict_and_back(own: Administered) -> None:
    with own.browser() as client:
        estimate = client.post(f"{TRIAL}/estimate", json=SMALL).json()
        assert 0 < estimate["least_s"] < estimate["most_s"]
        assert estimate["fits"]
        assert own.running.engine.submissions == 0

        assert client.post(TRIAL, json=SMALL).status_code == 202
        assert code(client.post(TRIAL, json=SMALL)) == (409, "trial.running")
        reports = list(events(client))
        done = [report["done"] for report in reports]
        last = reports[-1]
        assert done == sorted(done)
        assert len(set(done)) > 3
        assert any(report["now"] and report["now"]["tokens"] for report in reports)
        assert last["state"] == "done", last["reason"]
        assert [setup["name"] for setup in last["setups"]] == SETUPS
        # An answer that was accepted whole in its first round has no rate; a plain one always has.
        for cell in last["cells"]:
            least = last["rounds"] if cell["setup"] == "off" else 1
            assert least <= cell["samples"] <= last["rounds"], cell
        assert last["exact"]["same"] == last["exact"]["of"] == last["rounds"] * 2 * 3
        assert last["verdict"]["code"].startswith("trial.verdict.")
        assert last["verdict"]["message"]

        shown = client.get(TRIAL).json()
        assert shown["last"]["record"]["verdict"] == last["verdict"]
        assert shown["last"]["stale"] == []
        assert set(shown["results"]) == {DRAFT}
        assert not client.post(f"{TRIAL}/estimate", json=SMALL).json()["guessed"]

        Store(own.home).patch({"draft_max": 9, "speculation": "ngram"}, TARGET)
        before = stored(own)
        applied = client.post(f"{TRIAL}/apply", json={"setup": f"auto:{DRAFT}"})
        assert applied.status_code == 200, applied.text
        assert applied.json()["takes"] == {"speculation": "at_once", "draft_model": "at_once"}
        assert stored(own) == {"draft_max": 9, "speculation": "auto", "draft_model": DRAFT}
        assert client.post(f"{TRIAL}/undo").status_code == 200
        assert stored(own) == before
        assert code(client.post(f"{TRIAL}/undo")) == (409, "trial.nothing_applied")

        written = client.post(f"{TRIAL}/write", json={"setup": f"auto:{DRAFT}"}).json()
        package = json.loads(Path(written["file"]).read_text())
        assert (
            package["generation"]["speculative_decoding"]["strategies"]["draft"]["draft_model"]
            == DRAFT
        )


def test_other_requests_take_precedence_and_discard_a_sample(server: Administered) -> None:
    with server.browser() as client, server.browser(logged_in=False) as user:
        client.post(TRIAL, json=SMALL | {"tokens": 512, "kinds": ["prose"]})
        following = events(client)
        next(report for report in following if report["now"] and report["now"]["tokens"] > 8)
        body = {
            "model": TARGET,
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": 8,
        }
        assert user.post("/v1/chat/completions", json=body).status_code == 200
        paused = next(report for report in following if report["state"] == "paused")
        assert paused["discarded"] == 1
        resumed = next(
            report for report in following if report["state"] == "running" and report["now"]
        )
        assert resumed["done"] == paused["done"]
        stopped = client.post(f"{TRIAL}/cancel").json()
        assert (stopped["state"], stopped["verdict"]) == ("cancelled", None)
        assert [report["state"] for report in following][-1:] == ["cancelled"]
        assert code(client.post(f"{TRIAL}/cancel")) == (409, "trial.not_running")
        assert user.post("/v1/chat/completions", json=body).status_code == 200


@pytest.mark.slow
def test_the_configured_draft_is_back_afterwards(server: Administered) -> None:
    pool = server.running.pool
    with server.browser() as client:
        client.post(f"{API}/models/{TARGET}/load")
        assert pool.status(TARGET).draft is None
        assert to_the_end(client, kinds=["data"])["state"] == "done"
        body = {
            "model": TARGET,
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": 4,
        }
        client.post("/v1/chat/completions", json=body)
        assert pool.status(TARGET).draft is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"drafts": [HYBRID]}, "draft.unfit.same_model"),
        ({"drafts": ["omlx-demo/none"]}, "draft.not_here"),
        ({"drafts": ["../../etc"]}, "draft.malformed"),
        ({"drafts": ["a", "b", "c", "d"]}, "request.too_many"),
        ({"kinds": []}, "trial.no_kind"),
        ({"kinds": ["poems"]}, "request.invalid"),
        ({"kinds": ["conversation"]}, "trial.no_conversation"),
        ({"tokens": 4}, "request.range"),
        ({"tokens": 100000}, "request.range"),
        ({"windows": 3}, "request.invalid"),
    ],
)
def test_an_invalid_trial_is_refused_with_its_field(
    server: Administered, body: dict[str, Any], reason: str
) -> None:
    with server.browser() as client:
        other = f"{API}/models/{HYBRID}/trial"
        for path in (other, f"{other}/estimate"):
            answer = client.post(path, json=body)
            assert code(answer) == (400, reason), answer.text
            assert answer.json()["error"]["param"].partition("[")[0] in body
        assert client.get(other).json()["running"] is None


def test_unknown_models_and_missing_results_are_refused(server: Administered) -> None:
    with server.browser() as client:
        assert client.post(f"{API}/models/omlx-demo/none/trial", json=SMALL).status_code == 404
        other = f"{API}/models/{HYBRID}/trial"
        assert code(client.post(f"{other}/apply")) == (409, "trial.no_result")
        assert code(client.get(f"{other}/events")) == (409, "trial.not_running")


def test_the_last_conversation_can_be_tried_and_is_not_stored(own: Administered) -> None:
    secret = "the heron under the copper bridge"
    with own.browser() as client:
        body = {
            "model": TARGET,
            "messages": [{"role": "user", "content": f"Repeat: {secret}"}],
            "max_tokens": 8,
        }
        assert client.post("/v1/chat/completions", json=body).status_code == 200
        assert client.get(TRIAL).json()["conversation"]
        last = to_the_end(client, kinds=["conversation"])
        assert last["state"] == "done"
        assert {cell["kind"] for cell in last["cells"]} == {"conversation"}
    files = [path for path in own.home.rglob("*") if path.is_file()]
    assert homes.measured(own.home, "trials")
    assert not [path for path in files if b"heron" in path.read_bytes()]


SMALL_DRAFT = "org/small"
AUTO = TrialConfiguration("auto", SMALL_DRAFT)
SETUP_NAMES = ["off", "ngram", f"draft:{SMALL_DRAFT}", f"auto:{SMALL_DRAFT}"]
STATUS: Json = {"model": "org/big", "trial": None, "last": None, "applied": None}


def outcome(**fields: Any) -> OutcomeView:
    """The outcome of a trial with one measured place."""
    trial = Trial(Plan("org/big", (SMALL_DRAFT,), (Kind.CODE,), 100))
    for name, value in fields.items():
        setattr(trial, name, value)
    place = Place(0, SMALL_DRAFT, Kind.CODE, AUTO)
    tokens = (tuple(range(101)),)
    trial.samples.by_place[place.plain] = Sample(tokens, 100, 1.0)
    trial.samples.by_place[place] = Sample(tokens, 100, 0.5, proposed=80, accepted=60)
    return outcome_view({**STATUS, "trial": report_record(trial.report(), "en")})


def html(view: OutcomeView) -> str:
    return render("trial/outcome.html", "en", view=view)


def test_a_running_trial_shows_its_progress() -> None:
    place = Place(0, SMALL_DRAFT, Kind.CODE, AUTO)
    view = outcome(now=place, now_tokens=25, discarded=1, spent_s=2.0)
    assert view.running
    (chart,) = view.trial_charts
    assert chart.kind == "code"
    assert [bar.setup["name"] for bar in chart.bars] == SETUP_NAMES
    assert [bar.share for bar in chart.bars] == [50.0, 0.0, 0.0, 100.0]
    shown = html(view)
    assert 'value="2.25" max="12"' in shown
    assert "code edits: auto with small" in shown
    assert "10\u202fs" in shown
    assert "Measuring" in shown


def test_figures_of_a_busy_machine_are_not_shown_nor_applied() -> None:
    trial = Trial(Plan("org/big", (SMALL_DRAFT,), (Kind.CODE,), 100))
    tokens = (tuple(range(101)),)
    for number in range(3):
        place = Place(number, SMALL_DRAFT, Kind.CODE, AUTO)
        trial.samples.by_place[place.plain] = Sample(tokens, 100, 1.0)
        trial.samples.by_place[place] = Sample(tokens, 100, 0.5, others_s=1.0, machine_s=2.0)
    trial.verdict = verdict(trial.samples, trial.plan.configurations, trial.plan.kinds)
    record = report_record(trial.report(), "en")
    last = {"record": record, "at": 0.0, "stale": []}
    shown = html(outcome_view({**STATUS, "last": last}))
    assert catalog()["trial.verdict.busy"] in shown
    assert shown.count(f">{catalog()['ui.measure.busy']}<") == 2  # at the bar and in the table
    assert "try-apply" in shown  # of what was measured undisturbed
    assert f'data-setup="{AUTO.name}"' not in shown
    assert 'id="try-apply"' not in shown


def test_a_paused_trial_says_so() -> None:
    view = outcome(state=State.PAUSED)
    assert view.running
    assert catalog()["ui.try.paused"] in html(view)


def test_a_cancelled_trial_shows_neither_progress_nor_result() -> None:
    view = outcome(state=State.CANCELLED)
    assert (view.running, view.trial_charts, view.last_charts) == (False, (), ())
    assert html(view).strip() == f'<p class="hint">{catalog()["ui.try.cancelled"]}</p>'


def test_a_failed_trial_shows_its_reason() -> None:
    reason = Reason("model.no_weights", {"path": "/m"})
    view = outcome(state=State.FAILED, reason=reason)
    assert html(view).strip() == f'<p class="hint hint-wait">{escape(reason.message)}</p>'


@pytest.mark.parametrize(
    ("drafts", "likely", "checked"),
    [
        (["small", "large"], ["large"], ["large"]),
        (["small", "large"], [], ["small"]),
        (["a", "b", "c", "d"], ["a", "b", "c", "d"], ["a", "b", "c"]),
        ([], [], []),
    ],
)
def test_likely_drafts_are_checked_else_the_first(
    drafts: list[str], likely: list[str], checked: list[str]
) -> None:
    card = trial_card(STATUS, dict.fromkeys(drafts, 1), likely)
    assert card.checked == checked


def test_an_estimate_has_sentences() -> None:
    estimate = Estimate(100.0, 200.0, False, 0, 16_000_000_000, True)
    assert [reason["code"] for reason in estimate_record(estimate)["said"]] == [
        "trial.estimate.time",
        "trial.estimate.no_memory",
    ]
    guessed = Estimate(100.0, 101.0, True, 2_000_000_000, 1_000_000_000, False)
    assert [reason["code"] for reason in estimate_record(guessed)["said"]] == [
        "trial.estimate.about",
        "trial.estimate.no_room",
        "trial.estimate.guessed",
    ]


def test_bars_are_as_long_as_the_speedups_beside_them_say() -> None:
    """Medians of rates may have another ratio than the median of paired ratios."""

    def cell(setup: str, rate: float, speedup: float | None = None) -> Json:
        spread = None
        if speedup is not None:
            spread = {"median": speedup, "low": 1.9, "high": 2.6, "gain": "faster"}
        record = {"setup": setup, "kind": "code", "rate": {"median": rate}, "speedup": spread}
        return {**record, "acceptance": None}

    setups = [
        {"name": "off", "strategy": "off", "draft": None},
        {"name": f"draft:{SMALL_DRAFT}", "strategy": "draft", "draft": SMALL_DRAFT},
    ]
    cells = [cell("off", 42.1), cell(f"draft:{SMALL_DRAFT}", 225.0, 2.0)]
    (chart,) = charts({"setups": setups, "kinds": ["code"], "cells": cells})
    assert [bar.share for bar in chart.bars] == [50.0, 100.0]


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    with administered(tmp_path_factory.mktemp("home"), SEEING, default=VISION) as running:
        yield running


@pytest.mark.needs_extra
def test_questions_about_a_picture_are_measured(seeing: Administered) -> None:
    picture, trial = some_uri(90, 70), f"{API}/models/{VISION}/trial"
    body = {"drafts": [VISION_DRAFT], "kinds": ["picture"], "tokens": 16, "picture": picture}
    with seeing.browser() as client:
        assert client.post(f"{trial}/estimate", json=body).json()["fits"]
        assert client.post(trial, json=body).status_code == 202
        *_, report = events(client, trial)
    assert report["state"] == "done", report["reason"]
    assert seeing.running.engine.newest is not None
    assert seeing.running.engine.newest.spans
    assert report["kinds"] == ["picture"]
    assert report["exact"]["same"] == report["exact"]["of"] > 0
    assert {cell["samples"] for cell in report["cells"]} == {report["rounds"]}
    kept = [file.read_bytes() for file in Path(seeing.home).rglob("*") if file.is_file()]
    assert any(b'"kinds":["picture"]' in content for content in kept)
    assert not any(picture[40:80].encode() in content for content in kept)


@pytest.mark.needs_extra
@pytest.mark.parametrize(
    ("model", "picture", "code", "param"),
    [
        (VISION, "", "trial.no_picture", "picture"),
        (VISION, "data:image/png;base64,AAAA", "image.format", "picture"),
        (VISION, "/etc/passwd", "image.source", "picture"),
        (TARGET, some_uri(9, 9), "image.model", "picture"),
    ],
)
def test_a_picture_that_cannot_be_read_is_named(
    seeing: Administered, model: str, picture: str, code: str, param: str
) -> None:
    body = {"kinds": ["picture"], "picture": picture}
    with seeing.browser() as client:
        answer = client.post(f"{API}/models/{model}/trial/estimate", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, code, param)
