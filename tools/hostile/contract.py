"""Schemathesis, run against a real service, by its OpenAPI document."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent

PATIENCE = "600"
"""Seconds after which a missing answer is a fault; the machine may be busy with other work."""


@dataclass(frozen=True)
class Run:
    """The result of a run.

    Attributes:
        is_faulty: whether it found anything.
        cases: number of requests that it generated.
        report: its output.
    """

    is_faulty: bool
    cases: int
    report: str


def check(url: str, phases: Sequence[str], examples: int, seed: int = 1, excluded: Sequence[str] = ()) -> Run:
    """Run all checks.

    Args:
        url: URL of the service.
        phases: some of examples, coverage, fuzzing and stateful.
        examples: number of requests to generate for each route.
        seed: seed of the generator.
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
