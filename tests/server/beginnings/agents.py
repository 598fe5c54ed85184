"""Beginnings of five agents over five days, in the shapes that they send.

Each has instructions, its environment and its tools; dates, directories, the order of tools and,
once, the tools themselves change. Sizes are a fifteenth of real ones. Claude Code states its
environment and a git status in the user's first turn, at least from 2.1.270 on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from omlx.server.beginnings.beginning import Beginning

FIRST_DAY = datetime(2026, 11, 27, 9)  # a Friday; the third day is in another week, the fifth
DAYS = 5  # in another month
FOLDERS = ("/home/user/shop", "/home/user/notes", "/home/user/shop")


@dataclass(frozen=True)
class Moment:
    """When and where a session begins. `session` counts those of its day."""

    at: datetime
    folder: str
    session: int


def instructions(agent: str, lines: int) -> str:
    return "\n".join(
        f"{number}. As {agent}, read what you change before you change it, then test it once."
        for number in range(lines)
    )


def tools(names: Sequence[str], lines: int = 2) -> tuple[Mapping[str, Any], ...]:
    def tool(name: str) -> Mapping[str, Any]:
        description = " ".join(f"Use {name} with care, step {step}." for step in range(lines))
        parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
        function = {"name": name, "description": description, "parameters": parameters}
        return {"type": "function", "function": function}

    return tuple(map(tool, names))


def system(*texts: str) -> tuple[Mapping[str, Any], ...]:
    return tuple({"role": "system", "content": text} for text in texts)


def claude_code(moment: Moment) -> Beginning:
    names = ["Bash", "Edit", "Read", "Write", "Glob", "Grep", "WebFetch", "Task"]
    texts = ("You are Claude Code.", instructions("Claude Code", 20))
    return Beginning(system(*texts), tools(names, 3), {})


def codex(moment: Moment) -> Beginning:
    texts = (instructions("Codex", 15), "<skills_instructions>\n## Skills\n</skills_instructions>")
    return Beginning(system(*texts), tools(("exec_command", "write_stdin", "view_image")), {})


def opencode(moment: Moment) -> Beginning:
    names = ["bash", "edit", "read", "glob", "grep", "todowrite", "task"]
    extra = ["docs_search", "docs_read"]
    if moment.at.toordinal() % 2:  # servers of tools connect in another order
        extra.reverse()
    environment = (
        f"<env>\n  Working directory: {moment.folder}\n  Is directory a git repo: yes\n"
        f"  Platform: darwin\n  Today's date: {moment.at:%a %b %d %Y}\n</env>\n"
        f"Instructions from: {moment.folder}/AGENTS.md\n{instructions(moment.folder, 4)}"
    )
    text = f"{instructions('opencode', 15)}\n{environment}"
    return Beginning(system(text), tools((*names, *extra)), {})


def pi(moment: Moment) -> Beginning:
    text = (
        f"{instructions('pi', 10)}\nCurrent date: {moment.at:%Y-%m-%d}\n"
        f"Current working directory: {moment.folder}"
    )
    names = ["read", "bash", "edit", "write"]
    names += ["monitor"] if moment.at >= FIRST_DAY + timedelta(3) else []
    return Beginning(system(text), tools(names), {})


def qwen_code(moment: Moment) -> Beginning:
    text = (
        f"{instructions('Qwen Code', 16)}\nToday's date is {moment.at:%A, %B} {moment.at.day}, "
        f"{moment.at.year} (formatted according to the user's locale).\n"
        f"My current working directory is: {moment.folder}\n{instructions('a guest', 3)}"
    )
    return Beginning(system(text), tools(("read_file", "edit", "run_shell_command", "glob")), {})


AGENTS: Mapping[str, Callable[[Moment], Beginning]] = {
    "claude-cli/2.1.332 (external, cli)": claude_code,
    "codex_exec/0.169.0": codex,
    "opencode/1.4.0 ai-sdk": opencode,
    "pi/0.80": pi,
    "QwenCode/0.9.0 (darwin; arm64)": qwen_code,
}


def sessions() -> Iterator[tuple[str, Moment]]:
    """Yield the User-Agent and the moment of each session, in order."""
    for day in range(DAYS):
        for number, folder in enumerate(FOLDERS):
            for hour, client in enumerate(AGENTS):
                at = FIRST_DAY + timedelta(days=day, hours=2 * number, minutes=7 * hour)
                yield client, Moment(at, folder, number)
