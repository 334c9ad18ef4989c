"""A device other than the CPU, simulated on the CPU: `python -m tests.device [answers | METHOD ...]`.

No other tensor's operations reach its tensors: code that mixes two devices, reads numbers in between, or draws them
with the CPU's generator shows as it would on a GPU, and backward passes run in a thread of the device. It lacks speed,
and inference mode, which PyTorch does not allow for such tensors: `no_grad` replaces it here. PyTorch has only one such
device per process, permanently, so this runs in a separate process.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from seewhy.explainers import capture, evaluate, explain, intervene, list_metrics, similar, sweep_channels, trace
from seewhy.explainers.execution import deferred_checks as checks
from seewhy.explainers.methods.catalogue import get_method
from seewhy.models import load_model, wrap_model
from tests import nets
from tests.app.conftest import EXAMPLES
from tests.grids import CLASSIFYING, CONVOLUTIONAL

aten = torch.ops.aten

LOOKS = {
    *(aten._local_scalar_dense, aten.equal, aten.nonzero, aten.masked_select, aten._unique2),
    *(aten._linalg_eigh, aten._linalg_svd, aten._linalg_check_errors),
}
"""Operations whose result the processor needs, or its shape, or whether it could be had: it waits for the device."""

LAYER = "conv"
CLASSES = (1, 2)
FEW = {"iterations": 4, "samples": 80, "masks": 80, "steps": 8}
"""Options with which methods of many passes repeat what they do a few times."""


class Backend(_DummyBackendModule):
    """What PyTorch asks of a device when random numbers are put back."""

    def get_rng_state(self, device: Any = None) -> Tensor:
        """Return some state."""
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        """Keep none."""


_setup_privateuseone_for_python_backend("away", Backend())
AWAY = torch.device("away:0")


class Away(Tensor):
    """A tensor of the device: one of the processor, out of sight.

    Attributes:
        looks: the operations so far for which the processor had to wait.
    """

    tensor: Tensor
    looks: ClassVar[list[str]] = []

    @staticmethod
    def __new__(cls, tensor: Tensor) -> "Away":
        """Hide a tensor."""
        away: Away = Tensor._make_wrapper_subclass(
            cls,
            tensor.shape,
            strides=tensor.stride(),
            storage_offset=tensor.storage_offset(),
            dtype=tensor.dtype,
            layout=tensor.layout,
            device=AWAY,
        )
        away.tensor = tensor
        return away

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation on what is hidden, and hide what comes out."""
        kwargs = dict(kwargs or {})
        values = tree_leaves((args, kwargs))
        strangers = [value for value in values if isinstance(value, Tensor) and not isinstance(value, Away)]
        copies = func in (aten.copy_.default, aten._to_copy.default)
        leaves = "device" in kwargs and torch.device(kwargs["device"]).type == "cpu"
        leaves = leaves or (func is aten.copy_.default and not isinstance(args[0], Away))
        if leaves or func.overloadpacket in LOOKS or (func.overloadpacket is aten.index and _masks(args[1])):
            cls.looks.append(str(func))
        elif not copies and any(stranger.ndim for stranger in strangers) and func.overloadpacket is not aten.index:
            raise RuntimeError(f"{func} takes tensors of two devices.")
        if any(isinstance(value, torch.Generator) for value in values):
            raise RuntimeError(f"{func} draws with the generator of the processor.")
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        result = func(*_plain_values(args), **_plain_values(kwargs))
        if leaves:
            return result
        return return_and_correct_aliasing(func, args, kwargs, _away_values(result))

    def tolist(self) -> Any:
        """Return the numbers, as PyTorch does but for classes of one's own."""
        self.looks.append("tolist")
        return self.tensor.tolist()

    def __repr__(self, **_: Any) -> str:
        return f"Away({tuple(self.shape)})"


class Straight(nets.Net):
    """Its logits are a linear layer of the averages of its feature maps, as CAM wants them."""

    def middle(self, features: Tensor) -> Tensor:
        """Return the feature maps."""
        return features


def _masks(indices: Any) -> bool:
    """Whether an index chooses by conditions, so that somebody has to count them."""
    return any(index is not None and index.dtype is torch.bool for index in indices)


def _plain_values(values: Any) -> Any:
    return tree_map(lambda value: value.tensor if isinstance(value, Away) else value, values)


def _away_values(values: Any) -> Any:
    return tree_map(lambda value: Away(value) if isinstance(value, Tensor) else value, values)


def _empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **_: Any) -> Tensor:
    return Away(torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    return Away(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: Tensor, to: Tensor, non_blocking: bool = False) -> Tensor:
    if not isinstance(to, Away):
        Away.looks.append("copy")
    _plain_values(to).copy_(_plain_values(source))
    return to


_operations = torch.library.Library("aten", "IMPL")
for _name, _operation in (
    ("empty.memory_format", _empty),
    ("empty_strided", _empty_strided),
    ("_copy_from", _copy_from),
):
    _operations.impl(_name, _operation, "PrivateUse1")


@contextmanager
def no_inference_mode() -> Iterator[None]:
    """Take `torch.no_grad` for `torch.inference_mode`."""
    original = torch.inference_mode
    torch.inference_mode = lambda mode=True: torch.no_grad() if mode else nullcontext()  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        torch.inference_mode = original  # type: ignore[misc]


def difference(name: str) -> tuple[float, str, list[str]]:
    """Return how far the maps of a method are from the processor's, where they lie, and the looks within the batch."""
    kinds = {"cam": Straight, **dict.fromkeys({*CLASSIFYING} - {*CONVOLUTIONAL}, nets.Transformer)}
    here = nets.seeded(kinds.get(name, nets.Net))
    away = deepcopy(here).to(AWAY)
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    method, targets = get_method(name), torch.tensor(CLASSES)
    options = {option: value for option, value in FEW.items() if option in method.options}
    explainer = method.build(options | ({"layers": (LAYER,)} if method.takes_layers else {}))
    expected, there = explainer.explain(here, images, targets).maps, images.to(AWAY)
    Away.looks.clear()
    with checks.deferred():
        maps = explainer.explain(away, there, targets).maps
        looks = list(Away.looks)
    return nets.relative_error(maps.cpu(), expected), maps.device.type, looks


def answers(device: torch.device) -> dict[str, list[float]]:
    """Return some numbers of each thing that Python offers, with the embedded model on a device."""
    model = load_model("efficientnet_lite0", device=device, accelerator="eager")
    cat, coffee = (EXAMPLES / name for name in ("cat.png", "coffee.png"))
    edits = [
        {"layer": "blocks.3", "op": "noise", "value": 0.5, "seed": 3},
        {"layer": "blocks.2", "op": "swap", "channels": [0, 1]},
        {"layer": "blocks.2", "at": "grad_output", "op": "scale", "value": 2},
    ]
    kinds = ("input", "output", "grad_input", "grad_output", "parameter_grad")
    captured = capture(model, cat, ["blocks.3.1", "bn2"], kinds)
    swept = sweep_channels(model, cat, {"layer": "blocks.3", "op": "zero"})
    intervened = intervene(model, cat, edits, other=coffee, method="saliency")
    compared = similar(model, cat, coffee)
    traced = trace(model, cat, layers=["blocks.*"])
    proof = explain(model, cat, against="tabby", proof="full").proof
    part = proof.faithfulness
    cheap = {"sensitivity-n.masks": 4, "infidelity.masks": 4, "max-sensitivity.samples": 1, "mprt.stages": 1}
    several = {"smooth-mprt.stages": 1, "smooth-mprt.samples": 2}
    small = wrap_model(nets.seeded(nets.Net).to(device), ("a", "b", "c"), input_size=32)
    pictures = [EXAMPLES / f"{name}.png" for name in ("astronaut", "cat", "coffee", "rocket")]
    mosaics = {"gridpg", "difull"}  # of four classes
    alone = [name for name in list_metrics() if name not in mosaics]
    boxes = [(50.0, 50.0, 150.0, 150.0)] * 2
    evaluations = (
        evaluate(small, pictures[:2], ["gradcam"], alone, boxes=boxes, controls=False, **cheap, **several),
        evaluate(model, pictures, ["gradcam"], sorted(mosaics), controls=False, **{"gridpg.sure": 0, "difull.sure": 0}),
    )
    return {
        # Without what ranks places of a map: rounding decides the order of almost equal ones.
        "evaluate": [
            value
            for evaluation in evaluations
            for (_, column), values in evaluation.values.items()
            if not column.endswith(("-top", "mprt"))
            for value in values.tolist()
        ],
        "explain": explain(model, cat).map.flatten().tolist(),
        "prove": [
            *(part.kept, part.dropped, part.turned_dropped, part.hidden, part.value, part.score),
            *(proof.copies.beaten, proof.copies.lead),
        ],
        "capture": [float(array.double().norm()) for array in captured.arrays.values()],
        "sweep": [channel.score_change for channel in sorted(swept.channels, key=lambda effect: effect.channel)],
        "intervene": [intervened.score_change, *(intervened.after.map - intervened.before.map).flatten().tolist()],
        "similar": [compared.score, *(pair.contribution for pair in compared.pairs)],
        "trace": [tensor.statistics.norm for event in traced.events for tensor in event.tensors if tensor.statistics],
    }


def main() -> None:
    """Print, as JSON, what `difference` returns for the methods named, or for all; or ``answers``, here and there."""
    with no_inference_mode():
        if sys.argv[1:] == ["answers"]:
            results: Any = [answers(torch.device("cpu")), answers(AWAY)]
        else:
            results = {name: difference(name) for name in sys.argv[1:] or CLASSIFYING}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
