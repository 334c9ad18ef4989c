"""Links of the site: each method has its own page there, while the repository has all of them in one file."""

import re
from pathlib import Path
from typing import Any

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor

PAGES = Path("docs", "methods")
"""The folder of these pages, from that of mkdocs.yml."""

_BEFORE_FENCES = 100


class _Pages(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        text = re.sub(r"<!-- sections -->.*?<!-- end of sections -->", _anchors, "\n".join(lines), flags=re.DOTALL)
        return re.sub(r"\bmethods\.md#([\w-]+)", _page, text).split("\n")


def _anchors(sections: re.Match[str]) -> str:
    """Return what remains of sections: the places that links lead to."""
    names = re.findall(r"^### `(.+)`$", sections[0], flags=re.MULTILINE)
    return "".join(f'<a id="{name.replace("+", "p")}"></a>' for name in names)


def _page(link: re.Match[str]) -> str:
    return f"methods/{link[1]}.md" if (PAGES / f"{link[1]}.md").is_file() else link[0]


class Links(Extension):
    """Leads links to a method to its page, and leaves out the sections of these pages."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Enter it into this converter."""
        md.preprocessors.register(_Pages(md), "links", _BEFORE_FENCES)


def makeExtension(**options: Any) -> Links:  # noqa: N802
    """Return the extension; Python-Markdown looks for this name."""
    return Links(**options)
