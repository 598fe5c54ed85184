"""`omlx config`, `omlx keys` and `omlx package`, inside this process."""

from __future__ import annotations

import json
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from omlx.cli.main import main
from omlx.cli.serve.address import published
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.package import window_from
from tests.cli.inside import Capture
from tests.models.trees import LLAMA, model

TARGET = "omlx-demo/target"


def said(capture: Capture, *arguments: str, status: int = 0) -> str:
    """What a command writes; errors too where it fails."""
    assert main(arguments) == status
    out, errors = capture.readouterr()
    return out.strip() if status == 0 else errors.strip()


def test_set_get_unset_list(alone: Path, capsys: Capture) -> None:
    assert said(capsys, "config", "get", "speculation") == "auto"
    said(capsys, "config", "set", "speculation", "ngram:m=16;draft")
    said(capsys, "config", "set", "draft-max", "8", "--model", "target")
    said(capsys, "config", "set", "allow_host", "a,b")
    assert said(capsys, "config", "get", "speculation") == "ngram:m=16;draft"
    listed = json.loads(said(capsys, "config", "list", "--json"))
    assert listed["speculation"] == {"value": "ngram:m=16;draft", "source": "global"}
    assert listed["allow_host"] == {"value": ["a", "b"], "source": "global"}
    assert listed["draft_max"] == {"value": None, "source": "built_in"}
    own = {
        line.split()[0]: line.split()[1:]
        for line in said(capsys, "config", "list", "--model", TARGET).splitlines()
    }
    assert own["draft_max"] == ["8", "this", "model's", "settings"]
    assert own["speculation"] == ["ngram:m=16;draft", "settings", "for", "all", "models"]
    assert "port" not in own
    said(capsys, "config", "unset", "speculation")
    assert said(capsys, "config", "get", "speculation") == "auto"
    assert said(capsys, "config", "path") == str(alone / ".omlx/config.json")
    assert said(capsys, "config", "path", "--model", TARGET) == str(alone / ".omlx/models.json")


def test_a_profile_is_made_listed_and_removed(alone: Path, capsys: Capture) -> None:
    of_fast = "--model", "target", "--profile", "fast"
    said(capsys, "config", "set", "temperature", "0.5", "--model", "target")
    said(capsys, "config", "set", "speculation", "off", *of_fast)
    said(capsys, "config", "set", "temperature", "0", *of_fast)
    assert said(capsys, "config", "get", "temperature", *of_fast) == "0.0"
    assert said(capsys, "config", "get", "temperature", "--model", "target") == "0.5"
    listed = json.loads(said(capsys, "config", "list", "--json", *of_fast))
    assert listed["speculation"] == {"value": "off", "source": "profile"}
    assert listed["top_p"] == {"value": None, "source": "built_in"}
    assert {"draft_model", "alias", "port"}.isdisjoint(listed)
    models = said(capsys, "models").splitlines()
    at = next(at for at, line in enumerate(models) if line.split()[0] == TARGET)
    assert models[at + 1].split() == [f"{TARGET}:fast", "profile"]
    records = {entry["id"]: entry for entry in json.loads(said(capsys, "models", "--json"))}
    assert records[TARGET]["profiles"] == [f"{TARGET}:fast"]
    said(capsys, "config", "unset", "speculation", *of_fast)
    said(capsys, "config", "unset", "temperature", *of_fast)
    words = said(capsys, "config", "list", *of_fast, status=2)
    assert f"'{TARGET}:fast' not found" in words


def test_a_value_that_another_source_overrides_is_kept_and_said(
    alone: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_PORT", "9001")
    assert main(["config", "set", "port", "9000"]) == 0
    assert "not in effect: port is 9001" in capsys.readouterr().err
    monkeypatch.delenv("OMLX_PORT")
    assert said(capsys, "config", "get", "port") == "9000"


def test_a_key_is_never_shown(alone: Path, capsys: Capture) -> None:
    said(capsys, "config", "set", "api_key", "a-secret")
    shown = [
        said(capsys, "config", *words)
        for words in (["get", "api_key"], ["list"], ["list", "--json"])
    ]
    assert not any("a-secret" in text for text in shown)
    assert all("********" in text for text in shown)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["set", "porrt", "1"], "Unknown setting 'porrt'"),
        (["set", "port", "http"], "port: 'http'"),
        (["set", "no_draft", "1"], "'no_draft' cannot be stored"),
        (["set", "speculation", "ngram:q=1"], "Column 7"),
        (["set", "speculation", "medusa"], "medusa"),
        (["set", "draft_max", "0"], "draft_max"),
        (["set", "draft_model", "./small"], "'./small' is not a model name"),
        (["set", "draft_model", TARGET, "--model", "target"], "is the target model itself"),
        (["set", "draft_max", "4", "--model", "org/none"], "Model 'org/none' not found"),
        (["set", "port", "1", "--model", TARGET], "'port' cannot be stored"),
        (["set", "top_k", "1", "--profile", "fast"], "--profile needs --model"),
        (["set", "top_k", "1", "--model", TARGET, "--profile", "latest"], "not 'latest'"),
        (["set", "draft_model", "a/b", "--model", TARGET, "--profile", "x"], "cannot be stored"),
        (["get", "top_k", "--model", TARGET, "--profile", "x"], f"Available: {TARGET}"),
    ],
)
def test_what_cannot_be_is_refused(
    alone: Path, capsys: Capture, arguments: list[str], words: str
) -> None:
    assert words in said(capsys, "config", *arguments, status=2)
    assert not (alone / ".omlx").exists() or not list((alone / ".omlx").glob("*.json"))


def test_files_of_others_are_said_to_be_left_alone(alone: Path, capsys: Capture) -> None:
    (alone / ".omlx").mkdir()
    (alone / ".omlx/config.json").write_text('{"model_dirs": []}')
    assert main(["config", "list"]) == 0
    assert "not written by omlx" in capsys.readouterr().err
    assert "will not be changed" in said(capsys, "config", "set", "port", "1", status=2)
    assert (alone / ".omlx/config.json").read_text() == '{"model_dirs": []}'


def test_a_model_that_cannot_be_used_yet_may_have_settings(alone: Path, capsys: Capture) -> None:
    model(alone / ".omlx/models/org/own-code", {**LLAMA, "model_file": "own.py"})
    said(capsys, "config", "set", "trust_remote_code", "on", "--model", "own-code")
    assert said(capsys, "config", "get", "trust_remote_code", "--model", "org/own-code") == "on"
    assert json.loads((alone / ".omlx/models.json").read_text())["models"].keys() == {
        "org/own-code"
    }
    said(capsys, "config", "unset", "trust_remote_code", "--model", "own-code")
    assert said(capsys, "config", "get", "trust_remote_code", "--model", "own-code") == "off"


@pytest.mark.parametrize(
    ("name", "value", "said_so"),
    [("port", "9000", True), ("api_key", "a-secret", True), ("draft_max", "8", False)],
)
def test_what_a_running_server_does_not_take_up_is_said(
    alone: Path, capsys: Capture, name: str, value: str, said_so: bool
) -> None:
    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"status": "ok"}')

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Health) as server, ThreadPoolExecutor() as threads:
        threads.submit(server.serve_forever, 0.01)
        address = f"http://127.0.0.1:{server.server_port}"
        try:
            with published(alone / ".omlx", address):
                for words in (["set", name, value], ["unset", name]):
                    assert main(["config", *words]) == 0
                    assert (
                        f"server at {address} keeps its current value " in capsys.readouterr().err
                    ) is said_so
        finally:
            server.shutdown()
    said(capsys, "config", "set", name, value)


def test_without_a_home_folder_one_has_to_be_named(
    alone: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "~no-such-user/x" in said(
        capsys, "config", "list", "--home", "~no-such-user/x", status=2
    )
    monkeypatch.setenv("OMLX_MODEL_DIR", "~no-such-user")
    assert "OMLX_MODEL_DIR: the home folder" in said(capsys, "config", "list", status=2)
    monkeypatch.delenv("OMLX_MODEL_DIR")
    monkeypatch.delenv("OMLX_HOME")
    monkeypatch.setenv("HOME", "somewhere")
    assert "OMLX_HOME: the home folder" in said(capsys, "config", "list", status=2)
    monkeypatch.setenv("OMLX_HOME", str(alone / "there"))
    assert said(capsys, "config", "path") == str(alone / "there/config.json")


@pytest.fixture
def folder(alone: Path) -> Path:
    """A copy of the demo target."""
    return Path(shutil.copytree(BUNDLED / TARGET, alone / ".omlx/models/big"))


def declared(folder: Path) -> dict[str, object]:
    block = json.loads((folder / "model-package.json").read_text())["generation"][
        "speculative_decoding"
    ]
    strategy: dict[str, object] = block["strategies"][block["default"]]
    return strategy


def test_write_check_show(folder: Path, capsys: Capture) -> None:
    assert "declares no speculation" in said(capsys, "package", "check", "big")
    said(capsys, "package", "write", "big", "--draft", "draft", "--window", "adaptive:16,2,16")
    window = {"default": "adaptive", "initial_window": 16, "min_window": 2, "max_window": 16}
    size = (BUNDLED / "omlx-demo/draft/model.safetensors").stat().st_size
    assert declared(folder) == {
        "type": "draft-model",
        "draft_model": "omlx-demo/draft",
        "size_bytes": size,
        "window_policy": window,
    }
    assert "can be used" in said(capsys, "package", "check", str(folder))
    shown = json.loads(said(capsys, "package", "show", "big", "--json"))
    assert (shown["speculation"]["draft"], shown["speculation"]["draft_source"]) == (
        "omlx-demo/draft",
        "package",
    )
    assert "omlx pull omlx-demo/draft" in said(capsys, "package", "show", "big", "--no-bundled")
    assert "not on this machine" in said(
        capsys, "package", "check", "big", "--no-bundled", status=2
    )


def test_what_else_the_file_holds_is_kept(folder: Path, capsys: Capture) -> None:
    other = {"type": "ngram", "shortest_match": 4}
    block = {"default": "lookup", "strategies": {"lookup": other}}
    content = {"name": "mine", "generation": {"speculative_decoding": block, "temperature": 1}}
    (folder / "model-package.json").write_text(json.dumps(content))
    said(capsys, "package", "write", "big", "--draft", "draft", "--name", "small")
    after = json.loads((folder / "model-package.json").read_text())
    assert (after["name"], after["generation"]["temperature"]) == ("mine", 1)
    assert after["generation"]["speculative_decoding"]["strategies"]["lookup"] == other
    assert after["generation"]["speculative_decoding"]["default"] == "small"


@pytest.mark.parametrize(
    "content", ['{"generation": null}', '{"generation": {"speculative_decoding": null}}']
)
def test_null_is_as_absent(folder: Path, capsys: Capture, content: str) -> None:
    (folder / "model-package.json").write_text(content)
    assert "declares no speculation" in said(capsys, "package", "check", "big")
    said(capsys, "package", "write", "big", "--draft", "draft")
    assert declared(folder)["draft_model"] == "omlx-demo/draft"


def test_the_window_may_come_from_a_benchmark(
    folder: Path, capsys: Capture, tmp_path: Path
) -> None:
    window = {"default": "fixed", "initial_window": 3, "min_window": 3, "max_window": 3}
    bench = tmp_path / "bench.json"
    bench.write_text(json.dumps({"draft_window": window}))
    write = ["package", "write", "big", "--draft", "draft", "--from-bench"]
    assert f"Draft length: fixed:3, from {bench}" in said(capsys, *write, str(bench))
    assert declared(folder)["window_policy"] == window
    both = said(capsys, *write, str(bench), "--window", "adaptive:16,2,16")
    assert "Draft length: adaptive:16,2,16, from --window" in both
    assert f"{bench} has the draft length fixed:3; --window takes precedence" in both
    assert declared(folder)["window_policy"] == window_from("adaptive:16,2,16").to_json()
    bench.write_text("{}")
    assert "draft_window" in said(capsys, *write, str(bench), status=2)
    assert "not found" in said(capsys, *write, str(tmp_path / "none.json"), status=2)


@pytest.mark.parametrize(
    ("draft", "window", "words"),
    [
        ("draft", "adaptive:16,20,16", "min_window (20) is greater than max_window (16)"),
        ("draft", "wide", "'wide' is not a draft length"),
        ("draft", "fixed:-1", "not a draft length"),
        ("big", "fixed:4", "the target model itself"),
        ("twin", "fixed:4", "not smaller"),
        ("org/none", "fixed:4", "not on this machine"),
        ("org/none-GGUF:Q4_K_M", "fixed:4", "GGUF"),
        ("head", "fixed:4", "draft head (EAGLE)"),
        ("stranger", "fixed:4", "vocabularies differ"),
    ],
)
def test_what_would_not_work_is_not_written(
    folder: Path, capsys: Capture, draft: str, window: str, words: str
) -> None:
    head = Path(shutil.copytree(BUNDLED / "omlx-demo/draft", folder.parent / "head"))
    config = json.loads((head / "config.json").read_text())
    (head / "config.json").write_text(
        json.dumps({**config, "architectures": ["LlamaForCausalLMEagle"]})
    )
    stranger = Path(shutil.copytree(BUNDLED / "omlx-demo/draft", folder.parent / "stranger"))
    tokenizer = json.loads((stranger / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, last = list(vocabulary)[-1], list(vocabulary)[-2]
    vocabulary[first], vocabulary[last] = vocabulary[last], vocabulary[first]
    (stranger / "tokenizer.json").write_text(json.dumps(tokenizer))
    shutil.copytree(folder, folder.parent / "twin")
    assert words in said(
        capsys, "package", "write", "big", "--draft", draft, "--window", window, status=2
    )
    assert not (folder / "model-package.json").exists()


@pytest.mark.parametrize(
    ("strategy", "drafters", "why"),
    [
        ("auto", ["ngram"], "No draft model is set."),
        ("ngram:m=8;draft", ["ngram"], "No draft model is set."),
        ("draft", [], "No draft model is set."),
        ("ngram", ["ngram"], "the strategy is 'ngram'"),
        ("off", [], "the strategy is 'off'"),
    ],
)
def test_show_tells_who_drafts_without_a_draft_model_and_why_there_is_none(
    folder: Path, capsys: Capture, strategy: str, drafters: list[str], why: str
) -> None:
    said(capsys, "config", "set", "speculation", strategy)
    shown = said(capsys, "package", "show", "big")
    assert why in shown
    assert "Speculation is off" not in shown
    (line,) = [line.split() for line in shown.splitlines() if line.startswith("drafters")]
    assert line[1:] == (drafters or ["–"])
    assert json.loads(said(capsys, "package", "show", "big", "--json"))["drafters"] == drafters
    said(capsys, "config", "unset", "speculation")
    said(capsys, "package", "write", "big", "--draft", "draft")
    assert json.loads(said(capsys, "package", "show", "big", "--json"))["drafters"] == [
        "ngram",
        "draft",
    ]


@pytest.mark.parametrize("tokenizer", ["other", "broken"])
def test_show_tells_of_a_draft_that_only_its_tokenizer_speaks_against(
    folder: Path, capsys: Capture, tokenizer: str
) -> None:
    said(capsys, "package", "write", "big", "--draft", "draft")
    file = (
        Path(shutil.copytree(BUNDLED / "omlx-demo/draft", folder.parent / "omlx-demo/draft"))
        / "tokenizer.json"
    )
    content = json.loads(file.read_text())
    del content["added_tokens"][-1]
    file.write_text("{" if tokenizer == "broken" else json.dumps(content))
    reply = json.loads(said(capsys, "package", "show", "big", "--json"))["speculation"]
    codes = {"other": "draft.unfit.vocabulary", "broken": "draft.unfit.unusable"}
    assert (reply["draft"], reply["reason"]["code"]) == (None, codes[tokenizer])
    assert reply["reason"]["message"] in said(capsys, "package", "show", "big")


LONG = f"/{'a' * 300}"
"""Longer than the name of any file."""


@pytest.mark.parametrize(
    "arguments",
    [
        ["package", "check", LONG],
        ["package", "show", LONG],
        ["package", "write", LONG, "--draft", "draft"],
        ["package", "write", "big", "--draft", LONG],
        ["package", "write", "big", "--draft", "draft", "--from-bench", LONG],
        ["package", "check", "~no-such-user/model"],
        ["pull", LONG],
        ["pull", f"org/{LONG[1:]}", "--model-dir", LONG],
        ["config", "get", "draft_model", "--model", LONG],
    ],
    ids=lambda arguments: " ".join(arguments).replace(LONG, "LONG"),
)
def test_names_that_cannot_be_are_said_in_one_line(
    folder: Path, capsys: Capture, arguments: list[str]
) -> None:
    shown = said(capsys, *arguments, status=2)
    assert shown.startswith("omlx: ")
    assert len(shown.splitlines()) == 1


def test_a_draft_that_only_this_command_finds_is_not_declared(
    folder: Path, capsys: Capture, tmp_path: Path
) -> None:
    elsewhere = Path(shutil.copytree(BUNDLED / "omlx-demo/draft", tmp_path / "elsewhere/tiny"))
    write = ["package", "write", "big", "--draft", str(elsewhere)]
    assert str(elsewhere) in said(capsys, *write, status=2)
    assert not (folder / "model-package.json").exists()
    said(capsys, *write, "--model-dir", str(elsewhere.parent))
    assert declared(folder)["draft_model"] == "tiny"
    elsewhere.rename(folder.parent / "tiny")
    said(capsys, "package", "write", str(folder), "--draft", str(folder.parent / "tiny"))
    assert "can be used" in said(capsys, "package", "check", "big")


def test_add_list_revoke(alone: Path, capsys: Capture) -> None:
    file = alone / ".omlx/keys.json"
    assert said(capsys, "keys", "list") == ""
    assert main(["keys", "add", "laptop", "--models", "target", "org/*", "--rate", "60"]) == 0
    out, messages = capsys.readouterr()
    key = out.strip()
    assert key.startswith("sk-omlx-")
    assert len(key) == 51
    assert "'org/*'" in messages
    assert "'target'" not in messages
    assert "requires a key of every program" in messages
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert key not in file.read_text()
    assert main(["keys", "add", "phone"]) == 0
    assert "requires a key" not in capsys.readouterr().err
    lines = said(capsys, "keys", "list").splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "laptop", "phone"]
    assert f"…{key[-4:]}" in lines[1]
    records = json.loads(said(capsys, "keys", "list", "--json"))
    assert [(row["name"], row["models"], row["requests_per_minute"]) for row in records] == [
        ("laptop", ["target", "org/*"], 60),
        ("phone", ["*"], None),
    ]
    assert "sha256" not in records[0]
    said(capsys, "keys", "revoke", "laptop")
    assert [row["name"] for row in json.loads(said(capsys, "keys", "list", "--json"))] == ["phone"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add", "phone"], "already an API key named 'phone'"),
        (["add", "api_key"], "'api_key' is not a valid name"),
        (["add", "a/b"], "'a/b' is not a valid name"),
        (["add", "x" * 65], "is not a valid name"),
        (["add", " "], "is not a valid name"),
        (["add", "x", "--rate", "0"], "from 1 to 100000"),
        (["add", "x", "--models", ""], "without spaces"),
        (["add", "x", "--models", "a b"], "without spaces"),
        (["revoke", "laptop"], "no API key named 'laptop'"),
    ],
)
def test_what_cannot_be_done_is_refused(
    alone: Path, capsys: Capture, arguments: list[str], message: str
) -> None:
    said(capsys, "keys", "add", "phone")
    assert message in said(capsys, "keys", *arguments, status=2)
    assert len(json.loads(said(capsys, "keys", "list", "--json"))) == 1


def test_a_damaged_file_stops_a_start_and_is_left_alone(alone: Path, capsys: Capture) -> None:
    file = alone / ".omlx/keys.json"
    said(capsys, "keys", "add", "phone")
    damaged = file.read_text().replace('"created"', '"made"')
    file.write_text(damaged)
    for command in (["keys", "list"], ["keys", "add", "x"], ["keys", "revoke", "phone"], ["serve"]):
        assert "not a valid file of API keys (keys.0." in said(capsys, *command, status=2)
    assert "not a valid file of API keys" in said(capsys, "doctor")
    assert file.read_text() == damaged
