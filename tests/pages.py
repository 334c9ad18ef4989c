"""Runs the documentation: the blocks of a page, in order, in one folder and one Python namespace.

| block | what is done |
| --- | --- |
| any with `title="FILE"` | written to that file, after the check of its language |
| `python` | executed, with the same live server (with a title: compiled; the page imports it) |
| `console` | each command runs: `seewhy` in this process, all else in bash; `http://127.0.0.1:8000` is a live server |
| `text` after one of these | is what that one printed; `...` stands for anything |
| `json` after one of these | is a part of the JSON that it printed, numbers to a hundredth |
| `json`, `toml`, `yaml` | parsed; a `[models.NAME]` must be a valid declaration |
| `math`, `nginx`, or no language | nothing |

A block that cannot run here stands under `<!-- not run: REASON -->`.
"""

import contextlib
import glob
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from click.testing import CliRunner

from seewhy.app.cli import main
from seewhy.models.models_file import ModelDeclaration

ROOT = Path(__file__).parents[1]
GENERATED = ROOT / "docs" / "methods"
"""What `make docs` writes for the site alone."""
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").rglob("*.md") if GENERATED not in page.parents)]
ADDRESS = "http://127.0.0.1:8000"
BLOCK = re.compile(
    r'(?:^<!-- not run: (?P<reason>.+?) -->\n+)?^```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n'
    r"(?P<content>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
SHELL = 'set -euo pipefail; curl() { command curl --silent --show-error --fail-with-body "$@"; }; '


@dataclass(frozen=True)
class Block:
    """A fenced block: where it begins, what it is, and why it does not run, if it does not."""

    page: Path
    line: int
    language: str
    content: str
    title: str | None
    reason: str | None

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page."""
    text = page.read_text(encoding="utf-8")
    cases = [
        Block(
            page,
            text.count("\n", 0, match.start("content")),
            match["language"],
            match["content"],
            match["title"],
            match["reason"],
        )
        for match in BLOCK.finditer(text)
    ]
    fences = len(re.findall(r"^\s*```", text, flags=re.MULTILINE))
    assert fences == 2 * len(cases), f"{page.name}: an indented or open fence, or one with more than a title"
    assert text.count("<!-- not run") == sum(block.reason is not None for block in cases), f"{page.name}: a stray mark"
    return cases


@dataclass
class Run:
    """One page, run in a folder that is the working directory."""

    folder: Path
    url: str
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "page"})
    printed: str | None = None
    silent: bool = True

    def block(self, block: Block) -> None:
        """Run or check one block; what Python before it printed must be shown right after it."""
        assert self.silent or block.language in ("text", "json"), f"not shown: {self.printed}"
        printed, self.printed, self.silent = self.printed, None, True
        if block.reason is not None:
            return
        getattr(self, f"_{block.language or 'plain'}")(block, printed)
        if block.title is not None:
            (self.folder / block.title).write_text(block.content, encoding="utf-8")

    def _python(self, block: Block, printed: str | None) -> None:
        content = block.content.replace(ADDRESS, self.url)
        code = compile("\n" * block.line + content, block.page, "exec")  # errors name the line of the page
        if block.title is None:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(code, self.namespace)
            self.printed = out.getvalue().replace(self.url, ADDRESS)
            self.silent = not self.printed

    def _console(self, block: Block, printed: str | None) -> None:
        self.printed = "".join(self._command(line) for line in commands(block))

    def _command(self, line: str) -> str:
        words = shlex.split(line)
        assigned = dict(word.split("=", 1) for word in takewhile(lambda word: re.match(r"[A-Z_]+=", word), words))
        name, *arguments = words[len(assigned) :]
        if name == "seewhy" and not re.search(r"[|<>;&$`]", line):
            files = [sorted(glob.glob(word)) or [word] if "*" in word else [word] for word in arguments]
            with patch.dict(os.environ, assigned):
                result = CliRunner().invoke(main, [word for group in files for word in group], catch_exceptions=False)
            assert result.exit_code == 0, f"{line}: {result.output}"
            return result.stdout
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        process = subprocess.run(
            ["bash", "-c", SHELL + line.replace(ADDRESS, self.url)],
            env={**os.environ, "PATH": path, "PYTHONPATH": f"{ROOT}{os.pathsep}{self.folder}"},
            capture_output=True,
            text=True,
        )
        assert process.returncode == 0, f"{line}: {process.stdout}{process.stderr}"
        return process.stdout.replace(self.url, ADDRESS)

    def _text(self, block: Block, printed: str | None) -> None:
        if block.title is not None:
            return
        assert printed is not None, "an output stands right after its block"
        pattern = re.escape(block.content.strip()).replace(re.escape("..."), ".*")
        assert re.fullmatch(pattern, printed.strip(), flags=re.DOTALL), printed

    def _json(self, block: Block, printed: str | None) -> None:
        excerpt = json.loads(block.content)
        if printed:
            assert part(excerpt, json.loads(printed)), printed

    def _toml(self, block: Block, printed: str | None) -> None:
        for table in tomllib.loads(block.content).get("models", {}).values():
            ModelDeclaration.model_validate(table)

    def _yaml(self, block: Block, printed: str | None) -> None:
        list(yaml.safe_load_all(block.content))

    def _math(self, block: Block, printed: str | None) -> None:
        """The site's build converts it."""

    _nginx = _plain = _math


def commands(block: Block) -> list[str]:
    """Return the commands of a block, continued lines joined, comments left out."""
    lines = block.content.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def part(excerpt: Any, whole: Any) -> bool:
    """Say whether what is shown is a part of a JSON value: some members, the first items, numbers to a hundredth."""
    if isinstance(excerpt, dict):
        return isinstance(whole, dict) and all(name in whole and part(excerpt[name], whole[name]) for name in excerpt)
    if isinstance(excerpt, list):
        return isinstance(whole, list) and len(excerpt) <= len(whole) and all(map(part, excerpt, whole))
    if isinstance(excerpt, float):
        return isinstance(whole, float) and abs(excerpt - whole) <= 0.01 * max(abs(whole), 1e-3)
    return bool(excerpt == whole)
