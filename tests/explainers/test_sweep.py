"""Whole torchvision models against autograd: the most different architectures; `make sweep` goes through all 80."""

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from seewhy.explainers.hooks.session import HookSession
from tests.grids import UNLIKE, few
from tools.sweep import COLUMNS, NAMES, PAGE, TOLERANCE, check, difference, main, prepare, reference

SAMPLE = {
    "mobilenet_v3_small",  # in-place hard-swish
    "shufflenet_v2_x0_5",  # views
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """At these sizes more threads wait for each other longer than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    gc.collect()  # the large models leave room for the next


OF_ANY_SIZE = [name for name in UNLIKE if name != "maxvit_t"]
"""Networks for small pictures; `make sweep` has the other, which takes longer than ten of these."""


@pytest.mark.parametrize("name", few(OF_ANY_SIZE, SAMPLE))
def test_every_record_of_a_classifier_equals_autograd(name):
    row = check(name)
    assert (row.equal, row.change) == (row.modules, 0), row
    assert row.alive == row.ran > row.modules / 2


def scale_one_gradient(hooks: HookSession) -> None:
    gradients = hooks._registry.records["grad_input"]["layer2.0.conv1"][0]
    gradients.put(0, gradients.leaves[0] * (1 + 1e-4))


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda hooks: hooks.outputs["layer1.0.relu"][1].mul_(1 + 1e-4), id="value of the second call"),
        pytest.param(scale_one_gradient, id="gradient"),
    ],
)
def test_one_wrong_record_is_found(spoil: Callable[[HookSession], object], monkeypatch):
    original = HookSession.backward

    def backward(self: HookSession, score: torch.Tensor) -> None:
        original(self, score)
        spoil(self)

    monkeypatch.setattr(HookSession, "backward", backward)
    row = check("resnet18")
    assert row.equal == row.modules - 1
    assert row.worst > TOLERANCE


@pytest.mark.slow
def test_records_that_in_place_operations_reach_are_found(monkeypatch):
    monkeypatch.setattr("seewhy.explainers.hooks.call_site.copied", lambda value: value)
    row = check("resnet18")
    assert row.modules - row.equal >= sum(isinstance(part, nn.ReLU) for part in prepare("resnet18")[0].modules())


def test_the_reference_is_what_autograd_says_of_leaves():
    """The reference itself, against leaves put in by hand: of one module called twice, and before `out += identity`."""
    module, images = prepare("resnet18")
    _, calls = reference(module, images, 5)
    block, stem = module.layer1[0], calls["layer1.0"][0].input

    def rest(features: torch.Tensor) -> torch.Tensor:
        features = module.layer4(module.layer3(module.layer2(module.layer1[1](features))))
        return module.fc(module.avgpool(features).flatten(1))[0, 5]

    first = block.bn1(block.conv1(stem)).requires_grad_()
    second = block.bn2(block.conv2(first.relu())).detach().requires_grad_()
    summed = (second + stem).detach().requires_grad_()
    (summed_gradient,) = torch.autograd.grad(rest(summed.relu()), summed)
    (second_gradient,) = torch.autograd.grad(rest((second + stem).relu()), second)
    (first_gradient,) = torch.autograd.grad(rest((block.bn2(block.conv2(first.relu())) + stem).relu()), first)
    relus = calls["layer1.0.relu"]
    for actual, expected in (
        (relus[0].input, first),
        (relus[0].grad_input, first_gradient),
        (calls["layer1.0.bn2"][0].output, second),
        (calls["layer1.0.bn2"][0].grad_output, second_gradient),
        (relus[1].input, summed),
        (relus[1].grad_input, summed_gradient),
    ):
        assert difference(actual, expected.detach()) < 1e-6


def test_the_command_prints_the_table(capsys):
    main(["squeezenet1_1", "--bare", "60"])
    printed = capsys.readouterr()
    head, rule, row, total = (line.strip("| ").split(" | ") for line in printed.out.splitlines())
    assert head == list(COLUMNS)
    assert len(rule) == len(row) == len(head)
    assert row[0] == "squeezenet1_1"
    assert int(row[-1]) > 0
    assert total[-1] == f"{row[-1]} of {row[2]}"
    assert "1/1 squeezenet1_1: 68 of 68 equal" in printed.err


@pytest.mark.parametrize("bare", few([[], ["--bare", "0"]], short=[["--bare", "0"]]))
def test_the_command_writes_the_page(bare, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tools.sweep.NAMES", ["squeezenet1_1"])
    monkeypatch.setattr("tools.sweep.PAGE", tmp_path / "sweep.md")
    main(["--write", *bare])
    text = (tmp_path / "sweep.md").read_text(encoding="utf-8")
    assert text.endswith(capsys.readouterr().out)
    assert ("that 0 seconds were not enough" in text) is ("| – |" in text) is bool(bare)
    assert f"`{' '.join(['python -m tools.sweep --write', *bare])}`" in text


@pytest.mark.parametrize("arguments", [["resnet81"], ["resnet18", "--write"]])
def test_the_command_refuses(arguments, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert "error" in capsys.readouterr().err


def test_the_page_has_all_models_and_each_is_equal():
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    head, _, *rows, total = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    assert len(NAMES) == 80
    assert [row[0] for row in rows] == NAMES
    sums = dict.fromkeys(("modules", "run", "with a gradient", "calls", "equal"), 0)
    for cells in rows:
        row = dict(zip(head, cells, strict=True))
        assert row["equal"] == row["modules"], row
        assert row["with a gradient"] == row["run"], row
        assert float(row["largest relative difference"]) <= TOLERANCE
        assert float(row["change of the logits"]) == 0
        for name in sums:
            sums[name] += int(row[name])
    totals = dict(zip(head, total, strict=True))
    assert {name: int(totals[name]) for name in sums} == sums
