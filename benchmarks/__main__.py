"""All benchmarks, then docs/performance.md: `make bench`."""

import argparse
import os
import subprocess
import sys

from benchmarks import page


def main() -> None:
    """Run all benchmarks and fill docs/performance.md with the results.

    Each has its own process. With --quick they run once and write nothing; with --page nothing runs, and the page is
    filled with earlier results.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--page", action="store_true")
    arguments = parser.parse_args()
    for part in () if arguments.page else page.PARTS:
        command = [sys.executable, "-m", f"benchmarks.{part}", *["--quick"] * arguments.quick]
        # The setting of the service and the commands; by default, PyTorch's idle threads slow OpenVINO's.
        subprocess.run(command, check=True, env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"})
    if not arguments.quick:
        page.write()


if __name__ == "__main__":
    main()
