"""Everything hostile there is, for longer than the tests try it: ``python -m tools.hostile`` prints the tables of
docs/reliability.md, and writes them there with ``--write``. It ends with an error if anything is found.
"""

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version

from tests.app.serving import free_port, start
from tools.hostile import contract, trial
from tools.hostile.corpus import inputs
from tools.hostile.targets import TARGETS
from tools.tables import printed, written

Found = list[str]


def pictures(found: Found) -> Iterator[str]:
    """Yield the table of hostile pictures."""
    done = subprocess.run([sys.executable, "-W", "always", "-m", "tools.hostile.trial"], capture_output=True, text=True)
    if done.returncode or done.stderr:
        found.append(done.stderr)
    rows = [trial.Answered(**json.loads(line)) for line in done.stdout.splitlines()]
    found += [str(one) for one in rows if one.status not in one.expected]
    yield "| pictures | requests | answers | slowest | most memory |"
    yield "| --- | ---: | --- | ---: | ---: |"
    for family in dict.fromkeys(one.family for one in rows):
        of = [one for one in rows if one.family == family]
        answers = ", ".join(f"{count} × {status}" for status, count in sorted(Counter(r.status for r in of).items()))
        slowest, most = max(one.seconds for one in of), max(one.growth for one in of)
        yield f"| {family} | {len(of):,} | {answers} | {slowest:.2f} s | {most / 2**20:.0f} MB |"


def requests(found: Found, examples: int) -> Iterator[str]:
    """Yield the table of Schemathesis' runs."""
    port = free_port()
    process = start(port, SEEWHY_LOG_LEVEL="error")
    yield "| Schemathesis | routes | requests | found |"
    yield "| --- | --- | ---: | ---: |"
    try:
        for said, phases, count in [
            ("each option at and beyond its bounds", ["coverage"], 1),
            ("examples, made up at random, in sequences", ["examples", "fuzzing", "stateful"], examples),
        ]:
            run = contract.check(f"http://127.0.0.1:{port}", phases, count)
            if run.found:
                found.append(run.report)
            yield f"| {said} | all | {run.cases:,} | {'something' if run.found else 'nothing'} |"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def fuzzes(found: Found, seconds: int) -> Iterator[str]:
    """Yield the table of coverage-guided fuzzes."""
    yield "| fuzzed by atheris | inputs | edges reached | inputs kept | found |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for name in TARGETS:
        command = [sys.executable, "-m", "tools.hostile.fuzz", name, str(seconds)]
        with tempfile.TemporaryDirectory() as new:
            done = subprocess.run([*command, new], capture_output=True, text=True, errors="replace")
        if done.returncode:
            found.append(done.stderr)
        runs = re.search(r"Done (\d+) runs", done.stderr)
        edges = re.findall(r"cov: (\d+)", done.stderr)
        yield (
            f"| {name} | {int(runs[1]) if runs else 0:,} | {int(edges[-1]) if edges else 0:,} | {len(inputs(name))} "
            f"| {'something' if done.returncode else 'nothing'} |"
        )


def main() -> int:
    """Run what was asked for; return whether anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tools.hostile", description=__doc__)
    parser.add_argument("--seconds", type=int, default=120, help="of each fuzz")
    parser.add_argument("--examples", type=int, default=60, help="requests made up for each route")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/reliability.md")
    options = parser.parse_args()
    found: Found = []
    used = ", ".join(f"{name} {version(name)}" for name in ("pillow", "schemathesis", "atheris"))
    heading = f"Python {platform.python_version()}, {used}; {os.cpu_count()} processors, other work beside it."
    lines = printed(heading, (pictures(found), requests(found, options.examples), fuzzes(found, options.seconds)))
    if options.write and not found:
        written("hostile", lines)
    print(*found, sep="\n", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
