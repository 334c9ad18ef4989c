"""Every Python block of docs/hooks.md runs, in order and in one namespace, and prints exactly what the page shows."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[1] / "docs" / "hooks.md"


@pytest.fixture(autouse=True)
def same_random_numbers_after() -> Iterator[None]:
    with torch.random.fork_rng():
        yield


def test_every_block_of_the_page_prints_what_is_shown(capsys):
    text = PAGE.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```$)?", text, flags=re.DOTALL | re.MULTILINE))
    assert len(blocks) == text.count("```python") > 10
    assert sum(block[2] is not None for block in blocks) == text.count("```text"), (
        "an output stands right after its block"
    )
    namespace = {"__name__": "docs.hooks"}
    for block in blocks:
        line = text.count("\n", 0, block.start()) + 1
        exec(compile("\n" * line + block[1], str(PAGE), "exec"), namespace)  # errors name the line of the page
        assert capsys.readouterr().out == (block[2] or ""), f"the block at line {line} of {PAGE.name}"
