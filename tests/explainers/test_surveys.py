import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from seewhy.explainers import GradCAM, HookSession
from seewhy.explainers.execution.progress import Progress
from seewhy.explainers.layers import survey_cache as surveys
from seewhy.explainers.layers.survey_cache import survey_of
from seewhy.explainers.methods.cam.gradcam_plus_plus import RefineCAM
from seewhy.explainers.methods.gradient.decomposition import FullGradients, Term
from seewhy.explainers.methods.gradient.fullgrad import FullGrad
from seewhy.explainers.process_wide import exclusive
from seewhy.explainers.tasks.pose import pose, survey, task_of
from seewhy.models import wrap_model
from tests import nets

SHAPE = (3, 32, 32)


def pooled_along_one_axis() -> nn.Module:
    stages = [nn.Sequential(nn.Conv2d(3 if not n else 4, 4, 3, padding=1), nn.MaxPool2d((2, 1))) for n in range(3)]
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)).eval()


@pytest.fixture
def survey_shapes(monkeypatch):
    """Surveys that were made, by the shape of their pictures."""
    shapes = []

    def counted(module: nn.Module, shape: tuple[int, int, int], outputs: object) -> object:
        shapes.append(shape)
        return survey(module, shape)

    monkeypatch.setattr(surveys, "survey_module", counted)
    return shapes


def test_one_survey_serves_all_layers_and_calls(survey_shapes):
    net, images = pooled_along_one_axis(), torch.rand(2, *SHAPE)
    assert GradCAM(layers=("[012]",)).explain(net, images).layers == ("0", "1", "2")
    assert GradCAM(layers=("2",)).explain(net, images).maps.shape == (2, 4, 32)  # not four channels-last rows of four
    GradCAM().explain(net, images)
    RefineCAM().explain(net, images)
    assert survey_shapes == [SHAPE]
    survey_of(net, (3, 32, 48), task_of(net).outputs)
    survey_of(net, SHAPE, task_of(net).outputs)
    assert survey_shapes == [SHAPE, (3, 32, 48)]


CHANGES = {
    "module": lambda net: net.__setitem__(0, nn.Conv2d(3, 4, 1)),
    "weight": lambda net: nn.init.zeros_(net[0][0].weight),
    "attribute": lambda net: setattr(net[0][0], "stride", (2, 2)),
    "code": lambda net: setattr(net[0], "forward", net[0].forward),
    "hook": lambda net: net[0].register_forward_hook(lambda *_: None),
    "precision": lambda net: net.bfloat16(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_module_is_surveyed_anew(change, survey_shapes):
    net = pooled_along_one_axis()
    survey_of(net, SHAPE, task_of(net).outputs)
    CHANGES[change](net)
    layers = survey_of(net, SHAPE, task_of(net).outputs)
    assert len(survey_shapes) == 2
    assert layers == survey(net, SHAPE)


def test_kept_surveys_keep_no_module(survey_shapes):
    net = pooled_along_one_axis()
    survey_of(net, SHAPE, task_of(net).outputs)
    reference = weakref.ref(net)
    del net
    gc.collect()
    assert reference() is None


def test_only_so_many_sizes_are_kept(survey_shapes):
    net = pooled_along_one_axis()
    for side in range(16, 26):
        survey_of(net, (3, side, side), task_of(net).outputs)
    assert len(surveys._surveys._entries[net]) == surveys.MOST_KEYS


def test_a_model_that_carries_its_survey_needs_no_other(survey_shapes):
    model = wrap_model(nets.seeded(nets.Net), input_size=32)
    assert survey_of(model, SHAPE, task_of(model).outputs) is model.survey
    with ThreadPoolExecutor(1) as pool, exclusive():  # as while an accelerator is prepared
        assert pool.submit(RefineCAM().explain, model, torch.rand(1, *SHAPE)).result(60).layers
    assert survey_shapes == []


def test_who_waits_to_survey_asks_whether_anybody_still_wants_it(survey_shapes):
    question = threading.Event()

    def report(*_: int) -> None:
        question.set()
        raise ZeroDivisionError

    net, images, progress = nets.seeded(nets.Net), torch.rand(1, *SHAPE), Progress(report=report)
    with ThreadPoolExecutor(1) as pool, exclusive():
        waiting = pool.submit(GradCAM().explain, net, images, progress=progress)
        with pytest.raises(ZeroDivisionError):
            waiting.result(60)
    assert question.is_set()
    assert survey_shapes == []


def test_open_sessions_see_no_survey(survey_shapes):
    net, images = pooled_along_one_axis(), torch.rand(1, *SHAPE)
    with HookSession(net) as hooks:
        hooks.record("2")
        GradCAM(layers=("2",)).explain(net, images)
        assert survey_shapes == [SHAPE]
        assert len(hooks.outputs["2"]) == 1
        net(images)
    assert len(hooks.outputs["2"]) == 2


def test_fullgrad_reads_the_maps_of_a_model_that_carries_its_survey():
    net, images = pooled_along_one_axis(), torch.rand(1, *SHAPE)
    model = wrap_model(net, input_size=32)
    views = surveys.surveyed_maps(model)
    assert views["2.1"].axes == (1, 2, 3)
    values = torch.rand(1, 4, 4, 32)  # by proportions, 32 channels in four rows and columns
    method = FullGrad(sign="signed")
    with pose(net, images) as question:
        result = FullGradients(question.plain()[0], torch.zeros(1, 5), (Term("2.1", values),))
    maps = method._map(result, (32, 32), views)
    columns = torch.stack([maps[0].sum(dim=0), values[0].sum(dim=(0, 1))])
    assert columns.corrcoef()[0, 1] > 0.99
