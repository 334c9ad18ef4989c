import pytest

from explainers import GradCAM, Saliency, get_method, list_methods
from explainers.errors import OptionError
from explainers.registry import METHODS, _catalogue


def test_methods_have_names_papers_and_costs():
    assert list_methods() == ["gradcam", "saliency"]
    for name, method in METHODS.items():
        assert method.name == name
        assert method.paper.url.startswith("https://arxiv.org/abs/")
        assert method.paper.url.removeprefix("https://arxiv.org/abs/") in (method.explainer.__doc__ or "")
        assert str(method.paper.year) in method.explainer.__doc__
        assert method.forwards >= 1


def test_case_is_ignored_and_unknown_names_list_near_matches():
    assert get_method("GradCAM") is METHODS["gradcam"]
    with pytest.raises(OptionError, match="Near matches: gradcam") as caught:
        get_method("grad-cam")
    assert caught.value.field == "method"
    with pytest.raises(OptionError, match="Choose from gradcam, saliency"):
        get_method("zzz")


@pytest.mark.parametrize(
    ("name", "options", "explainer"),
    [
        ("gradcam", {}, GradCAM()),
        ("gradcam", {"layers": ["a", "b"], "sign": "signed"}, GradCAM(("a", "b"), "signed")),
        ("saliency", {"sign": "positive"}, Saliency("positive")),
    ],
)
def test_options_make_the_explainer(name, options, explainer):
    assert get_method(name).build(options) == explainer


@pytest.mark.parametrize(
    ("name", "options", "field", "message"),
    [
        ("gradcam", {"sing": "signed"}, "sing", "Near matches: sign"),
        ("gradcam", {"zzz": 1}, "zzz", "It takes layers, sign"),
        ("saliency", {"layers": ["a"]}, "layers", "no option 'layers'"),
        ("saliency", {"sign": "negative"}, "sign", "'positive', 'signed' or 'absolute'"),
        ("gradcam", {"layers": 4}, "layers", "must be a list"),
        ("gradcam", {"layers": [4]}, "layers", "must be text"),
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
    assert all(option["description"] for method in METHODS.values() for option in method.options.values())
    assert get_method("gradcam").takes_layers
    assert not get_method("saliency").takes_layers


def test_a_name_given_twice_is_an_error():
    with pytest.raises(ValueError, match="'gradcam'"):
        _catalogue(METHODS["gradcam"], METHODS["gradcam"])
