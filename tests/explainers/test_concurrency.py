"""Eight threads in one module at once: each gets what it would get alone."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch import Tensor, nn

from seewhy.explainers import GradCAM, HookSession, Saliency
from tests import nets

THREADS, ROUNDS = 8, 4


pytestmark = pytest.mark.usefixtures("frequent_switches")


def together(work: Callable[[int], Tensor]) -> list[list[Tensor]]:
    start = Barrier(THREADS)

    def repeat(number: int) -> list[Tensor]:
        start.wait()
        return [work(number) for _ in range(ROUNDS)]

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(repeat, range(THREADS)))


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("explainer", [GradCAM(layers=("conv",)), Saliency()], ids=["gradcam", "saliency"])
def test_explanations_of_one_module_in_eight_threads(explainer, train, untouched, generator):
    net = nets.seeded(nets.Stochastic)
    pictures = torch.randn(THREADS, 1, 3, 24, 24, generator=generator)
    alone = [explainer.explain(net, picture).maps for picture in pictures]
    untouched(net.train(train))
    results = together(lambda number: explainer.explain(net, pictures[number]).maps)
    for expected, maps in zip(alone, results, strict=True):
        assert all(torch.equal(values, expected) for values in maps)


def test_sessions_on_one_module_in_eight_threads(resnet18: nn.Module, generator, untouched):
    untouched(resnet18)
    pictures = torch.randn(THREADS, 1, 3, 32, 32, generator=generator)

    def gradient(number: int) -> Tensor:
        with HookSession(resnet18) as hooks:
            hooks.record("layer4", "layer1.*")
            resnet18(pictures[number])[:, number].sum().backward()
        assert len(hooks.outputs["layer1.0.relu"]) == 2
        return hooks.grad_outputs["layer4"][0] + hooks.grad_inputs["layer1.0.conv1"][0].sum()

    alone = [gradient(number) for number in range(THREADS)]
    for expected, gradients in zip(alone, together(gradient), strict=True):
        assert all(nets.relative_error(values, expected) < 1e-5 for values in gradients)


def test_sessions_may_end_while_other_threads_call_the_module(untouched):
    net = untouched(nn.Sequential(*(nn.ReLU() for _ in range(4))))

    def last_of_many(number: int) -> Tensor:
        for _ in range(4):
            with HookSession(net) as hooks:
                hooks.record("*")
                net(torch.full((1, 2), float(number)))
        return hooks.outputs["3"][0]

    for number, outputs in enumerate(together(last_of_many)):
        assert all(torch.equal(output, torch.full((1, 2), float(number))) for output in outputs)
