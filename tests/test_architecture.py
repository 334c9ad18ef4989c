"""The layers of the package, checked by reading the imports: explainers, models, app, from the bottom up."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent
FLOORS = ["explainers", "models", "app"]
MODULES = sorted(file.relative_to(ROOT) for floor in FLOORS for file in (ROOT / floor).rglob("*.py"))
FOREIGN = {"explainers": {"torchvision", "timm", "flask", "gunicorn"}, "models": {"flask", "gunicorn"}, "app": set()}


@cache
def parsed(file: Path) -> ast.AST:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


@cache
def imported(file: Path) -> list[str]:
    names = []
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def test_a_module_imports_only_its_own_floor_and_those_below():
    offenders = []
    for file in MODULES:
        floor = file.parts[0]
        above = set(FLOORS[FLOORS.index(floor) + 1 :])
        names = [name.split(".") for name in imported(file)]
        roots = {name[0] for name in names} | {name[1] for name in names if name[0] == "seewhy" and len(name) > 1}
        wrong = roots & (above | FOREIGN[floor] | {"tests", "tools"})
        wrong |= {name[0] for name in names} & {*FLOORS}  # the package is `seewhy`
        offenders += [f"{file} imports {name}" for name in sorted(wrong)]
    assert offenders == []


ROOMS = re.findall(r"^\| `([\w/.]+)` \|", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"), re.MULTILINE)
"""The rooms, as the page lists them: each may use those above it in the list."""


def room_of(path: str) -> str:
    """Return the room that a file, or a module by its path, is in; nothing for the front of a floor."""
    return next((room for room in ROOMS if path.startswith(room.removesuffix("/").removesuffix(".py"))), "")


def reach_of(name: str) -> str:
    """Return the room of an imported name; of what a front hands out, the highest that it may come from."""
    floor, _, _ = name.removeprefix("seewhy").removeprefix(".").partition(".")
    rooms = [room for room in ROOMS if room.startswith(floor if floor in FLOORS else "models")]
    return room_of("/".join(name.split(".")[1:])) or rooms[-1]


def test_the_page_lists_each_room_and_none_that_is_not_there():
    fronts = {f"{floor}/__init__.py" for floor in FLOORS}
    assert [file for file in map(str, MODULES) if not room_of(file) and file not in fronts] == []
    assert [room for room in ROOMS if not (ROOT / room).exists()] == []


def test_rooms_use_only_what_the_page_lists_before_them():
    upwards = []
    for file in filter(room_of, map(str, MODULES)):
        for name in imported(Path(file)):
            is_ours = name.partition(".")[0] == "seewhy"
            if is_ours and ROOMS.index(reach_of(name)) > ROOMS.index(room_of(file)):
                upwards.append(f"{file} uses {name}")
    assert upwards == []


def test_no_files_import_each_other():
    """Not even to name a type, or inside a function."""
    files = {".".join(["seewhy", *file.with_suffix("").parts]): file for file in MODULES if file.name != "__init__.py"}
    names = {name: {*imported(file)} for name, file in files.items()}
    used = {name: {*files} & {*needs, *(need.rpartition(".")[0] for need in needs)} for name, needs in names.items()}
    TopologicalSorter(used).prepare()  # which raises, and names the circle


def test_methods_and_inspection_know_tasks_by_their_protocol_alone():
    offenders = [
        f"{file} uses {name}"
        for file in map(str, MODULES)
        if file.startswith(("explainers/methods/", "explainers/inspection/"))
        for name in imported(Path(file))
        if name.startswith("seewhy.explainers.tasks.") and not name.startswith("seewhy.explainers.tasks.pose.")
    ]
    assert offenders == []


def test_hooks_are_registered_in_one_room_only():
    offenders = [
        f"{file} calls {node.attr}"
        for file in MODULES
        if file.parent != Path("explainers/hooks")
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.Attribute) and node.attr.startswith("register_") and "hook" in node.attr
    ]
    assert offenders == []


ALONE = r"Tracker|torch\.jit\.trace|torch\.compile|(fx\.)?symbolic_trace|tracer\.trace|.*\bcatch_warnings|spec\.build"
"""What changes the whole process for a while; `explainers/process_wide.py` says how."""

NEVER = r"torch\.(set_default_.*|manual_seed|seed|random\..*|func\..*)|.*\b(jvp|dual_level|register_module_.*)"
"""What changes it for good, or in a way that one lock cannot help."""


EXCEPTIONS = {
    "models/hub.py": {"warnings.catch_warnings"},  # is imported: whoever imports must not wait to be alone
    "explainers/process_wide.py": {"torch.set_default_dtype"},  # puts back, alone, what a factory left changed
}


def calls(tree: ast.AST, alone: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield what is called, and whether that stands in ``with exclusive():``."""
    if isinstance(tree, ast.Call):
        yield ast.unparse(tree.func), alone
    entered = [item.context_expr for item in tree.items] if isinstance(tree, ast.With) else []
    entered += tree.decorator_list if isinstance(tree, ast.FunctionDef) else []
    for node in entered:
        alone = alone or ast.unparse(node).startswith("exclusive(")
        yield from calls(node, alone)
    for node in ast.iter_child_nodes(tree):
        if not any(node is expression for expression in entered):
            yield from calls(node, alone)


def test_what_changes_pytorch_for_all_threads_is_alone_in_the_process():
    offenders = [
        f"{file} calls {name}"
        for file in MODULES
        for name, alone in calls(parsed(file))
        if name not in EXCEPTIONS.get(file.as_posix(), ())
        if re.fullmatch(NEVER, name) or (re.fullmatch(ALONE, name) and not alone)
    ]
    assert offenders == []


def test_every_module_says_what_lives_in_it():
    for file in MODULES:
        assert ast.get_docstring(parsed(file)), file


def test_no_sentence_is_cut_off_where_its_line_ends():
    """A string on a line of its own, behind one that ends in a space, belongs to it, and needs parentheses."""
    offenders = [
        f"{file}:{second.lineno}"
        for file in MODULES
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.If)
        for first, second in pairwise(node.body)
        if isinstance(second, ast.Expr) and isinstance(second.value, ast.Constant | ast.JoinedStr)
        if ast.unparse(first).rstrip("'\"").endswith(" ")
    ]
    assert offenders == []
