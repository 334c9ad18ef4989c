"""The floors of the house, held by reading the imports: explainers, models, app, from the ground up."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import nets

ROOT = Path(__file__).parent.parent
FLOORS = ["explainers", "models", "app"]
MODULES = sorted(file.relative_to(ROOT) for floor in FLOORS for file in (ROOT / floor).rglob("*.py"))
FOREIGN = {
    "explainers": {"torchvision", "timm", "flask", "gunicorn"},
    "models": {"flask", "gunicorn"},
    "app": set(),
}


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""


@pytest.mark.parametrize("file", MODULES, ids=nets.label)
def test_a_module_imports_only_its_own_floor_and_those_below(file):
    floor = file.parts[0]
    above = set(FLOORS[FLOORS.index(floor) + 1 :])
    roots = {name.split(".")[0] for name in imported(ast.parse((ROOT / file).read_text(encoding="utf-8")))}
    assert roots & (above | FOREIGN[floor] | {"tests"}) == set()


@pytest.mark.parametrize("file", MODULES, ids=nets.label)
def test_hooks_are_registered_in_one_file_only(file):
    names = {
        node.attr
        for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr.startswith("register_") and "hook" in node.attr
    }
    assert bool(names) is (file == Path("explainers/hooks.py"))


def test_every_module_says_what_lives_in_it():
    for file in MODULES:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), file
