"""Templates of HTML files, and equations in them."""

import re
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from latex2mathml.converter import convert


@cache
def template(package: str, name: str) -> Template:
    """Return a template of a package."""
    loader = PackageLoader(package, "")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(name)


def mathml(equation: str, display: str = "block") -> str:
    """Return an equation in LaTeX as MathML, which browsers draw by themselves; empty without one.

    The converter does not know the operator `arg`.
    """
    return convert(re.sub(r"\\arg\b", r"\\mathrm{arg}\\,", equation), display=display) if equation else ""
