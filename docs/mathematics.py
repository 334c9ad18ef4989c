"""Equations of the site as MathML, which browsers draw natively; docstrings as Markdown.

Pages write equations as forges do: a fence named `math`, or `$...$` in the text. Docstrings write them in
reStructuredText, and are turned into the same.
"""

import re
from textwrap import dedent
from typing import Any

from griffe import Extension as GriffeExtension
from griffe import Object
from markdown import Extension, Markdown
from markdown.inlinepatterns import InlineProcessor

from seewhy.explainers.results.templates import mathml

_BEFORE_ESCAPES = 185  # and after code, which has 190


def fence(source: str, language: str, css_class: str, options: dict[str, Any], md: Markdown, **kwargs: Any) -> str:
    """Return an equation of its own, for a fence named `math`."""
    return f'<div class="math">{mathml(source)}</div>'


class _Inline(InlineProcessor):
    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:  # noqa: N802
        return self.md.htmlStash.store(mathml(m[1], "inline")), m.start(0), m.end(0)


class Equations(Extension):
    """Draws `$...$`."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Enter it into this converter."""
        md.inlinePatterns.register(_Inline(r"\$(?=\S)([^$]+?)(?<=\S)\$", md), "equation", _BEFORE_ESCAPES)


def makeExtension(**options: Any) -> Equations:  # noqa: N802
    """Return the extension; Python-Markdown looks for this name."""
    return Equations(**options)


class Docstrings(GriffeExtension):
    """Turns the mathematics and the code of docstrings into Markdown."""

    def on_instance(self, *, obj: Object, **kwargs: Any) -> None:
        """Do so for one module, class or function."""
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    """Return the text of a docstring, its roles and directives of reStructuredText in Markdown."""
    text = re.sub(r"``([^`]*)``", r"`\1`", text)
    text = re.sub(r"^\.\. math::(.*?)(?=^\S|\Z)", _equation, text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r":math:`([^`]*)`", r"$\1$", text)
    text = re.sub(r"^( +)(\w+(?:, \w+)+): (.*)$", _each, text, flags=re.MULTILINE)
    return re.sub(r"^>>> .*?(?=\n\n|\Z)", r"```pycon\n\g<0>\n```", text, flags=re.DOTALL | re.MULTILINE)


def _equation(match: re.Match[str]) -> str:
    first, _, rest = match[1].strip("\n").partition("\n")
    lines = "\n".join([first.strip(), dedent(rest).strip()]).strip()
    return "".join(f"```math\n{equation}\n```\n\n" for equation in re.split(r"\n\s*\n", lines))


def _each(match: re.Match[str]) -> str:
    """Return one line for each of the arguments that a line describes together."""
    return "\n".join(f"{match[1]}{name}: {match[3]}" for name in match[2].split(", "))
