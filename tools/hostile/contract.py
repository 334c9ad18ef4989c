"""Schemathesis, run against the service as it is served, on what its OpenAPI document says."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent

PATIENCE = "600"
"""Seconds until an answer that does not come is a fault: the machine may have much else to do."""


@dataclass(frozen=True)
class Run:
    """What a run found.

    Attributes:
        is_faulty: whether it found anything.
        cases: how many requests it made up.
        report: what it printed.
    """

    is_faulty: bool
    cases: int
    report: str


def check(url: str, phases: Sequence[str], examples: int, seed: int = 1, excluded: Sequence[str] = ()) -> Run:
    """Run all checks.

    Args:
        url: URL of the service.
        phases: phases of examples, coverage, fuzzing and stateful.
        examples: how many requests to make up for each route.
        seed: what they are made up from.
        excluded: paths to leave out.
    """
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml"), "run"]
    command += [f"{url}/openapi.json", "--checks", "all", "--phases", ",".join(phases), "--max-examples", str(examples)]
    command += ["--seed", str(seed), "--continue-on-failure", "--no-color"]
    command += ["--request-timeout", PATIENCE, "--max-response-time", PATIENCE]
    command += ["--suppress-health-check", "all", "--warnings", "off"]
    for path in excluded:
        command += ["--exclude-path", path]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "tools.hostile.hooks", "PYTHONPATH": str(HERE.parents[1])}
    process = subprocess.run(command, capture_output=True, text=True, env=environment)
    cases = re.search(r"(\d+) generated", process.stdout)
    return Run(process.returncode != 0, int(cases[1]) if cases else 0, process.stdout + process.stderr)
