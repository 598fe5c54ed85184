"""Git status in system messages, as a conversation leaves the working tree.

Claude Code (2.1.197; 2.1.270 does in the user's first message) writes branch, `git status --short`
and the last commits once. The next conversation has the files that calls of this one wrote, and its
commits. The server never runs git: `omlx launch` does, in the user's folder, and sends reports.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, TypeAlias

from omlx.server.beginnings.beginning import Beginning, place_of
from omlx.text.template.render import Message, texts_of

COMMITS: Final = 5
"""Commits — listed by Claude Code, at most."""

CLEAN: Final = "(clean)"

SHOWN: Final = 2_000
"""Characters — longer statuses are truncated by Claude Code."""

_CUT: Final = "\n... (truncated"
TRUNCATED: Final = (
    f"{_CUT} because it exceeds 2k characters. If you need more information, "
    'run "git status" using Bash)'
)

FOLLOWED_S: Final = 150.0
"""Seconds that a report precedes calls of later requests — `omlx launch` repeats it within."""

CHANGED: Final = 1_000
"""Lines of a status, at most: longer ones are not followed."""

DEPTH: Final = 64
"""Folders above a file, at most: the others are ignored."""

MAX_COMMAND: Final = 4 << 10
"""Characters of a command, at most: longer ones are ignored."""

_ENTRY: Final = re.compile(r"([ #MTADRCU?!]{1,2}) (\S.*)")
_STATUS: Final = re.compile(
    rf"(?<=^Status:\n)(?:\(clean\)|{_ENTRY.pattern}(?:\n{_ENTRY.pattern})*"
    rf"(?:(?:\n[^\n]{{0,3}})?{re.escape(_CUT)}.*)?)$",
    re.MULTILINE,
)
_LOG: Final = re.compile(
    r"(?<=^Recent commits:\n)(?:[0-9a-f]{7,40} .*(?:\n[0-9a-f]{7,40} .*)*)?$", re.MULTILINE
)
_BRANCH: Final = re.compile(r"(?<=^Current branch: ).+$", re.MULTILINE)
_WRITES: Final = re.compile(r"write|edit|create|patch|replace", re.IGNORECASE)
_COMMITTED: Final = re.compile(r"^\[[^\]\n]+ ([0-9a-f]{7,40})\] (.+)$", re.MULTILINE)
"""Git's line about a new commit."""

_ADDS: Final = re.compile(r"\bgit add ([^&|;\n]+)")
_SEPARATORS: Final = re.compile(r"[&|;\n]")
_ALL: Final = re.compile(r" (?:-a|--all\b(?!-))")
_SHORT_STATUS: Final = re.compile(r"\bgit status (?:-s|--short|--porcelain)\s*$")
_PATHS: Final = ("file_path", "filePath", "path", "notebook_path")
_COMMANDS: Final = ("command", "cmd")
_HEAD: Final = 40
"""Characters of a result — whether the file was created; a part of the file may follow."""


@dataclass(frozen=True, slots=True)
class GitStatus:
    """Texts of a status and of the last commits; empty if a system message has none."""

    status: str = ""
    log: str = ""


UNCHANGED: Final = GitStatus()


@dataclass(frozen=True, slots=True)
class Report:
    """Git status and branch of a folder, read by `omlx launch`; `at`: seconds since the epoch.

    `running`: the launched program may change the files.
    """

    status: GitStatus
    branch: str
    running: bool
    at: float


Reports: TypeAlias = Mapping[str, Report]
"""Reports by folder."""


def states(system: str, folder: str) -> bool:
    """Whether a system message states the git status of a folder."""
    return f"directory: {folder}\n" in system and _STATUS.search(system) is not None


def report_of(system: str, reports: Reports) -> Report | None:
    """Return the report about the git status that a system message states."""
    return next((one for folder, one in reports.items() if states(system, folder)), None)


def git_status_of(text: str) -> GitStatus:
    """Return the status that a system message states."""
    status, log = _STATUS.search(text), _LOG.search(text)
    if status is None:
        return UNCHANGED
    return GitStatus(status[0], "" if log is None else log[0])


def with_git_status(beginning: Beginning, status: GitStatus, branch: str = "") -> Beginning:
    """Replace status and branch that a beginning states; empty ones replace nothing."""
    if not status.status:
        return beginning
    messages, shown = [], status.status
    if len(shown) > SHOWN:
        shown = shown[:SHOWN] + TRUNCATED
    for message in beginning.messages:
        text = _STATUS.sub(lambda _: shown, str(message["content"]), count=1)
        text = _LOG.sub(lambda _: status.log, text, count=1)
        text = _BRANCH.sub(lambda own: branch or own[0], text, count=1)
        messages.append({**message, "content": text})
    return replace(beginning, messages=tuple(messages))


def left_by(system: str, messages: Sequence[Message], known: GitStatus = UNCHANGED) -> GitStatus:
    """Return the status behind the calls in `messages`.

    `known` was left by earlier ones, which a compaction may have removed. Empty if the system
    message states none, or the same one.
    """
    before, folder = git_status_of(system), place_of(system).rstrip("/") + "/"
    if not before.status or before.status.count("\n") >= CHANGED:
        return UNCHANGED
    if _CUT in before.status or before.status.startswith("##"):  # a setting adds the branch
        return UNCHANGED
    start = known if known.status else before
    tree = WorkingTree(folder, _entries(start.status), start.log.splitlines())
    for name, arguments, result in _calls(messages):
        tree.note(name, arguments, result)
    after = GitStatus(tree.status, "\n".join(tree.log))
    return UNCHANGED if after == before else after


@dataclass(slots=True)
class WorkingTree:
    """Changed files by path, with git's two letters, and the last commits."""

    folder: str
    changed: dict[str, str]
    log: list[str]
    added: set[str] = field(default_factory=set)
    """Arguments of `git add` since the last commit."""

    @property
    def status(self) -> str:
        entries = sorted(self.changed.items(), key=lambda entry: (entry[1] == "??", entry[0]))
        return "\n".join(f"{code} {path}" for path, code in entries).strip() or CLEAN

    def note(self, name: str, arguments: Mapping[str, Any], result: str) -> None:
        """Apply a call of a tool that has returned `result`."""
        command = next((arguments[key] for key in _COMMANDS if key in arguments), None)
        path = next((arguments[key] for key in _PATHS if key in arguments), None)
        if isinstance(command, str):
            self._run(command, result)
        elif isinstance(path, str) and _WRITES.search(name):
            self._write(path.removeprefix(self.folder), result)

    def _write(self, path: str, result: str) -> None:
        if path.startswith(("/", "..")) or any(one in self.changed for one in _folders(path)):
            return
        code = self.changed.get(path)
        if code is None and len(self.changed) < CHANGED:
            self.changed[path] = "??" if "created" in result[:_HEAD] else " M"
        elif code is not None and code[1] == " ":  # staged
            self.changed[path] = f"{code[0]}M"

    def _run(self, command: str, result: str) -> None:
        if len(command) > MAX_COMMAND:
            return
        if _SHORT_STATUS.search(command) and (_entries(result) or not result.strip()):
            self.changed = _entries(result)
        for words in _ADDS.findall(command):
            self.added.update(word.strip("\"'").rstrip("/") for word in words.split())
        parts = _SEPARATORS.split(command)
        if "git commit" in command and (commits := _COMMITTED.findall(result)):
            if any(_ALL.search(part.partition("git commit")[2]) for part in parts):
                self.added.add("-u")
            self.changed = {p: code for p, code in self.changed.items() if not self._adds(p, code)}
            self.added.clear()
            for line in map(" ".join, commits):
                if line not in self.log:
                    self.log.insert(0, line)
            del self.log[COMMITS:]

    def _adds(self, path: str, code: str) -> bool:
        """Whether a changed file is part of the next commit."""
        if self.added & {".", "-A", "--all"} or code[0] not in " ?":
            return True
        if "-u" in self.added and code != "??":
            return True
        return path in self.added or any(one[:-1] in self.added for one in _folders(path))


def _folders(path: str) -> Iterator[str]:
    """Yield the folders above a path, each with its slash."""
    for slash in islice(re.finditer("/", path), DEPTH):
        yield path[: slash.end()]


def _calls(messages: Sequence[Message]) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yield name, arguments and result of each call that has returned."""
    results = {
        message["tool_call_id"]: "".join(texts_of(message.get("content")))
        for message in messages
        if message["role"] == "tool"
    }
    for message in messages:
        for call in message.get("tool_calls", ()):
            function = call["function"]
            if call["id"] in results and isinstance(function["arguments"], Mapping):
                yield function["name"], function["arguments"], results[call["id"]]


def _entries(status: str) -> dict[str, str]:
    """Return the letters of each path; none if `status` is none of git's."""
    entries = dict[str, str]()
    if status.count("\n") > CHANGED:
        return entries
    for line in filter(None, status.splitlines()):
        found = _ENTRY.fullmatch(line)
        if found is None:
            return {}
        code, path = found.groups()
        entries[path] = code if len(code) == 2 else f" {code}"  # the first line is trimmed
    return entries
