"""Charts of traces, read back as SVG."""

import io
import re
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image
from torch import nn

from seewhy.explainers.inspection.trace import Trace, trace_images
from seewhy.explainers.inspection.trace_chart import draw_trace
from tests.grids import few

RED, PINK = "#d55e00", "#cc79a7"


def traced(*parts: nn.Module) -> Trace:
    """Trace modules between a convolution, one of whose four maps is negative everywhere, and a linear head."""
    conv = nn.Conv2d(3, 4, 1)
    nn.init.constant_(conv.weight, 0.1)
    conv.bias.data[:] = torch.tensor([-100.0, 1.0, 1.0, 1.0])
    net = nn.Sequential(conv, *parts, nn.Flatten(), nn.Linear(4 * 16, 2))
    return trace_images(net.eval(), torch.ones(1, 3, 4, 4))


def svg(trace: Trace) -> str:
    return draw_trace(trace.events, trace.summary, "svg", "a title").decode()


def markers(chart: str, colour: str) -> int:
    """Count the markers of a colour, those of the legend among them."""
    return len(re.findall(rf"<use [^>]*fill: {colour}", chart))


def test_dead_maps_are_drawn_where_they_are_known():
    """Passed on by dropout and identity, and flattened, they are neither there nor not there."""
    chart = svg(traced(nn.ReLU(), nn.Dropout(), nn.Identity(), nn.MaxPool2d(1)))
    assert markers(chart, RED) == 1 + 2, "the legend's, the ReLU's and the pooling's"


def test_a_chart_without_zeros_says_why():
    """As of a network that calls ReLU as a function: what it returns is the output of no module."""
    for chart, said in ((svg(traced()), True), (svg(traced(nn.ReLU())), False)):
        assert ("A ReLU that is called as a function is not a module" in chart) is said


def test_the_limits_can_be_told_apart():
    chart = svg(traced(nn.ReLU()))
    lines = re.findall(r"stroke-dasharray: ([\d.]+),([\d.]+); stroke-dashoffset: 0; stroke: (#\w+)", chart)
    dashed = {colour: float(dash) > float(gap) for dash, gap, colour in lines}
    assert dashed == {RED: True, PINK: False}, "dashes and dots"
    assert len(lines) == 4, "in the axes and in the legend"


@pytest.mark.parametrize("count", few([1, 2, 60, 320], short=[2]))
def test_nets_of_all_lengths(count):
    trace = traced(*(nn.ReLU() for _ in range(count - 3))) if count > 3 else traced()
    if count < 3:
        trace = Trace(
            tuple(event for event in trace.events if event.path in "01"[:count]), trace.summary, 0, trace.logits
        )
    chart = svg(trace)
    root = ElementTree.fromstring(chart)
    assert "a title" in chart
    wide = float(root.attrib["width"].removesuffix("pt")) / 72
    assert wide == pytest.approx({1: 7.5, 2: 7.5, 60: 12, 320: 18}[count])
    assert 0 < len(re.findall(r"rotate\(-90\)|rotate\(-90 ", chart)) - 3 <= min(count, 60), "named modules"
    picture = Image.open(io.BytesIO(draw_trace(trace.events, trace.summary, "png")))
    assert picture.width == pytest.approx(wide * 110, abs=1)
