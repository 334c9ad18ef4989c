"""The guides docs/python.md and docs/cli.md: their blocks run, and print what they say."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def blocks(page, *languages):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"```({'|'.join(languages)})\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_about_python(folder, capsys):
    namespace, said = {}, ""
    for language, block in blocks("python.md", "python", "text"):
        if language == "text":
            assert said == block
            said = ""
        else:
            exec(block, namespace)
            said += capsys.readouterr().out
    assert not said
    assert (folder / "cat-heatmap.png").is_file()
    assert (folder / "figure.png").is_file()
