import re

import pytest

from seewhy import batch, calibrate, compare, evaluate, explain, explain_many, intervene, wrap_model
from seewhy.explainers import GradCAM, Saliency, get_method, list_methods
from seewhy.explainers.errors import OptionError
from seewhy.explainers.methods import catalogue
from seewhy.explainers.methods.cam.base import LayerExplainer
from seewhy.explainers.methods.catalogue import METHODS, Method, build_methods, method
from tests import nets


def test_methods_have_names_papers_equations_and_costs():
    assert {"gradcam", "saliency"} <= set(list_methods())
    for name, entry in METHODS.items():
        assert entry.name == name
        assert entry.papers[0] == entry.paper
        assert all(paper.url.startswith("https://") and 1990 < paper.year <= 2026 for paper in entry.papers), name
        assert entry.equation, name
        assert entry.summary.endswith(".")
        for expression in (entry.forwards, entry.backwards):
            assert re.fullmatch(r"[a-z0-9_ +*()/-]+", expression), name
        assert {"sign", "smooth"} <= set(entry.options)
        assert entry.takes_layers is issubclass(entry.explainer, LayerExplainer)


def test_case_is_ignored_and_unknown_names_list_near_matches():
    assert get_method("GradCAM") is METHODS["gradcam"]
    with pytest.raises(OptionError, match="Near matches: gradcam") as caught:
        get_method("grad-cam")
    assert caught.value.field == "method"
    with pytest.raises(OptionError, match="`seewhy methods` or GET /methods lists all methods"):
        get_method("zzz")


@pytest.mark.parametrize(
    ("name", "options", "explainer"),
    [
        ("gradcam", {}, GradCAM()),
        ("gradcam", {"layers": ["a", "b"], "sign": "signed"}, GradCAM(layers=("a", "b"), sign="signed")),
        ("saliency", {"sign": "positive"}, Saliency(sign="positive")),
    ],
)
def test_options_make_the_explainer(name, options, explainer):
    assert get_method(name).build(options) == explainer


@pytest.mark.parametrize(
    ("name", "options", "field", "message"),
    [
        ("gradcam", {"sing": "signed"}, "sing", "Near matches: sign"),
        ("gradcam", {"zzz": 1}, "zzz", "It takes sign, smooth, layers"),
        ("saliency", {"layers": ["a"]}, "layers", "no option 'layers'"),
        ("gradcam", {"samples": 10}, "samples", "`samples` is an option of .*smoothgrad"),
        ("saliency", {"sign": "negative"}, "sign", "'positive', 'signed' or 'absolute'"),
        ("gradcam", {"layers": 4}, "layer", "must be a list"),
        ("gradcam", {"layers": [4]}, "layer", "must be text"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(name, options, field, message):
    with pytest.raises(OptionError, match=message) as caught:
        get_method(name).build(options)
    assert caught.value.field == field


def test_options_are_described_by_a_schema():
    options = get_method("gradcam").options
    assert options["sign"]["enum"] == ["positive", "signed", "absolute"]
    assert options["sign"]["default"] == "positive"
    assert all(option["description"] for entry in METHODS.values() for option in entry.options.values())
    assert get_method("gradcam").takes_layers
    assert not get_method("saliency").takes_layers


def test_a_name_given_twice_is_an_error():
    entry = METHODS["gradcam"]
    with pytest.raises(ValueError, match="no family 'oracle'"):
        method("other", family="oracle", summary="", paper=entry.paper, forwards="1", backwards="1")(GradCAM)
    for name in ("gradcam", "GradCAM2"):
        with pytest.raises(ValueError, match=name):
            method(name, family="cam", summary="", paper=entry.paper, forwards="1", backwards="1")(GradCAM)
    assert METHODS["gradcam"] is entry


def test_what_cannot_be_a_method_is_an_error():
    with pytest.raises(TypeError, match="'other' must be a subclass of `Explainer`, not <class 'int'>"):
        method("other", family="cam", summary="")(int)
    with pytest.raises(OptionError, match="by its name, not GradCAM; give 'gradcam'"):
        get_method(GradCAM)
    with pytest.raises(OptionError, match=r"'gradcam' has no option 'samples'. `samples` is an option of .*smoothgrad"):
        build_methods([METHODS["gradcam"]], {"samples": 3})


def test_a_private_method_has_no_paper(monkeypatch):
    entries: dict[str, Method] = {}
    monkeypatch.setattr(catalogue, "_methods", entries)

    class Private(GradCAM):
        """Mine."""

    method("mine", family="cam", summary="My own.")(Private)
    assert entries["mine"].paper is None
    assert entries["mine"].papers == ()


def test_a_mistyped_option_of_another_method_names_that_method():
    model = wrap_model(nets.seeded(nets.Net), labels=["a", "b", "c"], input_size=32)
    with pytest.raises(OptionError, match=r"samples\. `samples` is an option of .*smoothgrad.*\. Options of grad"):
        explain(model, "a.png", samplez=3)


@pytest.mark.parametrize(
    ("function", "slip", "meant"),
    [
        (explain, "taget", "target"),
        (explain, "laier", "layer"),
        (explain_many, "batchsize", "batch_size"),
        (compare, "agianst", "against"),
        (evaluate, "controlls", "controls"),
        (calibrate, "proof_aera", "proof_area"),
        (intervene, "othr", "other"),
        (batch, "map_tipe", "map_type"),
    ],
)
def test_a_mistyped_argument_has_near_matches(function, slip, meant):
    model = wrap_model(nets.seeded(nets.Net), labels=["a", "b", "c"], input_size=32)
    edit = {"layer": "features", "op": "zero"}
    arguments = {
        explain: [model, "a.png"],
        compare: [model, "a.png", ["gradcam"]],
        intervene: [model, "a.png", [edit]],
        batch: ["a.png", "out", model],
    }
    with pytest.raises(OptionError, match=f"'gradcam' has no option '{slip}'. Near matches: {meant}") as caught:
        function(*arguments.get(function, [model, ["a.png"] * 40]), **{slip: 1})
    assert caught.value.field == slip
