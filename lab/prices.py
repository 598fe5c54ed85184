"""`python -m lab.prices`: docs/prices.md, the lines of product and tests of each feature.

A file belongs to the feature with the longest pattern that its path begins with, so to exactly one.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

from omlx.cli.main import run_process

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs/prices.md"
PRODUCT: Final = ("omlx", "admin")

FEATURES: Final[dict[str, str]] = {
    "engine: queue, batches, caches, memory": """
        omlx/engine/ tests/engine/ tests/cli/hanging tests/cli/test_hang""",
    "prefixes in memory": """
        omlx/engine/prefix/ tests/engine/prefix/ tests/engine/test_prefix_reuse
        tests/server/test_prefixes""",
    "prefixes on disk": """
        omlx/engine/disk/ tests/engine/disk/ omlx/models/pool/prefix_disk
        tests/models/test_prefix_disk""",
    "speculation": """
        omlx/engine/speculation/ tests/engine/speculation/ omlx/engine/device/facts
        omlx/engine/device/batch_probe omlx/draft_length
        omlx/models/catalog/drafters omlx/models/pool/head
        omlx/models/pool/borrowed_drafters tests/engine/borrowed
        tests/engine/test_borrowed tests/models/test_drafters tests/server/test_drafters
        tests/models/test_heads tests/models/heads tests/models/drafts
        omlx/models/pool/cost_store omlx/models/pool/speculation tests/models/test_cost_store
        tests/models/test_draft_
        tests/models/test_speculation_ tests/engine/test_head
        tests/engine/heads tests/engine/test_acceptance tests/engine/test_calibration
        tests/engine/test_draft_together tests/engine/test_exact_strategies
        tests/engine/test_speculation_stats tests/engine/test_strategy
        tests/server/test_speculation tests/test_draft_length""",
    "images": """
        omlx/engine/vision/ tests/engine/vision/ omlx/models/vision/
        tests/models/vision/ omlx/server/request/media/ tests/server/media/""",
    "models over several machines": """
        omlx/engine/stage/ tests/engine/stage/ omlx/cli/stage/
        omlx/models/stages tests/cli/test_stage tests/cli/test_group
        tests/cli/staged_group tests/cli/changed_rank tests/cli/rank_site/
        tests/models/test_stage""",
    "model folders: catalog and packages": """
        omlx/models/ tests/models/ omlx/cli/models omlx/cli/package
        tests/cli/test_packages tests/zoo/ tests/test_zoo tests/real/""",
    "model pool": """
        omlx/models/pool/ tests/models/test_pool tests/models/test_footprint
        tests/models/test_load_ tests/models/pools tests/server/test_pool""",
    "GGUF": "omlx/models/gguf/ tests/models/gguf/ tests/cli/test_pull_gguf",
    "downloads and search": """
        omlx/models/hub/ admin/download tests/admin/test_download omlx/cli/pull
        omlx/cli/serve/announcement tests/cli/test_pull tests/cli/test_first_start
        tests/models/downloads/ tests/models/hub""",
    "chat templates, detokenizer, reasoning": "omlx/text/ tests/text/ tests/templates/",
    "schemas and grammars": """
        omlx/text/grammar omlx/text/mask omlx/text/schema omlx/text/text_bounds omlx/text/constraint
        tests/text/test_grammar tests/text/test_schema
        tests/text/test_structured_ omlx/server/request/structured_output""",
    "tool calls": """
        omlx/text/calls/ omlx/text/tools tests/text/call_ tests/text/test_call_
        tests/text/test_tool_ tests/text/test_tag_grammar
        tests/text/test_value_grammar tests/text/test_json_repair omlx/server/request/tooling
        tests/server/test_tool tests/recorded/ tests/agents/""",
    "server: HTTP and what dialects share": "omlx/server/ tests/server/ tests/clients/",
    "dialect: OpenAI": "omlx/server/dialects/openai/ tests/server/openai/",
    "dialect: Anthropic": "omlx/server/dialects/anthropic/ tests/server/anthropic/",
    "dialects: Ollama, LM Studio": """
        omlx/server/dialects/ollama/ omlx/server/endpoints/ollama tests/server/ollama/""",
    "embeddings and rankings": """
        omlx/server/endpoints/texts
        tests/server/rerank/
        tests/server/encoders/ omlx/models/texts
        tests/models/test_encoders""",
    "answers that outlive the process": """
        omlx/server/journal/ tests/server/journal/ omlx/storage tests/storage/
        tests/server/test_sessions omlx/engine/session
        omlx/engine/disk/session omlx/server/endpoints/sessions
        tests/engine/disk/test_session tests/cli/test_restarts""",
    "prewarming": """
        omlx/server/beginnings/ tests/server/beginnings/""",
    "receipts": "omlx/receipts/ tests/receipts/ omlx/cli/verify tests/cli/test_verify",
    "keys, login, guard": """
        omlx/server/access omlx/server/http/guard
        admin/login admin/credentials tests/admin/test_keys tests/admin/test_login
        tests/server/test_access
        tests/server/test_api_keys tests/server/test_guard""",
    "request log, metrics, usage": """
        omlx/telemetry/ tests/telemetry/ omlx/records tests/test_records admin/activity admin/views
        tests/admin/test_activity tests/admin/test_verification omlx/server/request/activity
        omlx/server/request/usage
        tests/server/test_metrics""",
    "settings": """
        omlx/settings/ tests/settings/ admin/settings/ tests/admin/settings/ omlx/cli/config
        omlx/cli/arguments tests/cli/test_config tests/test_model_settings
        tests/server/test_settings_files""",
    "try a draft, benchmark page, omlx bench": """
        omlx/measure/ omlx/cli/bench admin/trial admin/benchmark tests/measure/
        tests/cli/test_bench tests/admin/test_trial tests/admin/test_benchmark""",
    "command line, service, clients": """
        omlx/__ omlx/catalog omlx/errors omlx/exactness omlx/power
        omlx/cli/ tests/cli/ tests/service/
        omlx/machine omlx/clients/ tests/test_power tests/test_installation tests/clock
        tests/lanes tests/processes tests/refusals tests/wheel tests/conftest tests/schemas
        tests/__init__""",
    "dashboard: other pages": "admin/ tests/admin/ tests/js/ omlx/tools/ tests/tools/",
    "rules of the project": "tests/project/",
}
"""Features, and how the paths of their files begin."""

OWNERS: Final = {start: name for name, starts in FEATURES.items() for start in starts.split()}


def python_files(*folders: str) -> list[str]:
    """Return paths from the root, of files in the checkout alone."""
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def feature_of(path: str) -> str | None:
    """Return the feature that a file belongs to, None if it belongs to none."""
    starts = [start for start in OWNERS if path.startswith(start)]
    return OWNERS[max(starts, key=len)] if starts else None


def unused(paths: list[str]) -> list[str]:
    """Return the patterns that decide about no file, which a move has left behind."""
    deciding = {max((s for s in OWNERS if p.startswith(s)), key=len, default="") for p in paths}
    return sorted(set(OWNERS) - deciding)


def lines(path: str) -> int:
    """Return the lines of a file, as `wc -l` counts them."""
    return (ROOT / path).read_bytes().count(b"\n")


def lines_of_features(paths: list[str]) -> Counter[str]:
    """Return lines by feature. Raises ValueError for a file of no feature."""
    counted: Counter[str] = Counter()
    for path in paths:
        feature = feature_of(path)
        if feature is None:
            raise ValueError(f"{path} belongs to no feature: name it in lab/prices.py")
        counted[feature] += lines(path)
    return counted


def wc(paths: list[str]) -> int:
    """Return the lines of all files, counted by another program."""
    counted = subprocess.run(
        ["wc", "-l", "--", *paths], cwd=ROOT, capture_output=True, text=True, check=True
    )
    totals = [line.split() for line in counted.stdout.splitlines()]
    return sum(int(words[0]) for words in totals if words[1] != "total")


def page() -> str:
    """Return docs/prices.md. Raises ValueError if a sum differs from that of `wc -l`."""
    product_files, test_files = python_files(*PRODUCT), python_files("tests")
    product, tests = lines_of_features(product_files), lines_of_features(test_files)
    for counted, paths in ((product, product_files), (tests, test_files)):
        if counted.total() != wc(paths):
            raise ValueError(f"{counted.total()} lines in the table, {wc(paths)} by wc -l")
    files = Counter(feature_of(path) for path in product_files)
    rows = [
        f"| {name} | {files[name]} | {product[name]:,} | {tests[name]:,} |"
        for name in sorted(FEATURES, key=lambda name: -product[name])
    ]
    return "\n".join(
        [
            "# What each feature costs",
            "",
            "Lines of Python, as `wc -l` counts them, written by `make prices`. Every file belongs",
            "to one feature (`lab/prices.py`); the sums are checked.",
            "",
            "| feature | files | product | tests |",
            "|---|---:|---:|---:|",
            *rows,
            f"| **all** | {len(product_files)} | {product.total():,} | {tests.total():,} |",
            "",
            f"Outside the wheel: `lab/` {sum(map(lines, python_files('lab'))):,}, `training/`"
            f" {sum(map(lines, python_files('training'))):,}.",
            "",
        ]
    )


def main() -> int:
    """Write the page. Returns 1 and names the patterns that decide about no file."""
    PAGE.write_text(page(), encoding="utf-8")
    left_over = unused(python_files(*PRODUCT, "tests"))
    for start in left_over:
        sys.stderr.write(f"{start} in lab/prices.py decides about no file\n")
    return 1 if left_over else 0


if __name__ == "__main__":
    run_process(main)
