"""Every module of every torchvision classifier: a session's records compared with autograd without a session.

`python -m tools.sweep` prints the table, for the models named or for all; with `--write` it goes to docs/sweep.md.
"""

import argparse
import gc
import math
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import tree_flatten, tree_unflatten

from seewhy.explainers.hooks.session import HookSession
from tools.tables import printed

NAMES: list[str] = torchvision.models.list_models(module=torchvision.models)
SIDES = (32, 64, 75, 96, 128, 160, 192, 224, 299)
TOLERANCE = 1e-5
PAGE = Path(__file__).parents[1] / "docs" / "sweep.md"
# Without these two arguments, torchvision warns that their slow initialisation may be removed.
OPTIONS = {"googlenet": {"init_weights": False}, "inception_v3": {"init_weights": False}}
COLUMNS = (
    "model",
    "input side",
    "modules",
    "run",
    "with a gradient",
    "calls",
    "equal",
    "largest relative difference",
    "change of the logits",
    "bare hook raises",
)


@dataclass(frozen=True)
class Row:
    """The result of the check of a model.

    Attributes:
        name: name of the model in torchvision.
        side: side of the square input, in pixels.
        modules: all that the model lists, containers and itself included.
        ran: the modules that were called at least once.
        alive: the modules with an output whose gradient is not zero everywhere, so that its comparison is meaningful.
        calls: calls of all modules together.
        equal: the modules of which all four kinds of all calls equal the reference.
        worst: the largest relative difference of a recorded tensor; infinite if one is missing or has another shape.
        change: the largest difference between the logits with and without the session.
        bare: the modules on which PyTorch's own full backward hook raises; None if not all were tried.
    """

    name: str
    side: int
    modules: int
    ran: int
    alive: int
    calls: int
    equal: int
    worst: float
    change: float
    bare: int | None = None


@dataclass
class Call:
    """The arguments and the output of one call of a module, and the gradients of both, each in the value's
    structure."""

    input: Any = None
    output: Any = None
    grad_input: Any = None
    grad_output: Any = None
    edges: dict[str, list[GradientEdge | None]] = field(default_factory=dict)


def build(name: str) -> nn.Module:
    """Make a model with fixed random weights whose activations and gradients neither vanish nor explode."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = torchvision.models.get_model(name, weights=None, **OPTIONS.get(name, {}))
        for parameter in module.parameters():
            # Nothing would flow through heads that start as zeros, or layer scales of 1e-6.
            if parameter.ndim > 1 and parameter.abs().max() < 1e-5:
                nn.init.normal_(parameter, std=0.1)
    return module.eval().requires_grad_(False)


def smallest_side(module: nn.Module) -> int:
    """Return the first of `SIDES` that the model accepts."""
    for side in SIDES:
        try:
            with torch.no_grad():
                module(torch.zeros(1, 3, side, side))
        except (RuntimeError, AssertionError, ValueError):
            continue
        return side
    raise ValueError(f"The model takes none of {SIDES}.")


def calibrate(module: nn.Module, images: Tensor) -> None:
    """Set the statistics of batch norms to those of some pictures."""
    norms = [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]
    if not norms:
        return
    for norm in norms:
        norm.momentum = 1.0  # drop the earlier statistics
        norm.train()
    with torch.no_grad():
        module(images)
    module.eval()


def prepare(name: str) -> tuple[nn.Module, Tensor]:
    """Return a frozen model in evaluation mode and one picture for it."""
    module = build(name)
    side = smallest_side(module)
    images = torch.randn(8, 3, side, side, generator=torch.Generator().manual_seed(0))
    calibrate(module, images)
    # One of the pictures of the statistics: any other may lie far outside those of few values, and explode.
    return module, images[:1]


def reference(module: nn.Module, images: Tensor, category: int) -> tuple[Tensor, dict[str, list[Call]]]:
    """Return the logits, and each call of each module by path, by means of PyTorch alone.

    Every tensor that a module gets or returns is replaced by a clone. The clone is used here only, so the gradient
    that `torch.autograd.grad` finds for it is that of this use; and its gradient edge, taken at this moment, stays that
    of this value, whatever is done to it in place later.
    """
    paths = {part: path for path, part in module.named_modules()}
    calls: dict[str, list[Call]] = {path: [] for path in paths.values()}
    running: list[Call] = []

    def enter(part: nn.Module, args: Any, kwargs: Any) -> Any:
        call = Call()
        calls[paths[part]].append(call)
        running.append(call)
        (args, kwargs), (copies, keyword_copies), call.edges["grad_input"] = _cloned((args, kwargs))
        # As a session has it: the argument alone, or the tuple of several, keywords as a last dict.
        call.input = (*copies, keyword_copies) if keyword_copies else copies[0] if len(copies) == 1 else copies
        return args, kwargs

    def leave(part: nn.Module, args: Any, output: Any) -> Any:
        call = running.pop()
        output, call.output, call.edges["grad_output"] = _cloned(output)
        return output

    handles = [part.register_forward_pre_hook(enter, with_kwargs=True) for part in paths]
    handles += [part.register_forward_hook(leave) for part in paths]
    try:
        logits = module(images)
    finally:
        for handle in handles:
            handle.remove()
    entries = [(call, kind) for per_path in calls.values() for call in per_path for kind in call.edges]
    edges = [edge for call, kind in entries for edge in call.edges[kind] if edge is not None]
    derivatives = iter(torch.autograd.grad(logits[0, category], edges, allow_unused=True))
    for call, kind in entries:
        gradients = [None if edge is None else next(derivatives) for edge in call.edges[kind]]
        value = call.input if kind == "grad_input" else call.output
        setattr(call, kind, tree_unflatten(gradients, tree_flatten(value)[1]))
        call.edges[kind] = []
    return logits.detach(), calls


def _cloned(values: Any) -> tuple[Any, Any, list[GradientEdge | None]]:
    """Return the value to pass on, its record, and the gradient edge of each leaf."""
    leaves, spec = tree_flatten(values)
    clones, copies = list(leaves), list(leaves)
    edges: list[GradientEdge | None] = [None] * len(leaves)
    for index, leaf in enumerate(leaves):
        if not isinstance(leaf, Tensor):
            continue
        if leaf.is_floating_point() and not leaf.requires_grad:
            leaf = leaf.detach().requires_grad_()  # pictures and tables need none of their own
        clones[index] = leaf.clone()
        copies[index] = leaf.detach().clone()
        if leaf.is_floating_point():
            edges[index] = get_gradient_edge(clones[index])
    return tree_unflatten(clones, spec), tree_unflatten(copies, spec), edges


def difference(actual: Any, expected: Any) -> float:
    """Return the largest difference over the largest expected magnitude, of the worst tensor of a structure.

    It is infinite if anything else differs: structure, shape, type, None, a number that is not finite.
    """
    actual, actual_spec = tree_flatten(actual)
    expected, expected_spec = tree_flatten(expected)
    if actual_spec != expected_spec:
        return math.inf
    return max((_difference(*pair) for pair in zip(actual, expected, strict=True)), default=0.0)


def _difference(actual: Any, expected: Any) -> float:
    if not (isinstance(actual, Tensor) and isinstance(expected, Tensor)):
        same = type(actual) is type(expected) and actual == expected
        return 0.0 if same else math.inf
    actual = actual.detach()
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return math.inf
    if not (torch.isfinite(actual).all() and torch.isfinite(expected).all()):
        return math.inf
    if torch.equal(actual, expected):
        return 0.0
    largest = float(expected.abs().max())
    return float((actual - expected).abs().max()) / largest if largest else math.inf


def check(name: str, bare: float | None = None) -> Row:
    """Record every module of a model by a session, and compare with the reference.

    Args:
        name: torchvision's.
        bare: seconds for also counting the modules on which PyTorch's own full backward hook raises.
    """
    module, images = prepare(name)
    # The picture needs a gradient, as in the session: otherwise attention takes another path, with other rounding.
    plain = module(images.clone().requires_grad_()).detach()
    category = int(plain.argmax())
    logits, calls = reference(module, images, category)
    # Clones must not change the model's results: otherwise the reference would be that of another model.
    assert difference(logits, plain) < 1e-6, name
    with HookSession(module) as hooks:
        hooks.record("*")
        logits = module(images)
        hooks.backward(logits[0, category])
    gaps = compare(hooks, calls)
    return Row(
        name=name,
        side=images.shape[-1],
        modules=len(gaps),
        ran=sum(bool(per_path) for per_path in calls.values()),
        alive=sum(any(_is_alive(call.grad_output) for call in per_path) for per_path in calls.values()),
        calls=sum(len(per_path) for per_path in calls.values()),
        equal=sum(gap <= TOLERANCE for gap in gaps.values()),
        worst=max(gaps.values()),
        change=float((logits.detach() - plain).abs().max()),
        bare=None if bare is None else count_bare(module, images, bare),
    )


def compare(hooks: HookSession, calls: dict[str, list[Call]]) -> dict[str, float]:
    """Return per path the largest relative difference of any call's records from the reference."""
    records = {
        "input": hooks.inputs,
        "output": hooks.outputs,
        "grad_input": hooks.grad_inputs,
        "grad_output": hooks.grad_outputs,
    }
    gaps = {}
    for path, expected in calls.items():
        gaps[path] = 0.0
        for kind, recorded in records.items():
            values = recorded.get(path)
            if values is None or len(values) != len(expected):
                gaps[path] = math.inf
                continue
            for value, call in zip(values, expected, strict=True):
                gaps[path] = max(gaps[path], difference(value, getattr(call, kind)))
    return gaps


def _is_alive(gradients: Any) -> bool:
    return any(isinstance(leaf, Tensor) and bool(leaf.any()) for leaf in tree_flatten(gradients)[0])


def count_bare(module: nn.Module, images: Tensor, seconds: float) -> int | None:
    """Count the modules on which PyTorch's own full backward hook makes a plain forward and backward pass raise.

    Each module takes its own pass, because the first error ends it. None if not all of them can be tried in the given
    time.
    """
    raised = 0
    start = time.monotonic()
    for part in module.modules():
        if time.monotonic() - start > seconds:
            return None
        handle = part.register_full_backward_hook(lambda part, grad_input, grad_output: None)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about modules whose input needs no gradient
                module(images.clone().requires_grad_())[0, 0].backward()
        except RuntimeError as error:
            if "is being modified inplace" not in str(error):
                raise
            raised += 1
        finally:
            handle.remove()
    return raised


def table(rows: Iterable[Row], bare: bool = False) -> Iterator[str]:
    """Yield the lines of the Markdown table, each row as soon as it is known, and the totals last."""
    columns = COLUMNS if bare else COLUMNS[:-1]
    yield _line(*columns)
    yield _line("---", *["---:"] * (len(columns) - 1))
    all_rows = []
    for row in rows:
        all_rows.append(row)
        raised = ("–" if row.bare is None else row.bare,) if bare else ()
        yield _line(row.name, row.side, *_figures(row), *raised)
    total = Row(
        name=f"**all {len(all_rows)}**",
        side=0,
        **{name: sum(getattr(row, name) for row in all_rows) for name in ("modules", "ran", "alive", "calls", "equal")},
        worst=max(row.worst for row in all_rows),
        change=max(row.change for row in all_rows),
    )
    tried = [row for row in all_rows if row.bare is not None]
    raised = (f"{sum(row.bare or 0 for row in tried)} of {sum(row.modules for row in tried)}",) if bare else ()
    yield _line(total.name, "", *_figures(total), *raised)


def _figures(row: Row) -> tuple[object, ...]:
    return row.modules, row.ran, row.alive, row.calls, row.equal, f"{row.worst:.1e}", f"{row.change:.1e}"


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def page(lines: list[str], command: str, bare: float | None) -> str:
    """Return docs/sweep.md around the lines of the table."""
    table_text = "\n".join(lines)
    versions = [package.__version__.partition("+")[0] for package in (torch, torchvision)]
    about_bare = ""
    if bare is not None:
        about_bare = f"""
*Bare hook raises* is the number of modules for which `register_full_backward_hook`, tried one module at a time, makes a
plain forward and backward pass raise. A dash means that {bare:g} seconds were not enough to try all of them.
"""
    return f"""# Hook coverage

This table compares what `HookSession` records with autograd, for every module of every torchvision classifier,
including containers and the model itself: the inputs and outputs of all calls, and their gradients. The models are
frozen and in evaluation mode, with fixed random weights (and matching batch-norm statistics). Each gets one picture,
with the first side that works out of {", ".join(map(str, SIDES))}.

The reference uses neither sessions nor taps. PyTorch's own forward hooks replace each tensor that a module receives or
returns by a clone and store the clone's gradient edge; one `torch.autograd.grad` then computes the gradients at all
edges. Its logits must equal those of the model without hooks. A module is *equal* if all calls have all four kinds in
the same structure, None where the reference has None, and all numbers agree to {TOLERANCE:g} of the tensor's largest
magnitude.

Some modules do not *run* in evaluation mode (auxiliary classifiers, linear layers whose weights attention uses
directly, stochastic depth without a shortcut, empty branches, module lists). They have no calls in the reference, and
must have none in the records. *With a gradient* counts modules whose outputs have a nonzero gradient. *Change of the
logits* is the largest difference between the logits with the session and without any hook.
{about_bare}
Printed by `{command}` with torch {versions[0]} and torchvision {versions[1]}.

{table_text}
"""


def main(arguments: list[str] | None = None) -> None:
    """Print the table; with `--write`, also write the page."""
    parser = argparse.ArgumentParser(prog="python -m tools.sweep", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAMES", help="names of torchvision's classifiers; by default all")
    parser.add_argument("--write", action="store_true", help="write docs/sweep.md too")
    parser.add_argument(
        "--bare", type=float, metavar="SECONDS", help="time for trying a bare full backward hook on a model's modules"
    )
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - set(NAMES)):
        parser.error(f"torchvision has no classifier {', '.join(unknown)}")
    if options.write and options.names:
        parser.error("docs/sweep.md has all models: give no names with --write")
    names = options.names or NAMES
    torch.set_num_threads(1)  # at these sizes, several threads wait for each other longer than they work

    def rows() -> Iterator[Row]:
        for number, name in enumerate(names, 1):
            start = time.monotonic()
            yield (row := check(name, options.bare))
            gc.collect()  # the large models leave room for the next
            took = time.monotonic() - start
            print(f"{number}/{len(names)} {name}: {row.equal} of {row.modules} equal, {took:.1f} s", file=sys.stderr)

    lines = printed(table(rows(), options.bare is not None))
    if options.write:
        words = sys.argv[1:] if arguments is None else arguments
        PAGE.write_text(page(lines, " ".join(["python -m tools.sweep", *words]), options.bare), encoding="utf-8")


if __name__ == "__main__":
    main()
