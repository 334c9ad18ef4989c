"""Properties of every metric of the catalogue, and refusals of invalid input."""

import pytest
import torch
from torch import nn

from seewhy.explainers.core.ask import Ask
from seewhy.explainers.errors import OptionError, UnknownOptionError, UnsuitableModelError
from seewhy.explainers.execution import chunks
from seewhy.explainers.execution.progress import Progress
from seewhy.explainers.methods.catalogue import METHODS, get_method
from seewhy.explainers.papers import PAPERS
from seewhy.explainers.trust.metrics.catalogue import (
    METRICS,
    build_metrics,
    entry_of,
    get_metric,
    list_metrics,
    metric,
)
from seewhy.explainers.trust.metrics.measure import measure, passes
from tests import nets

FEW = {"samples": 2, "masks": 6, "stages": 2}
OF_PICTURES = [name for name, entry in METRICS.items() if not entry.metric.over_pictures]
CONTROLS = ("random", "edges", "centre")


def small(names):
    """Return metrics that cost little."""
    return {name: METRICS[name].build({key: FEW[key] for key in FEW if key in METRICS[name].options}) for name in names}


def built(*methods):
    return {name: get_method(name).build({}) for name in methods}


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return nets.seeded(nets.Net)


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(3, 3, 12, 14, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def truth() -> torch.Tensor:
    places = torch.zeros(3, 12, 14, dtype=torch.bool)
    places[:, 3:8, 4:9] = True
    return places


@pytest.fixture(scope="module")
def values(net, images, truth):
    return measure(net, images, built("gradcam", *CONTROLS), small(OF_PICTURES), truth=truth).values


@pytest.mark.slow
def test_a_value_does_not_depend_on_the_other_pictures(net, images, truth, values, monkeypatch):
    monkeypatch.setattr(chunks, "MOST", 2)
    for row in range(3):
        part = slice(row, row + 1)
        alone = measure(net, images[part], built("gradcam"), small(OF_PICTURES), truth=truth[part]).values["gradcam"]
        for name, value in alone.items():
            torch.testing.assert_close(value, values["gradcam"][name][part], atol=1e-4, rtol=1e-3, equal_nan=True)


def test_values_are_one_number_for_each_picture_and_column(values):
    columns = {column for name in OF_PICTURES for column in METRICS[name].columns}
    assert all(row.keys() == columns for row in values.values())
    for row in values.values():
        for value in row.values():
            assert value.shape == (3,)
            assert value.dtype == torch.float32
            assert value.device.type == "cpu"
            assert value.isfinite().all()


def test_all_methods_are_measured_for_the_same_targets(net, images):
    metrics = small(["insertion"])
    likely = measure(net, images, built("centre"), metrics).values
    asked = measure(net, images, built("centre"), metrics, Ask(net(images).argmax(dim=1))).values
    assert torch.equal(likely["centre"]["insertion"], asked["centre"]["insertion"])
    other = measure(net, images, built("centre"), metrics, Ask((net(images).argmax(dim=1) + 1) % 3)).values
    assert not torch.equal(other["centre"]["insertion"], asked["centre"]["insertion"])


def test_noisy_pictures_are_explained_for_the_same_targets(images):
    net = nets.Weighted((1.0, -1.0, 0.0), (-1.0, 1.0, 0.0), (0.0, 0.5, -1.0))
    metrics = {"max-sensitivity": METRICS["max-sensitivity"].build({"samples": 2, "radius": 10})}
    likely, asked = (
        measure(net, images, built("input-x-gradient"), metrics, ask).values["input-x-gradient"]["max-sensitivity"]
        for ask in (Ask(), Ask(net(images).argmax(dim=1)))
    )
    assert torch.equal(likely, asked)
    noise = 10 * (2 * torch.rand(3, 12, 14, generator=torch.Generator().manual_seed(0)) - 1)
    assert not torch.equal(net(images).argmax(dim=1), net(images + noise).argmax(dim=1))  # or this tests nothing


@pytest.mark.parametrize("name", OF_PICTURES)
def test_the_forward_passes_are_those_of_the_catalogue(name, net, images, truth):
    """At most: what an accelerator, or a mask that is the same, saves is not counted."""
    rows, methods, metrics = list[int](), built("saliency", "edges"), small([name])
    measure(net, images[:1], methods, metrics, truth=truth[:1])  # which also looks at memory, once
    if "mprt" in name:  # the counter is copied too, and counts in its copies
        return
    with net.register_forward_pre_hook(lambda _, args: rows.append(len(args[0]))):
        measure(net, images[:1], methods, metrics, truth=truth[:1])
    assert 0 < sum(rows) <= passes(net, (3, 12, 14), methods, metrics).forwards


def test_progress_rises_to_its_end_and_can_be_cancelled(net, images, truth):
    shares = []

    def cancel():
        if shares and shares[-1] > 0.5:
            raise TimeoutError

    watched = Progress(report=lambda done, total: shares.append(done / total))
    arguments = net, images, built("gradcam", "centre"), small(["insertion", "mprt"])
    measure(*arguments, progress=watched)
    assert shares == sorted(shares)
    assert shares[-1] <= 1
    shares.clear()
    with pytest.raises(TimeoutError):
        measure(*arguments, progress=Progress(report=watched.report, cancel=cancel))


def test_progress_is_that_of_the_passes(net, images):
    shares = []
    methods = {"smoothgrad": METHODS["smoothgrad"].build({"samples": 40})}
    watched = Progress(report=lambda done, total: shares.append(done / total))
    measure(net, images, methods, {"sparseness": METRICS["sparseness"].build({})}, progress=watched)
    assert shares[-1] > 0.9  # the metric needs no pass


def test_every_metric_has_an_equation_a_paper_and_options_that_say_what_they_are():
    for entry in METRICS.values():
        assert entry.equation, entry.name
        assert entry.paper.url.startswith("https://"), entry.name
        assert all(option["description"] for option in entry.options.values()), entry.name
        assert set(entry.needs) <= {"truth", "pictures"}
        passes(nets.seeded(nets.Net), (3, 8, 8), {}, {entry.name: entry.build({})})
    assert sorted(list_metrics()) == sorted(METRICS)


def test_controls_are_marked_in_the_catalogue_and_know_no_class(net, images):
    assert {name for name, entry in METHODS.items() if entry.family == "control"} == set(CONTROLS)
    for name in ("edges", "centre"):
        explainer = get_method(name).build({})
        maps = [explainer.explain(net, images, Ask(torch.full((3,), index))).maps for index in (0, 1)]
        assert torch.equal(*maps)
        assert maps[0].shape == (3, 12, 14)
        assert (maps[0] >= 0).all()


def test_edges_are_where_the_picture_changes(net):
    images = torch.zeros(1, 3, 12, 16)
    images[:, :, :, 8:] = 1
    (sharp,) = get_method("edges").build({"blur": 0}).explain(net, images).maps
    torch.testing.assert_close(sharp[:, 7:9], torch.full((12, 2), 0.5))
    assert sharp[:, :7].count_nonzero() == sharp[:, 9:].count_nonzero() == 0
    (soft,) = get_method("edges").build({"blur": 0.1}).explain(net, images).maps
    torch.testing.assert_close(soft.sum(), sharp.sum())
    assert soft.amax() < 0.5


def test_the_centre_is_largest_in_the_middle(net):
    (map_,) = get_method("centre").build({}).explain(net, torch.zeros(1, 3, 9, 13)).maps
    assert map_[4, 6] == map_.max() == 1
    torch.testing.assert_close(map_, map_.flip(0, 1))
    assert map_[0, 0] < 0.05


@pytest.mark.parametrize(
    ("names", "options", "message", "field"),
    [
        (["insertoin"], {}, "no metric 'insertoin'. Near matches: insertion", "metrics"),
        (["drop"], {}, "Near matches: average-drop", "metrics"),
        (["road", "ROAD"], {}, "'road' is given twice", "metrics"),
        ([], {}, "No metric is given; name some of", "metrics"),
        (["road"], {"road.imputaton": "fast"}, "no option 'imputaton'. Near matches: imputation", "road.imputaton"),
        (["road"], {"raod.seed": 1}, "belongs to a metric that is not measured. Near matches: road", "raod.seed"),
        (["road"], {"road.noise": -1}, "Option 'noise' of metric 'road': It must be greater", "road.noise"),
        (["road"], {"road.imputation": "slow"}, "'fast' or 'exact'", "road.imputation"),
    ],
)
def test_what_cannot_be_measured_is_refused(names, options, message, field):
    with pytest.raises(OptionError, match=message) as caught:
        build_metrics(names, options)
    assert caught.value.field == field


def test_the_table_of_papers_has_one_for_each_method_and_metric_and_no_other():
    entries = {**METHODS, **METRICS}
    assert {name: entry.paper for name, entry in entries.items() if entry.paper in PAPERS.values()} == PAPERS
    assert len({*PAPERS.values()}) == len({paper.url for paper in PAPERS.values()})


def test_a_metric_is_its_parameters():
    kind = METRICS["insertion"].metric
    assert kind(steps=4) == build_metrics(["insertion"], {"insertion.steps": "4"})["insertion"]
    assert hash(kind()) == hash(kind())
    assert build_metrics([kind(steps=4), "road"], {})["insertion"].steps == 4
    assert entry_of(kind()).name == "insertion"
    with pytest.raises(UnknownOptionError, match=r"no option 'step'\. Near matches: steps"):
        kind(step=4)
    with pytest.raises(ValueError, match="Two metrics are named 'road'"):
        metric("road", aspect="faithfulness", better="higher")(kind)


def test_truth_must_be_known(net, images):
    with pytest.raises(
        OptionError, match=r"pointing-game, energy-in-box: this metric needs to know where the targets lie"
    ) as caught:
        measure(net, images, built("centre"), small(["pointing-game", "energy-in-box"]))
    assert caught.value.field == "boxes"


def test_a_metric_that_cannot_measure_a_method_says_why(images):
    difull = {"difull": get_metric("difull").build({"sure": 0})}
    five, asked = torch.cat([images, images[:2]]), Ask(torch.arange(5))
    net = nets.seeded(nets.Net, 5)
    measurement = measure(net, five, built("fullgrad", "gradcam"), difull, asked)
    assert measurement.reasons["fullgrad"]["difull"].startswith("The output of 'network.")
    assert all(values.isnan().all() for values in measurement.values["fullgrad"].values())
    assert measurement.reasons["gradcam"] == {}
    assert measurement.values["gradcam"]["difull"].isfinite().all()
    with pytest.raises(UnsuitableModelError):  # whatever the metric
        measure(net, five, built("attention-rollout"), difull, asked)


def test_mosaics_need_classes_that_are_sure(net, images):
    measurement = measure(net, images, built("centre"), {"gridpg": get_metric("gridpg").build({})})
    assert "leave gridpg out" in measurement.reasons["centre"]["gridpg"]
    assert measurement.values["centre"]["gridpg"].isnan().all()
