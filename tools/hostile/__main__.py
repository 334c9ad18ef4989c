"""All hostile input, for longer than in the tests: ``python -m tools.hostile`` prints the tables of
docs/reliability.md, and writes them there with ``--write``. It ends with an error if anything is found.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version

from tools.hostile import contract, trial
from tools.hostile.corpus import inputs
from tools.hostile.targets import TARGETS
from tools.service import service
from tools.tables import print_tables, write_tables

Findings = list[str]


def pictures(findings: Findings) -> Iterator[str]:
    """Yield the table of hostile pictures."""
    run = subprocess.run([sys.executable, "-W", "always", "-m", "tools.hostile.trial"], capture_output=True, text=True)
    if run.returncode or run.stderr:
        findings.append(run.stderr)
    rows = [trial.Answered(**json.loads(line)) for line in run.stdout.splitlines()]
    findings += [str(answer) for answer in rows if answer.status not in answer.expected]
    yield "| pictures | requests | answers | slowest | most memory |"
    yield "| --- | ---: | --- | ---: | ---: |"
    for family in dict.fromkeys(answer.family for answer in rows):
        of = [answer for answer in rows if answer.family == family]
        answers = ", ".join(f"{count} × {status}" for status, count in sorted(Counter(r.status for r in of).items()))
        slowest, most = max(answer.seconds for answer in of), max(answer.growth for answer in of)
        yield f"| {family} | {len(of):,} | {answers} | {slowest:.2f} s | {most / 2**20:.0f} MB |"


def requests(findings: Findings, examples: int) -> Iterator[str]:
    """Yield the table of Schemathesis' runs."""
    yield "| Schemathesis | routes | requests | found |"
    yield "| --- | --- | ---: | ---: |"
    with service() as running:
        for label, phases, count in [
            ("each option at and beyond its bounds", ["coverage"], 1),
            ("examples, made up at random, in sequences", ["examples", "fuzzing", "stateful"], examples),
        ]:
            run = contract.check(running.url, phases, count)
            if run.is_faulty:
                findings.append(run.report)
            yield f"| {label} | all | {run.cases:,} | {'something' if run.is_faulty else 'nothing'} |"


def fuzzes(findings: Findings, seconds: int) -> Iterator[str]:
    """Yield the table of coverage-guided fuzzes."""
    yield "| fuzzed by atheris | inputs | edges reached | inputs kept | found |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for name in TARGETS:
        command = [sys.executable, "-m", "tools.hostile.fuzz", name, str(seconds)]
        with tempfile.TemporaryDirectory() as new:
            process = subprocess.run([*command, new], capture_output=True, text=True, errors="replace")
        if process.returncode:
            findings.append(process.stderr)
        runs = re.search(r"Done (\d+) runs", process.stderr)
        edges = re.findall(r"cov: (\d+)", process.stderr)
        yield (
            f"| {name} | {int(runs[1]) if runs else 0:,} | {int(edges[-1]) if edges else 0:,} | {len(inputs(name))} "
            f"| {'something' if process.returncode else 'nothing'} |"
        )


def main() -> int:
    """Run the requested parts; return whether anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tools.hostile", description=__doc__)
    parser.add_argument("--seconds", type=int, default=120, help="duration of each fuzz")
    parser.add_argument("--examples", type=int, default=60, help="number of generated requests per route")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/reliability.md")
    options = parser.parse_args()
    findings: Findings = []
    used = ", ".join(f"{name} {version(name)}" for name in ("pillow", "schemathesis", "atheris"))
    heading = f"Python {platform.python_version()}, {used}; {os.cpu_count()} processors, with other load."
    lines = print_tables(
        heading, (pictures(findings), requests(findings, options.examples), fuzzes(findings, options.seconds))
    )
    if options.write and not findings:
        write_tables("hostile", lines)
    print(*findings, sep="\n", file=sys.stderr)
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
