from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from seewhy.explainers import GradCAM
from seewhy.explainers.errors import LayerError, ModelOutputError, UnsupportedModuleError
from seewhy.explainers.hooks.evaluation import evaluation_mode
from seewhy.explainers.hooks.registered import count_hooks
from seewhy.explainers.hooks.selection import as_module
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.tasks.classification import logits_of
from tests import nets
from tests.grids import few


class Recorder(nn.Module):
    """Stands in for a module and keeps its input and output in the graph: the reference, without any hook."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.entered, self.left = inner, list[Tensor](), list[Tensor]()

    def forward(self, features: Tensor) -> Tensor:
        self.entered.append(features.clone())
        self.left.append(self.inner(self.entered[-1].clone()))
        return self.left[-1].clone()


def with_recorders(module: nn.Module, path: str = "") -> dict[str, Recorder]:
    recorders = {}
    for name, child in list(module.named_children()):
        recorders |= with_recorders(child, f"{path}{name}.")
        recorders[path + name] = Recorder(child)
        setattr(module, name, recorders[path + name])
    return recorders


@pytest.fixture(scope="module")
def reference(resnet18: nn.Module) -> dict[str, tuple[list[Tensor], ...]]:
    """Per path of a ResNet-18: inputs, outputs and their gradients, call by call, from autograd alone."""
    module = deepcopy(resnet18)
    recorders = with_recorders(module)
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    score = module(images)[:, 3].sum()
    results = {}
    for path, recorder in recorders.items():
        gradients = torch.autograd.grad(score, recorder.entered + recorder.left, retain_graph=True)
        calls = len(recorder.entered)
        detached = [value.detach() for value in recorder.entered], [value.detach() for value in recorder.left]
        results[path] = (*detached, list(gradients[:calls]), list(gradients[calls:]))
    return results


@pytest.fixture
def session(resnet18: nn.Module, untouched) -> HookSession:
    """A finished session that recorded everything in the same pass as the reference."""
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with HookSession(untouched(resnet18)) as hooks:
        hooks.record("*")
        resnet18(images)[:, 3].sum().backward()
    return hooks


@pytest.mark.slow
def test_every_record_of_a_resnet_equals_autograd(session, reference):
    result = (session.inputs, session.outputs, session.grad_inputs, session.grad_outputs)
    assert len(reference) == 67
    for path, expected in reference.items():
        for records, values in zip(result, expected, strict=True):
            assert len(records[path]) == len(values)
            for record, value in zip(records[path], values, strict=True):
                assert nets.relative_error(record, value) < 1e-5, path


def test_a_module_called_twice_has_one_entry_per_call_in_call_order(session):
    first, second = session.outputs["layer1.0.relu"]
    assert torch.equal(first, session.inputs["layer1.0.conv2"][0])
    assert torch.equal(second, session.outputs["layer1.0"][0])


def test_frozen_module_and_plain_images_get_gradients_without_grad_fields(images, untouched):
    net = untouched(nets.seeded(nets.Net).requires_grad_(False))
    with HookSession(net) as hooks:
        hooks.record("stem", "conv")
        net(images)[:, 0].sum().backward()
    assert hooks.grad_inputs["stem"][0].shape == images.shape
    assert hooks.grad_outputs["conv"][0].abs().sum() > 0
    assert images.grad is None
    assert not images.requires_grad


def test_without_gradient_mode_only_values_are_recorded(images, untouched):
    net = untouched(nets.seeded(nets.InPlaceModule))
    with torch.no_grad(), HookSession(net) as hooks:
        hooks.record("conv", "relu")
        net(images)
    assert hooks.grad_outputs["conv"] == [None]
    assert hooks.grad_inputs["conv"] == [None]
    assert hooks.outputs["conv"][0].min() < 0, "the in-place ReLU after it must not reach the record"
    assert torch.equal(hooks.outputs["conv"][0].relu(), hooks.outputs["relu"][0])


@pytest.mark.parametrize("kind", [nets.InPlaceModule, nets.InPlaceFunction, nets.AddsInto, nets.PreActivation])
def test_in_place_operations_change_neither_logits_nor_records(kind, images, untouched):
    net = untouched(nets.seeded(kind).requires_grad_(False))
    expected = net(images)
    conv = net.conv(net.stem(images))
    with HookSession(net) as hooks:
        hooks.record("*")
        logits = net(images)
        logits[:, 1].sum().backward()
    assert torch.equal(logits, expected)
    assert torch.equal(hooks.outputs["conv"][0], conv)
    leaf = conv.clone().requires_grad_()
    score = net.head(net.middle(leaf.clone()).mean(dim=(2, 3)))[:, 1].sum()
    (gradient,) = torch.autograd.grad(score, leaf)
    assert nets.relative_error(hooks.grad_outputs["conv"][0], gradient) < 1e-5


def test_tuples_dicts_and_keywords_keep_their_structure(images, untouched):
    net = untouched(nets.seeded(nets.TupleInside).requires_grad_(False))
    expected = net(images)
    with HookSession(net) as hooks:
        hooks.record("pair")
        logits = net(images)
        logits[:, 0].sum().backward()
    assert torch.equal(logits, expected)
    features, more = hooks.outputs["pair"][0]
    features_gradient, more_gradients = hooks.grad_outputs["pair"][0]
    assert torch.allclose(features_gradient[:, 0] * features[0, 0].numel(), more["shifted"][:, 0])
    assert torch.allclose(more_gradients["shifted"][:, 0] * features[0, 0].numel(), features[:, 0])
    pictures, keywords = hooks.inputs["pair"][0]
    assert torch.equal(pictures, images)
    assert keywords["scale"] == 2.0
    given_gradient, keyword_gradients = hooks.grad_inputs["pair"][0]
    assert given_gradient.shape == images.shape
    assert keyword_gradients["scale"] is None
    assert keyword_gradients["shift"].shape == keywords["shift"].shape


def test_a_session_without_keywords_records_the_bare_argument(images):
    net = nets.seeded(nets.Net)
    with HookSession(net) as hooks:
        hooks.record("stem", kinds=["input"])
        net(images)
    assert torch.equal(hooks.inputs["stem"][0], images)
    assert hooks.outputs == hooks.grad_inputs == hooks.grad_outputs == {}


def test_no_gradient_arrives_at_what_the_score_does_not_depend_on(images):
    net = nets.seeded(nets.NoGradAfter).requires_grad_(False)
    with HookSession(net) as hooks:
        hooks.record("conv", "head")
        net(images).sum().backward()
    assert hooks.grad_outputs["conv"] == [None]
    assert hooks.grad_outputs["head"][0].shape == (4, 3)


def test_recording_twice_makes_one_entry_and_the_empty_path_is_the_model_itself(images):
    net = nets.seeded(nets.Net)
    with HookSession(net) as hooks:
        hooks.record("conv")
        hooks.record("c*nv")
        assert hooks.record("") == ("",)
        logits = net(images)
    assert [len(hooks.inputs["conv"]), len(hooks.outputs["conv"])] == [1, 1]
    assert torch.equal(hooks.outputs[""][0], logits)


def test_an_integer_output_is_recorded_and_has_no_gradient(images):
    net = nets.Wrapped(nets.seeded(nets.Net), lambda logits: logits.argmax(dim=1))
    with HookSession(net) as hooks:
        hooks.record("")
        net(images)
    assert hooks.outputs[""][0].dtype == torch.int64
    assert hooks.grad_outputs[""] == [None]


def test_an_exception_in_the_forward_pass_leaves_nothing(images, untouched):
    net = untouched(nets.seeded(nets.Fails))

    def run() -> None:
        with HookSession(net) as hooks:
            hooks.cut("conv")
            hooks.record("*")
            net(images)

    with pytest.raises(ZeroDivisionError):
        run()


def test_gradient_mode_returns_to_what_it_was(images):
    net = nets.seeded(nets.Net)
    with torch.no_grad():
        with HookSession(net) as hooks:
            hooks.cut("conv")
            net(images)
            assert torch.is_grad_enabled()
        assert not torch.is_grad_enabled()


def test_the_cut_keeps_nothing_before_it(images):
    net = nets.seeded(nets.Net)
    with HookSession(net) as hooks:
        hooks.cut("conv")
        hooks.record("stem", "conv")
        logits = net(images)
        hooks.backward(logits[:, 0].sum())
    assert hooks.grad_outputs["stem"] == [None]
    assert hooks.grad_outputs["conv"][0] is not None
    assert all(parameter.grad is None for parameter in net.parameters())


def test_backward_says_that_the_layer_did_not_run(images):
    net = nets.seeded(nets.Net)
    with HookSession(net) as hooks:
        hooks.cut("unused")
        logits = net(images)
        with pytest.raises(LayerError, match="did not run"):
            hooks.backward(logits.sum())


def test_a_session_that_is_not_open_refuses(images):
    hooks = HookSession(nets.seeded(nets.Net))
    for method in ("before_forward", "after_forward", "full_backward", "output_gradient", "parameter_gradient"):
        with pytest.raises(RuntimeError, match="not open"):
            getattr(hooks, method)(print, "conv.weight" if method == "parameter_gradient" else "conv")
    with pytest.raises(RuntimeError, match="not open"):
        hooks.cut("conv")
    with hooks:
        hooks.record("conv")
    with pytest.raises(RuntimeError, match="not open"):
        hooks.record("stem")


def test_an_unknown_kind_is_refused():
    with HookSession(nets.seeded(nets.Net)) as hooks, pytest.raises(ValueError, match="weights"):
        hooks.record("conv", kinds=["weights"])


def test_globs_match_in_module_order_and_an_unknown_layer_lists_near_matches(resnet18):
    with HookSession(resnet18) as hooks:
        assert hooks.record("layer[42]", "conv1", kinds=["output"]) == ("conv1", "layer2", "layer4")
        paths = hooks.record("layer1.?.conv*", kinds=["output"])
        assert paths == ("layer1.0.conv1", "layer1.0.conv2", "layer1.1.conv1", "layer1.1.conv2")
        with pytest.raises(LayerError, match=r"'laier4'.*layer4"):
            hooks.record("laier4")
        with pytest.raises(LayerError, match=r"'zzz\*'.*conv1, bn1, relu"):
            hooks.record("zzz*")


def test_a_shared_module_is_recorded_under_both_names(images):
    net = nets.seeded(nets.Net)
    net.alias = net.conv
    with HookSession(net) as hooks:
        hooks.record("conv", "alias", kinds=["output"])
        net(images)
    assert torch.equal(hooks.outputs["conv"][0], hooks.outputs["alias"][0])


def test_hooks_on_every_module_see_it_around_its_run(images, untouched):
    net = untouched(nets.seeded(nets.InPlaceModule))
    names = {module: path for path, module in net.named_modules()}
    records = []
    with HookSession(net) as hooks:
        hooks.before_forward(lambda module, args: records.append(f"+{names[module]}"), "*")
        hooks.after_forward(lambda module, args, output: records.append(f"-{names[module]}"), nn.Module)
        net(images)
    assert records == ["+", "+stem", "-stem", "+conv", "-conv", "+relu", "-relu", "+head", "-head", "-"]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # older torch, of itself
@pytest.mark.parametrize("kind", few([nn.DataParallel, torch.compile], short=[nn.DataParallel]))
def test_wrappers_whose_submodules_never_run_are_refused(kind):
    with pytest.raises(UnsupportedModuleError, match="pass"):
        HookSession(kind(nets.seeded(nets.Net)))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_a_scripted_module_is_refused():
    with pytest.raises(UnsupportedModuleError, match="TorchScript"):
        HookSession(torch.jit.script(nn.Linear(2, 2)))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch, while it compiles
def test_what_lies_in_a_compiled_part_is_refused_and_the_part_itself_is_not(images):
    net = nets.seeded(nets.InPlaceModule)
    net.conv = torch.compile(nn.Sequential(net.conv), backend="eager")
    for where in ("conv._orig_mod", "conv._orig_mod.0", "conv._orig_mod*"):
        with HookSession(net) as hooks, pytest.raises(UnsupportedModuleError, match=r"_orig_mod.*torch\.compile"):
            hooks.record(where)
    with HookSession(net) as hooks:
        hooks.record("conv", "head")
        hooks.backward(net(images).sum())
    assert hooks.outputs["conv"][0].shape == hooks.grad_outputs["conv"][0].shape


def test_as_module_takes_a_loaded_model_and_refuses_the_rest(lite0):
    assert as_module(lite0) is lite0.module
    with pytest.raises(UnsupportedModuleError, match="got str"):
        as_module("resnet18")


@pytest.mark.parametrize(
    "output",
    [
        pytest.param(lambda logits: logits, id="tensor"),
        pytest.param(lambda logits: {"logits": logits, "features": logits}, id="dict"),
        pytest.param(lambda logits: (logits, logits[0]), id="tuple"),
        pytest.param(lambda logits: {"anything": logits, "loss": logits.sum()}, id="the only one"),
        pytest.param(lambda logits: type("Output", (), {"logits": logits})(), id="attribute"),
    ],
)
def test_logits_are_found_in_what_classifiers_return(output):
    logits = torch.ones(2, 3)
    assert logits_of(output(logits)) is logits


@pytest.mark.parametrize("output", [None, torch.ones(3), (torch.ones(2, 3), torch.ones(2, 3)), {}])
def test_an_output_without_logits_is_refused(output):
    with pytest.raises(ModelOutputError, match="logits of shape"):
        logits_of(output)


def test_evaluation_mode_returns_when_its_last_holder_leaves():
    net = nets.seeded(nets.Stochastic)
    net.norm.train()
    with evaluation_mode(net):
        with evaluation_mode(net):
            assert not net.norm.training
        assert not net.norm.training
    assert net.norm.training
    assert not net.dropout.training


class Shared(nn.Module):
    """Goes on using a tensor that a submodule returned, modified or not."""

    def __init__(self, shared: nn.Module, after: bool) -> None:
        super().__init__()
        self.conv, self.shared, self.mix, self.head = nn.Conv2d(3, 4, 3), shared, nn.Conv2d(4, 4, 1), nn.Linear(4, 3)
        self.after = after

    def classify(self, x: Tensor, y: Tensor) -> Tensor:
        if self.after:
            y.mul_(3)
        z = self.mix(y) + x
        return self.head((z * z).mean(dim=(2, 3)))

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv(images)
        return self.classify(x, self.shared(x))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("shared", [nn.ReLU(inplace=True), nn.Dropout(), nn.Identity()])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_tensor_that_others_hold_too_stays_shared(shared, after, frozen):
    torch.manual_seed(1)
    net = Shared(shared, after).eval().requires_grad_(not frozen)
    images = torch.rand(2, 3, 8, 8)
    bare = net(images).detach()
    leaf = shared(net.conv(images)).detach().requires_grad_()
    copy = leaf.clone()
    # What both names of the tensor stand for, if the module or what comes after it modified it in place.
    together = after or isinstance(shared, nn.ReLU)
    logits = net.classify(copy if together else leaf.detach(), copy)
    torch.testing.assert_close(logits.detach(), bare)
    (gradient,) = torch.autograd.grad(logits[:, 1].sum(), leaf)
    with HookSession(net) as hooks:
        hooks.record("shared", kinds=("output", "grad_output"))
        recorded = net(images)
        # Autograd itself refuses to go back through an in-place ReLU whose output was modified.
        if not frozen and not (after and isinstance(shared, nn.ReLU)):
            recorded[:, 1].sum().backward()
            torch.testing.assert_close(hooks.grad_outputs["shared"][0], gradient)
            torch.testing.assert_close(hooks.outputs["shared"][0], leaf.detach())
            torch.testing.assert_close(recorded.detach(), bare)
    net.zero_grad(set_to_none=True)
    attribution = GradCAM(layers=("shared",), sign="signed").explain(net, images, torch.tensor([1, 1]))
    torch.testing.assert_close(attribution.logits, bare)
    expected = torch.einsum("nc,nchw->nhw", gradient.mean(dim=(2, 3)), leaf.detach())
    torch.testing.assert_close(attribution.maps, expected)


class FrozenBackbone(nets.Net):
    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.conv(self.stem(images))
        return self.head(features.relu().mean(dim=(2, 3)))


def test_a_backbone_that_runs_without_gradients_can_be_explained_when_frozen(images):
    net = nets.seeded(FrozenBackbone)
    with pytest.raises(LayerError, match="requires_grad_"):
        GradCAM(layers=("conv",)).explain(net, images)
    assert torch.is_grad_enabled()
    net.requires_grad_(False)
    assert GradCAM(layers=("conv",)).explain(net, images).maps.any()


def test_a_session_can_be_used_again_and_starts_afresh():
    net = nn.Sequential(nn.ReLU())
    session = HookSession(net)
    for batch in (1, 2):
        with session as hooks:
            hooks.record("0")
            net(torch.rand(batch, 3))
        assert [output.shape[0] for output in session.outputs["0"]] == [batch]
    with session, pytest.raises(RuntimeError, match="already open"), session:
        pass


class Borrowing(nn.Module):
    """Passes its own parameter and buffer, and its input, through modules that return what they get."""

    def __init__(self) -> None:
        super().__init__()
        self.same, self.also, self.third = nn.Identity(), nn.Dropout(), nn.Identity()
        self.conv, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.rand(1, 4, 8, 8))
        self.register_buffer("shift", torch.rand(1, 4, 8, 8))

    def forward(self, images: Tensor) -> Tensor:
        features = self.conv(self.third(images)) * self.same(self.scale) + self.also(self.shift)
        return self.head(features.relu().mean(dim=(2, 3)))


@pytest.mark.parametrize("frozen", [False, True])
def test_parameters_buffers_and_inputs_that_pass_through_a_cut_stay_leaves(frozen):
    torch.manual_seed(0)
    net, images = Borrowing().eval().requires_grad_(not frozen), torch.rand(1, 3, 8, 8)
    with HookSession(net) as hooks:
        hooks.cut("same", "also", "third", "conv")
        hooks.record("same", "also", "third", "conv")
        hooks.backward(net(images).sum())
    for value in (net.scale, net.shift, images):
        assert value.is_leaf
        assert value.grad is None
    assert net.scale.requires_grad is not frozen
    assert not net.shift.requires_grad
    assert not images.requires_grad
    deepcopy(net)


def branches() -> nn.Module:
    def middle(net: nn.Module, features: Tensor) -> Tensor:
        first, second = net.first(features), net.second(features)
        second += first
        return second * second

    first, second = (nn.Sequential(nn.Conv2d(5, 5, 3, padding=1), nn.ReLU(inplace=True)) for _ in range(2))
    return nets.Middle(middle, first=first, second=second)


def test_parallel_branches_that_meet_in_place_explain_alike_frozen_or_not(images):
    net = nets.seeded(branches)
    explainer = GradCAM(layers=("first.1", "second.1"), sign="signed")
    free = explainer.explain(net, images)
    frozen = explainer.explain(net.requires_grad_(False), images)
    torch.testing.assert_close(free.maps, frozen.maps)
    torch.testing.assert_close(free.logits, net(images))


def test_one_tensor_through_one_module_in_two_passes_keeps_its_gradients_apart():
    net = nn.Sequential(nn.Identity(), nn.Flatten(), nn.Linear(12, 1))
    images = torch.rand(1, 3, 2, 2, requires_grad=True)
    with HookSession(net) as hooks:
        hooks.record("0")
        first, second = net(images), net(images)
        first.sum().backward()
        (2 * second).sum().backward()
        gradient, double = hooks.grad_outputs["0"]
    torch.testing.assert_close(2 * gradient, double)


def test_hooks_of_all_kinds_are_counted():
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert count_hooks(module) == 0
    handles = [
        module.register_forward_pre_hook(lambda *_: None),
        module[0].register_forward_hook(lambda *_: None),
        module[1].register_full_backward_hook(lambda *_: None),
        module[1].register_full_backward_pre_hook(lambda *_: None),
        module[0].weight.register_hook(lambda _: None),
    ]
    assert count_hooks(module) == 5
    for handle in handles:
        handle.remove()
    assert count_hooks(module) == 0


def test_a_path_without_records_names_those_that_have_some():
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    with HookSession(net) as hooks:
        hooks.record("0", "1", kinds=["output"])
        hooks.record("1", kinds=["grad_output"])
        net(torch.ones(1, 2)).sum().backward()
    with pytest.raises(KeyError, match=r"Nothing was recorded of 'act'\. There are records of: '0', '1'\."):
        hooks.outputs["act"]
    with pytest.raises(KeyError, match=r"There are records of: '1'"):
        hooks.grad_outputs["0"]
    with pytest.raises(KeyError, match="There are records of: nothing"):
        hooks.inputs["0"]
    assert hooks.outputs.get("act") is None
