"""Writes the table of settings into docs/deployment.md from the settings. A test checks that it is current."""

import re
from pathlib import Path

from seewhy.app.settings import Settings

PAGE = Path(__file__).parent / "deployment.md"


def filled(text: str) -> str:
    """Return the text of the page with the current table."""
    lines = ["| variable | default | meaning |", "| --- | --- | --- |"]
    for name, _, default, meaning in Settings.model_construct().rows():
        lines.append(f"| `{name}` | {f'`{default}`' if default else ''} | {meaning} |")
    table = "\n".join(lines)
    between = re.compile(r"(<!-- settings -->\n).*?(<!-- end of settings -->\n)", re.DOTALL)
    return between.sub(lambda match: f"{match[1]}\n{table}\n\n{match[2]}", text)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
