"""What is kept: PATCH semantics, whose files, and what is left of them after a kill."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from math import nan
from pathlib import Path

import pytest

from omlx.errors import ConfigError, Outdated
from omlx.settings.file import FORMAT, FileStamp, file_stamp, locked
from omlx.settings.layers import Source
from omlx.settings.schema import Scope, Setting, Value, table
from omlx.settings.store import GLOBAL_FILE, MODELS_FILE, Store
from omlx.settings.types import Form

MODEL = "org/name.with.dots"


def stored(store: Store, model: str | None = None) -> dict[str, Value]:
    return dict(store.read().layer(model).values)


def test_a_change_touches_only_what_it_names(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.patch({"speculation": "ngram", "draft_max": 8, "port": 9000})
    store.patch({"draft_max": 4})
    assert stored(store) == {"speculation": "ngram", "draft_max": 4, "port": 9000}
    store.patch({"draft_max": None, "temperature": None})
    assert stored(store) == {"speculation": "ngram", "port": 9000}
    store.patch({})
    assert json.loads((tmp_path / GLOBAL_FILE).read_text()) == {
        "format": "omlx-config/1",
        "defaults": {"speculative": {"speculation": "ngram"}},
        "server": {"port": 9000},
    }


def test_models_have_settings_of_their_own(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.patch({"draft_model": "a/b"}, MODEL)
    store.patch({"draft_model": "c/d"}, "other")
    assert stored(store, MODEL) == {"draft_model": "a/b"}
    assert stored(store, "other") == {"draft_model": "c/d"}
    assert stored(store, "third") == {}
    assert stored(store) == {}
    assert store.read().layer(MODEL).source == Source.MODEL
    assert store.read().layer().source == Source.GLOBAL
    store.patch({"draft_model": None}, MODEL)
    assert list(store.read().models) == ["other"]
    assert not (tmp_path / GLOBAL_FILE).exists()


def test_profiles_have_settings_of_their_own(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.patch({"temperature": 0.5}, MODEL)
    store.patch({"temperature": 0.1, "speculation": "off"}, MODEL, "fast")
    store.patch({"temperature": 0.9}, MODEL, "deep.1")
    kept = store.read()
    assert kept.layer(MODEL).values == {"temperature": 0.5}
    assert {name: layer.values for name, layer in kept.profiles(MODEL).items()} == {
        "fast": {"temperature": 0.1, "speculation": "off"},
        "deep.1": {"temperature": 0.9},
    }
    assert (kept.layer(MODEL, "fast").source, kept.profiles("other")) == (Source.PROFILE, {})
    with pytest.raises(Outdated):
        store.patch({"top_k": 1}, MODEL, "fast", expected=kept.revision(MODEL))
    store.patch({"temperature": None}, MODEL, "deep.1", expected=kept.revision(MODEL, "deep.1"))
    store.patch({"temperature": None}, MODEL)
    assert list(store.read().profiles(MODEL)) == ["fast"], "the last value takes it along"
    assert json.loads((tmp_path / MODELS_FILE).read_text())["models"][MODEL] == {
        "profiles": {
            "fast": {"sampling": {"temperature": 0.1}, "speculative": {"speculation": "off"}}
        }
    }


@pytest.mark.parametrize("name", ["draft_model", "alias", "max_context", "port"])
def test_a_profile_has_only_what_needs_no_copy_of_the_model(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Store(tmp_path).patch({name: "1"}, MODEL, "fast")
    assert caught.value.code == "config.not_stored"


@pytest.mark.parametrize(
    ("profiles", "code"),
    [
        ([], "config.object"),
        ({"latest": {}}, "config.profile_name"),
        ({"a:b": {}}, "config.profile_name"),
        ({"fast": 1}, "config.object"),
        ({"fast": {"sampling": {"heat": 1}}}, "config.key"),
        ({"fast": {"pool": {"alias": "x"}}}, "config.key"),
        ({"fast": {"sampling": {"temperature": 3}}}, "config.float"),
    ],
)
def test_a_profile_that_cannot_be_is_refused_where_it_stands(
    tmp_path: Path, profiles: object, code: str
) -> None:
    content = {"format": FORMAT, "models": {MODEL: {"profiles": profiles}}}
    (tmp_path / MODELS_FILE).write_text(json.dumps(content))
    with pytest.raises(ConfigError) as caught:
        Store(tmp_path).read()
    assert caught.value.code == code
    assert MODELS_FILE in caught.value.message


def sample(row: Setting, folder: Path) -> Value:
    """Return a valid value of a setting."""
    if row.form is Form.MAP:
        return ("a=x", "b=y")
    if row.meta.metavar == "ORIGIN":
        return ("a://x", "b://*")
    if row.meta.metavar == "NAME=COMMAND":
        return ("a=x", "b=http://y")
    if row.meta.metavar == "URL":
        return "http://x"
    if row.repeatable:
        return (folder / "x",) if row.kind is Path else ("a", "b")
    if row.choices:
        return row.choices[-1]
    if row.kind is Path:
        return folder / "x"
    high = row.meta.high
    samples = {str: "text", bool: True, int: int(high), float: high, dict: {"a": [1]}}
    value: Value = samples[row.kind]
    return value


def test_every_setting_that_may_be_kept_is_read_back_as_it_was(tmp_path: Path) -> None:
    rows = [row for row in table().values() if row.allowed_in(Scope.GLOBAL)]
    values = {row.name: sample(row, tmp_path) for row in rows}
    store = Store(tmp_path)
    store.patch(values)
    assert stored(store) == values


def test_a_change_to_another_state_than_expected_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    before = store.read().revision()
    store.patch({"port": 1}, expected=before)
    with pytest.raises(Outdated):
        store.patch({"port": 2}, expected=before)
    store.patch({"draft_max": 2}, MODEL, expected=store.read().revision(MODEL))
    assert stored(store) == {"port": 1}
    store.patch({"port": None})
    assert store.read().revision() == before


def test_a_folder_whose_name_is_no_text_is_kept(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(b"/data/caf\xe9"))
    store = Store(tmp_path)
    store.patch({"model_dir": (folder,)})
    assert stored(store) == {"model_dir": (folder,)}
    assert stored(Store(tmp_path)) == {"model_dir": (folder,)}


def test_a_stamp_changes_with_every_write(tmp_path: Path) -> None:
    store = Store(tmp_path / "home")

    def stamps() -> list[FileStamp]:
        return [file_stamp(path) for path in store.paths]

    seen = [stamps()]
    for model in (None, MODEL, None):
        store.patch({"draft_max": len(seen)}, model)
        assert stamps() not in seen
        seen.append(stamps())
        assert stored(store, model) == {"draft_max": len(seen) - 1}
        assert stamps() == seen[-1]


def test_files_are_private(tmp_path: Path) -> None:
    home = tmp_path / "not/there"
    Store(home).patch({"port": 1})
    assert home.stat().st_mode & 0o777 == 0o700
    assert (home / GLOBAL_FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in home.iterdir()] == [GLOBAL_FILE]


@pytest.mark.parametrize(
    ("changes", "model", "code"),
    [
        ({"porrt": 1}, None, "config.unknown"),
        ({"no_draft": True}, None, "config.not_stored"),
        ({"home": "/x"}, None, "config.not_stored"),
        ({"port": 9000}, MODEL, "config.not_stored"),
        ({"port": 70000}, None, "config.int"),
        ({"port": True}, None, "config.int"),
        ({"port": 1.5}, None, "config.int"),
        ({"num_draft_tokens": -1}, MODEL, "config.int"),
        ({"draft_download": "maybe"}, MODEL, "config.choice"),
        ({"prefix_dir": Path("/x\0")}, None, "config.nul"),
        ({"default_model": "a\0b"}, None, "config.nul"),
        ({"allow_host": ("good", "b\0d")}, None, "config.nul"),
        ({"draft_min": 9}, MODEL, "config.bounds"),
        ({"num_draft_tokens": 9}, MODEL, "config.bounds"),
    ],
)
def test_invalid_changes_are_refused_and_nothing_changes(
    tmp_path: Path, changes: dict[str, Value], model: str | None, code: str
) -> None:
    store = Store(tmp_path)
    store.patch({"port": 80})
    store.patch({"draft_max": 8}, MODEL)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigError) as caught:
        store.patch(changes, model)
    assert caught.value.code == code
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        (GLOBAL_FILE, {"defaults": {"speculativ": {}}}, "defaults.speculativ'"),
        (GLOBAL_FILE, {"defaults": {"speculative": {"draft": 1}}}, "defaults.speculative.draft'"),
        (GLOBAL_FILE, {"defaults": 5}, "defaults"),
        (GLOBAL_FILE, {"server": {"port": "80"}}, "server.port"),
        (
            GLOBAL_FILE,
            {"defaults": {"sampling": {"temperature": 10**400}}},
            "defaults.sampling.temperature",
        ),
        (GLOBAL_FILE, {"pool": {"memory_limit": f"{10**400}GB"}}, "memory_limit"),
        (GLOBAL_FILE, {"defaults": {"speculative": {"no_draft": True}}}, "no_draft"),
        (MODELS_FILE, {"model": {}}, "'model'"),
        (MODELS_FILE, {"models": {MODEL: {"server": {"port": 1}}}}, f"models.{MODEL}.server'"),
        (
            MODELS_FILE,
            {"models": {MODEL: {"speculative": {"draft_max": "4"}}}},
            f"models.{MODEL}.speculative.draft_max",
        ),
        (MODELS_FILE, {"models": []}, "models"),
        (
            MODELS_FILE,
            {"models": {MODEL: {"sampling": {"chat_template_kwargs": {"a": nan}}}}},
            "chat_template_kwargs",
        ),
    ],
)
def test_unknown_keys_and_wrong_values_in_a_file_are_named(
    tmp_path: Path, name: str, content: dict[str, object], named: str
) -> None:
    file = tmp_path / name
    file.write_text(json.dumps({"format": "omlx-config/1", **content}))
    before = file.read_bytes()
    store = Store(tmp_path)
    with pytest.raises(ConfigError) as caught:
        store.read()
    assert named in caught.value.message
    assert name in caught.value.message
    with pytest.raises(ConfigError):
        store.patch({"draft_max": 3}, None if name == GLOBAL_FILE else MODEL)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b'{"version": 3, "server": {"port": 1}}', "config.foreign"),
        (b"[1, 2]", "config.foreign"),
        (b"", "config.foreign"),
        (b"host: 0.0.0.0\n", "config.foreign"),
        (b'{"format": "another/1"', "config.foreign"),
        (b"\xff\xfe\x00", "config.foreign"),
        (b'{"format": "omlx-config/2", "server": {"port": 1}}', "config.other_format"),
    ],
)
def test_files_of_other_programs_are_ignored_and_never_changed(
    tmp_path: Path, content: bytes, code: str
) -> None:
    file = tmp_path / GLOBAL_FILE
    file.write_bytes(content)
    file.chmod(0o644)
    store = Store(tmp_path)
    assert [note.code for note in store.read().notes] == [code]
    assert stored(store) == {}
    with pytest.raises(ConfigError, match="will not be changed"):
        store.patch({"port": 1})
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (content, 0o644)
    assert [path.name for path in tmp_path.iterdir()] == [GLOBAL_FILE]


def test_a_file_that_is_broken_from_the_start_is_kept_aside_where_that_is_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for port in (1, 2):
        store = Store(tmp_path)
        broken = b'{"format": "omlx-config/1", "server": {"port": %d,}}' % port
        (tmp_path / GLOBAL_FILE).write_bytes(broken)
        assert [note.code for note in store.read().notes] == ["config.broken"]
        assert (stored(store), (tmp_path / GLOBAL_FILE).read_bytes()) == ({}, broken)
        caplog.clear()
        (note,) = store.read(rename_broken=True).notes
        assert note.code == "config.corrupt"
        kept = Path(str(note.params["kept"]))
        assert kept.name.startswith("config.json.corrupt-")
        assert (kept.read_bytes(), str(kept) in note.message) == (broken, True)
        (record,) = caplog.records
        assert (record.levelno, record.getMessage()) == (logging.WARNING, "config.json kept aside")
    store.patch({"port": 3})
    assert stored(store) == {"port": 3}
    assert len(list(tmp_path.glob("config.json.corrupt-*"))) == 2
    assert store.read().notes == (note,)
    kept.unlink()
    assert store.read().notes == ()


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (b'{"format": "omlx-config/1", "server": {"port"', "config.broken"),
        (b'{"format": "omlx-config/1", "server": {"prt": 1}}', "config.key"),
        (b'{"format": "omlx-config/1", "server": {"port": -1}}', "config.int"),
        (b"", "config.foreign"),
    ],
)
def test_an_invalid_file_keeps_its_last_valid_content_and_is_reported(
    tmp_path: Path, broken: bytes, code: str
) -> None:
    store, file = Store(tmp_path), tmp_path / GLOBAL_FILE
    store.patch({"port": 1, "api_key": "k"})
    right, revision = file.read_bytes(), store.read().revision()
    file.write_bytes(broken)
    assert stored(store) == {"port": 1, "api_key": "k"}
    assert store.read().revision() == revision
    assert [note.code for note in store.read().notes] == [code]
    assert (file.read_bytes(), len(list(tmp_path.iterdir()))) == (broken, 1)
    file.write_bytes(right.replace(b"1,", b"2,"))
    assert (stored(store), store.read().notes) == ({"port": 2, "api_key": "k"}, ())


def test_a_file_that_cannot_be_opened_any_more_counts_as_it_was(tmp_path: Path) -> None:
    store, file = Store(tmp_path), tmp_path / GLOBAL_FILE
    store.patch({"port": 1})
    assert stored(store) == {"port": 1}
    file.unlink()
    file.mkdir()
    assert stored(store) == {"port": 1}
    assert [note.code for note in store.read().notes] == ["config.unreadable"]
    with pytest.raises(ConfigError, match="cannot be read"):
        stored(Store(tmp_path))


def test_a_change_takes_the_place_of_what_cannot_be_parsed_and_loses_nothing(
    tmp_path: Path,
) -> None:
    store, file = Store(tmp_path), tmp_path / MODELS_FILE
    store.patch({"draft_max": 3}, "other")
    store.patch({"draft_max": 2, "draft_min": 1}, MODEL)
    revision = store.read().revision(MODEL)
    broken = file.read_bytes()[:-10]
    file.write_bytes(broken)
    store.patch({"draft_max": 4}, MODEL, expected=revision)
    assert stored(Store(tmp_path), MODEL) == {"draft_max": 4, "draft_min": 1}
    assert stored(store, "other") == {"draft_max": 3}
    (kept,) = tmp_path.glob("models.json.corrupt-*")
    assert kept.read_bytes() == broken
    assert [note.code for note in store.read().notes] == ["config.corrupt"]


def test_a_file_repaired_in_the_meantime_is_not_renamed(tmp_path: Path) -> None:
    store, file = Store(tmp_path), tmp_path / GLOBAL_FILE
    good = tmp_path / "good"
    good.write_text(json.dumps({"format": FORMAT, "server": {"port": 7}}))
    os.mkfifo(file)  # a reader waits until something is written into it
    with ThreadPoolExecutor() as threads:
        with locked(tmp_path):
            reader = threads.submit(store.read, rename_broken=True)
            file.write_text('{"format": "omlx-config/1"')
            good.rename(file)
        assert reader.result().notes == ()
    assert stored(store) == {"port": 7}
    assert [path.name for path in tmp_path.iterdir()] == [GLOBAL_FILE]


def test_a_link_is_written_through(tmp_path: Path) -> None:
    home, real = tmp_path / "home", tmp_path / "real"
    for folder in (home, real):
        folder.mkdir()
        folder.chmod(0o755)
    (home / GLOBAL_FILE).symlink_to(real / "mine.json")
    Store(home).patch({"port": 5})
    assert (home / GLOBAL_FILE).is_symlink()
    assert "5" in (real / "mine.json").read_text()
    modes = [path.stat().st_mode & 0o777 for path in (home, real, real / "mine.json")]
    assert modes == [0o700, 0o755, 0o600]


EVERY_STEP = """
import os, signal, sys
from itertools import count
from pathlib import Path
from omlx.settings.file import locked, read, write

path, left = Path(sys.argv[1]), 0
old, new = {"at": 1}, {"at": 2, "more": ["x" * 500] * 50}

def watch(frame, event, argument):
    global left
    left -= event in ("c_call", "c_return")
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)

def save(values):
    with locked(path.parent):
        write(path, values)

save(old)
seen = []
for step in count():
    if not (child := os.fork()):
        left = step
        sys.setprofile(watch)
        save(new)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    found = read(path)
    assert (found.values, found.note) in ((old, None), (new, None)), (step, path.read_bytes()[:80])
    seen.append(found.values["at"])
    if os.waitstatus_to_exitcode(status) == 0:
        break
    save(old)
assert seen == sorted(seen), seen
print(*map(seen.count, (1, 2)))
"""


def test_a_kill_at_any_step_of_a_save_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-c", EVERY_STEP, str(tmp_path / GLOBAL_FILE)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    # Before the new one is there, and after.
    assert all(int(kills) > 3 for kills in said.stdout.split()), said.stdout
    assert GLOBAL_FILE in (path.name for path in tmp_path.iterdir())


def test_two_processes_do_not_lose_each_others_changes(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from omlx.settings.store import Store
for number in range(60):
    Store(Path(sys.argv[1])).patch({"draft_max": number % 60 + 1}, sys.argv[2])
"""
    models = ["a", "b", "c"]
    running = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path), model]) for model in models
    ]
    assert [process.wait() for process in running] == [0, 0, 0]
    store = Store(tmp_path)
    assert {model: stored(store, model) for model in store.read().models} == {
        m: {"draft_max": 60} for m in models
    }
