"""Sessions of five agents over five days, in the shapes that they send.

Each begins with instructions, its environment and its tools; dates, directories, git statuses, the
order of tools and, once, the tools themselves change. Sizes are a fifteenth of real ones. Claude
Code states a git status. What its sessions do to a working tree is `SHOP`: of eight changes from
one session to the next, calls of the session show five; the user and programs make three.
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


OLD = ("5d01f3a Sort baskets by day", "1b7c2e9 Begin")
ROUND = ("3f2a91c Round prices", *OLD)
BY_USER = ("c40d8b7 Empty baskets", *ROUND)
TAX = ("e81a556 Add taxes", *BY_USER)


@dataclass(frozen=True)
class Work:
    """A session in a working tree: the status and commits that it finds, and its calls."""

    status: str
    log: Sequence[str]
    calls: Sequence[tuple[str, Mapping[str, Any], str]] = ()


def wrote(name: str, path: str) -> tuple[str, Mapping[str, Any], str]:
    path = f"{FOLDERS[0]}/{path}"
    created = f"File created successfully at: {path}"
    return name, {"file_path": path}, created if name == "Write" else f"{path} has been updated."


def ran(command: str, result: str) -> tuple[str, Mapping[str, Any], str]:
    return "Bash", {"command": command, "description": "Runs it"}, result


SHOP = (
    Work("M src/basket.py", OLD, [wrote("Edit", "src/prices.py")]),
    Work(
        "M src/basket.py\n M src/prices.py",
        OLD,
        [wrote("Edit", "src/basket.py"), wrote("Write", "tests/test_prices.py")],
    ),
    Work(
        "M src/basket.py\n M src/prices.py\n?? tests/test_prices.py",
        OLD,
        [
            ran("git status", "On branch main\nChanges not staged for commit: …"),
            ran(
                "git add -A && git commit -m 'Round prices'",
                "[main 3f2a91c] Round prices\n 3 files changed, 41 insertions(+)",
            ),
        ],
    ),
    Work("(clean)", ROUND, [wrote("Edit", "src/basket.py")]),  # committed by the user afterwards
    Work("(clean)", BY_USER, [ran("ruff format .", "1 file reformatted, 7 files left unchanged")]),
    Work("M src/order.py", BY_USER, [ran("pytest -q", "48 passed in 0.61s")]),
    Work("M src/order.py", BY_USER, [wrote("Edit", "src/order.py"), wrote("Write", "src/tax.py")]),
    Work(
        "M src/order.py\n?? src/tax.py",
        BY_USER,
        [
            ran("git add src/order.py src/tax.py", ""),
            ran("git commit -m 'Add taxes'", "[main e81a556] Add taxes\n 2 files changed"),
        ],
    ),
    Work("(clean)", TAX, [wrote("Edit", "src/tax.py")]),  # beside it, the user edits another file
    Work("M README.md\n M src/tax.py", TAX),
)
NOTES = Work("(clean)", ("77ab0d2 Begin",))


@dataclass(frozen=True)
class Moment:
    """When and where a session begins. `session` counts those of its day."""

    at: datetime
    folder: str
    session: int

    @property
    def work(self) -> Work:
        if self.folder != FOLDERS[0]:
            return NOTES
        return SHOP[2 * (self.at.date() - FIRST_DAY.date()).days + self.session // 2]


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
    environment = (
        f"# Environment\n - Primary working directory: {moment.folder}\n - Platform: darwin\n"
        f" - Today's date: {moment.at:%Y-%m-%d}\n\ngitStatus: This is the git status at the start "
        f"of the conversation.\nCurrent branch: main\n\nStatus:\n{moment.work.status}\n\n"
        "Recent commits:\n" + "\n".join(moment.work.log)
    )
    text = f"You are Claude Code.\n\n{instructions('Claude Code', 20)}\n\n{environment}"
    return Beginning(system(text), tools(names, 3), {})


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
    "claude-cli/2.1.197 (external, cli)": claude_code,
    "codex_exec/0.169.0": codex,
    "opencode/1.4.0 ai-sdk": opencode,
    "pi/0.80": pi,
    "QwenCode/0.9.0 (darwin; arm64)": qwen_code,
}


def turns(work: Work) -> list[dict[str, Any]]:
    """Messages of a session behind its first one."""
    messages = list[dict[str, Any]]()
    for number, (name, arguments, result) in enumerate(work.calls):
        call = {"id": f"{number}", "function": {"name": name, "arguments": arguments}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"{number}", "content": result})
    return messages


def sessions() -> Iterator[tuple[str, Moment]]:
    """Yield the User-Agent and the moment of each session, in order."""
    for day in range(DAYS):
        for number, folder in enumerate(FOLDERS):
            for hour, client in enumerate(AGENTS):
                at = FIRST_DAY + timedelta(days=day, hours=2 * number, minutes=7 * hour)
                yield client, Moment(at, folder, number)
