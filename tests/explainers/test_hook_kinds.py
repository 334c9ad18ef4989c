"""The four kinds of hook: their order, the values that they may replace, and the state after the session ends."""

import gc
import re
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from seewhy.explainers.errors import LayerError
from seewhy.explainers.hooks.session import HookSession
from tests import nets


class Product(nn.Module):
    """y = x1 * x2 * W with W = 5: dy/dx1 = 5 x2, dy/dx2 = 5 x1, dy/dW = x1 x2."""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.tensor(5.0))

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return x1 * x2 * self.W


def scalars(*values: float) -> list[Tensor]:
    return [torch.tensor(float(value)) for value in values]


def noting(records: list, label: object) -> Callable[..., None]:
    return lambda *_: records.append(label)


def failing(*_: object) -> None:
    raise ZeroDivisionError


def test_forward_hooks_observe_and_replace_in_order_of_registration():
    net, arguments = Product(), []
    with HookSession(net) as hooks:
        hooks.before_forward(lambda module, args: arguments.append(args), "")
        hooks.before_forward(lambda module, args: (args[0] + 1, args[1]), "")
        hooks.before_forward(lambda module, args: (args[0] * 2, args[1]), "")
        hooks.after_forward(lambda module, args, output: output + 5, "")
        hooks.after_forward(lambda module, args, output: output * 2, "")
        hooks.record("")
        output = net(*scalars(2, 3))
    assert [value.item() for value in arguments[0]] == [2, 3]
    assert [value.item() for value in hooks.inputs[""][0]] == [6, 3], "the record is what the module finally got"
    assert output.item() == hooks.outputs[""][0].item() == (6 * 3 * 5 + 5) * 2
    assert net(*scalars(2, 3)).item() == 30


def test_a_hook_before_may_return_the_only_argument_or_keywords():
    net = nets.seeded(nets.TupleInside)
    images = torch.rand(1, 3, 8, 8)
    with HookSession(net) as hooks:
        hooks.before_forward(lambda module, args: args[0] * 0, "pair")
        hooks.before_forward(lambda module, args, kwargs: (args, {**kwargs, "scale": 3.0}), "pair", with_kwargs=True)
        hooks.after_forward(lambda module, args, kwargs, output: output, "pair", with_kwargs=True)
        hooks.record("pair")
        net(images)
    pictures, keywords = hooks.inputs["pair"][0]
    assert not pictures.any()
    assert keywords["scale"] == 3.0
    with HookSession(net) as hooks:
        hooks.before_forward(lambda module, args, kwargs: args, "pair", with_kwargs=True)
        with pytest.raises(ValueError, match="pair"):
            net(images)


@pytest.mark.parametrize("shared", [False, True])
def test_what_a_module_overwrites_is_overwritten_for_others_too_where_a_hook_asks_for_it(shared, images):
    net = nets.seeded(nets.PreActivation)
    with HookSession(net) as hooks:
        hooks.before_forward(lambda module, args: args[0] - 1, "relu", shared=shared)
        hooks.before_forward(lambda module, args: args[0] + 1, "relu")
        hooks.record("relu", "conv", kinds=["output", "grad_input"])
        result = net(images)
        hooks.backward(result.sum())
    expected = net(images)
    assert torch.allclose(result, expected, atol=1e-5) is shared
    assert torch.equal(hooks.outputs["relu"][0] >= 0, torch.ones_like(hooks.outputs["relu"][0], dtype=torch.bool))
    assert bool((hooks.outputs["conv"][0] < 0).any()), "the record is of what the convolution said"


def test_full_backward_sees_what_torch_shows_and_replaces_in_order():
    net, gradients = Product(), []
    x1, x2 = scalars(2, 3)
    x1.requires_grad_()
    x2.requires_grad_()
    with HookSession(net) as hooks:
        hooks.full_backward(lambda module, grad_input, grad_output: gradients.append((grad_input, grad_output)), "")
        hooks.full_backward(lambda module, grad_input, grad_output: tuple(g + 1 for g in grad_input), "")
        hooks.full_backward(lambda module, grad_input, grad_output: tuple(g * 2 for g in grad_input), "")
        hooks.record("")
        (net(x1, x2) * 7).backward()
    assert gradients == [((torch.tensor(105.0), torch.tensor(70.0)), (torch.tensor(7.0),))]
    assert x1.grad.item() == (105 + 1) * 2
    assert x2.grad.item() == (70 + 1) * 2
    assert [gradient.item() for gradient in hooks.grad_inputs[""][0]] == [212, 142], "what finally flowed"
    net.W.grad = None


def test_a_single_gradient_may_be_returned_bare():
    net, x = nn.Sequential(nn.ReLU()), torch.ones(2, requires_grad=True)
    with HookSession(net) as hooks:
        hooks.full_backward(lambda module, grad_input, grad_output: grad_input[0] * 3, "0")
        net(x).sum().backward()
    assert x.grad.tolist() == [3, 3]


def clip(module, grad_input, grad_output):
    return grad_input[0][:1]


def drop(module, args, output):
    return output[:, :1]


WRONG_ARITY = [
    ("before_forward", {}, "module, args"),
    ("before_forward", {"with_kwargs": True}, "module, args, kwargs"),
    ("after_forward", {}, "module, args, output"),
    ("after_forward", {"with_kwargs": True}, "module, args, kwargs, output"),
    ("full_backward_pre", {}, "module, grad_output"),
    ("full_backward", {}, "module, grad_input, grad_output"),
    ("output_gradient", {}, "gradient"),
    ("parameter_gradient", {}, "gradient"),
]
"""Methods of a session, their options, and the arguments of their hooks."""


@pytest.mark.parametrize(("method", "options", "arguments"), WRONG_ARITY)
def test_a_hook_of_another_arity_is_refused_by_its_name(method, options, arguments):
    def wrong(a, b, c, d, e):
        pass

    net = nn.Sequential(nn.Linear(2, 1))
    where = "0.weight" if method == "parameter_gradient" else "0"
    with HookSession(net) as hooks:
        register = getattr(hooks, method)
        with pytest.raises(TypeError) as refused:
            register(wrong, where, **options)
        assert f"`{method}` calls hook({arguments}), but wrong (test_hook_kinds.py:" in str(refused.value)
        assert "takes (a, b, c, d, e): missing a required argument" in str(refused.value)
        parts = arguments.split(", ")
        right = {1: lambda a: None, 2: lambda a, b: None, 3: lambda a, b, c: None, 4: lambda a, b, c, d: None}
        for hook in (right[len(parts)], lambda *_: None, torch.relu):  # the last of which has no signature
            register(hook, where, **options).remove()


def test_errors_about_what_a_hook_returned_name_the_hook_and_its_place():
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    for method, hook, where, message in [
        ("full_backward", clip, "0", "clip (test_hook_kinds.py:"),
        ("full_backward", clip, "0", "of full_backward at '0' returned shape (1, 2) for a gradient of shape (2, 2)"),
        ("full_backward", lambda module, grad_input, grad_output: "five", "0", "returned str"),
        ("full_backward", lambda module, grad_input, grad_output: grad_input * 2, "0", "2 gradients for 1"),
        ("full_backward_pre", lambda module, grad_output: grad_output * 2, "0", "of full_backward_pre at '0'"),
        ("full_backward_pre", lambda module, grad_output: grad_output * 2, "0", "returned 2 gradients for 1 outputs"),
        ("output_gradient", torch.sum, "1", "The hook sum of output_gradient at '1' returned shape () for"),
        ("parameter_gradient", lambda gradient: 7, "0.bias", "of parameter_gradient at '0.bias' returned int"),
    ]:
        x = torch.ones(2, 2, requires_grad=True)
        with HookSession(net) as hooks:
            getattr(hooks, method)(hook, where)
            score = net(x).sum()
            with pytest.raises(ValueError, match=re.escape(message)):
                hooks.backward(score)


def test_an_error_in_a_model_says_which_hooks_have_changed_shapes():
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))

    def run(kind, *replacing):
        with HookSession(net) as hooks:
            for hook in replacing:
                getattr(hooks, kind)(hook, "0")
            net(torch.ones(2, 2))
        return hooks

    with pytest.raises(RuntimeError) as error:
        run("after_forward", lambda module, args, output: 2 * output, drop)  # the first keeps the shape
    (note,) = error.value.__notes__
    assert re.match(r"The hook drop \(test_hook_kinds.py:\d+\) of after_forward at '0' had returned", note)
    assert note.endswith("shapes (2, 1) in place of (2, 3).")
    with pytest.raises(RuntimeError) as error:
        run("before_forward", lambda module, args: args[0][:, :1])
    assert "of before_forward at '0' had returned shapes (2, 1) in place of (2, 2)." in error.value.__notes__[0]
    hooks = run("before_forward", lambda module, args: (args[0].repeat(2, 1),))
    with pytest.raises(ZeroDivisionError) as error, hooks:
        raise ZeroDivisionError
    assert not hasattr(error.value, "__notes__"), "of the session before"


def test_sessions_and_handles_say_what_they_are():
    net = nn.Sequential(*(nn.Linear(2, 2) for _ in range(5)))
    hooks = HookSession(net)
    assert repr(hooks) == "HookSession(Sequential, closed)"
    with hooks:
        handle = hooks.after_forward(drop, nn.Linear)
        hooks.parameter_gradient(torch.relu, "4.weight")
        hooks.record("1", "2")
        line = drop.__code__.co_firstlineno
        text = f"HookHandle(after_forward: drop (test_hook_kinds.py:{line}) at '0', '1', '2' and 2 more"
        assert repr(handle) == f"{text})"
        places = "hooks at '0', '1', '2' and 3 more; records of '1', '2'"
        assert repr(hooks) == f"HookSession(Sequential, open; {places})"
        handle.remove()
        assert repr(handle) == f"{text}, removed)"
        assert repr(hooks) == "HookSession(Sequential, open; hooks at '4.weight'; records of '1', '2')"
    assert repr(hooks) == "HookSession(Sequential, closed; records of '1', '2')"


def test_a_hook_given_to_backward_is_an_error_that_names_what_registers_it():
    with HookSession(nn.Linear(2, 2)) as hooks, pytest.raises(TypeError, match="a function; use full_backward"):
        hooks.backward(drop, "")


def test_output_gradients_are_replaced_before_the_backward_of_the_module():
    net = nn.Sequential(nn.Linear(2, 1, bias=False))
    nn.init.constant_(net[0].weight, 4)
    x = torch.ones(1, 2, requires_grad=True)
    with HookSession(net.requires_grad_(False)) as hooks:
        hooks.output_gradient(lambda gradient: gradient + 1, "0")
        hooks.output_gradient(lambda gradient: gradient * 3, "0")
        hooks.full_backward(lambda module, grad_input, grad_output: None, "0")
        hooks.record("0")
        net(x).sum().backward()
    assert hooks.grad_outputs["0"][0].item() == (1 + 1) * 3
    assert x.grad.tolist() == [[24, 24]]


@pytest.mark.parametrize("record_first", [False, True])
@pytest.mark.parametrize(("frozen", "before"), [(False, None), (True, None), (True, torch.tensor(3.0))])
def test_parameter_gradients_are_observed_and_replaced(frozen, before, record_first):
    net, gradients = Product().requires_grad_(not frozen), []
    net.W.grad = before
    with HookSession(net) as hooks:
        if record_first:
            hooks.record("", kinds="parameter_grad")
        hooks.parameter_gradient(lambda gradient: gradient + 1, "W")
        hooks.parameter_gradient(lambda gradient: gradient.double() * 2, "*")  # its type is that of the parameter
        hooks.parameter_gradient(gradients.append, Product)
        hooks.record("", kinds=["parameter_grad"])
        net(*scalars(2, 3)).backward()
        assert net.W.grad.item() == (6 + 1) * 2
    assert gradients == [torch.tensor(14.0)]
    assert hooks.parameter_grads[""]["W"].item() == 14, "what finally flowed"
    assert net.W.requires_grad is not frozen
    assert net.W.grad == (before if frozen else 14), "that of a frozen parameter comes back"
    net.W.grad = None


def test_a_parameter_behind_an_output_that_nothing_uses_has_no_gradient():
    """PyTorch runs its hooks with None, where hooks expect a tensor."""

    net = nets.Wired(lambda net, x: (net.used(x), net.unused(x)), used=nn.Linear(2, 1), unused=nn.Linear(2, 1))
    gradients = []
    with HookSession(net) as hooks:
        hooks.parameter_gradient(gradients.append, "unused.weight")
        hooks.record("*", kinds=["grad_output", "parameter_grad"])
        score, _ = net(torch.ones(1, 2))
        hooks.backward(score.sum())
    assert gradients == []
    assert hooks.parameter_grads["unused"] == {"weight": None, "bias": None}
    assert hooks.grad_outputs["unused"] == [None]
    assert hooks.parameter_grads["used"]["weight"].tolist() == [[1, 1]]


def test_sessions_that_share_a_frozen_parameter_freeze_it_when_the_last_one_ends():
    net = Product().requires_grad_(False)
    with HookSession(net) as outer:
        outer.record("", kinds=["parameter_grad"])
        with HookSession(net) as inner:
            inner.record("", kinds=["parameter_grad"])
            inner.backward(net(*scalars(2, 3)))
        assert net.W.requires_grad
    assert not net.W.requires_grad
    assert outer.parameter_grads == inner.parameter_grads == {"": {"W": torch.tensor(6.0)}}


@pytest.mark.parametrize("where", ["stem", "conv", "relu", "head", ""])
def test_parameters_that_another_session_thaws_and_freezes_in_between_do_not_matter(where, images):
    net = nets.seeded(nets.InPlaceModule).requires_grad_(False)
    kinds = ["grad_input", "grad_output"]

    def gradients(thaw: bool) -> list[Tensor]:
        with HookSession(net) as hooks:
            hooks.record(where, kinds=kinds)
            with HookSession(net) as second:
                if thaw:
                    second.record("*", kinds=["parameter_grad"])
                logits = net(images)
            assert logits.requires_grad
            hooks.backward(logits[:, 1].sum())
        return [hooks.grad_inputs[where][0], hooks.grad_outputs[where][0]]

    for gradient, expected in zip(gradients(thaw=True), gradients(thaw=False), strict=True):
        assert nets.relative_error(gradient, expected) < 1e-5


def test_unknown_parameters_list_near_matches(resnet18):
    with HookSession(resnet18) as hooks:
        with pytest.raises(LayerError, match=r"'conv1.wieght'.*conv1\.weight"):
            hooks.parameter_gradient(print, "conv1.wieght")
        with pytest.raises(LayerError, match="no parameters of their own"):
            hooks.parameter_gradient(print, nn.ReLU)
        paths = hooks.parameter_gradient(print, "bn1.*", nn.Linear).paths
        assert " ".join(paths) == "bn1.weight bn1.bias fc.weight fc.bias"
        assert hooks.parameter_gradient(print, "bn1.weight").paths == ("bn1.weight",)
        with pytest.raises(LayerError, match=r"'bn1\.running_mean'"):
            hooks.parameter_gradient(print, "bn1.running_mean")


def test_modules_are_chosen_by_path_glob_type_and_predicate(resnet18):
    with HookSession(resnet18) as hooks:
        handle = hooks.after_forward(print, "fc", nn.MaxPool2d, lambda module: hasattr(module, "downsample"))
        assert handle.paths == ("maxpool", *(f"layer{i}.{j}" for i in (1, 2, 3, 4) for j in (0, 1)), "fc")
        assert len(hooks.record(nn.Conv2d, kinds=["output"])) == 20
        with pytest.raises(LayerError, match=r"no module of the type Conv3d; it is made of .*BasicBlock"):
            hooks.record(nn.Conv3d)
        with pytest.raises(LayerError, match="predicate"):
            hooks.record(lambda module: False)


def test_instance_methods_serve_as_hooks():
    class Counter:
        calls = 0

        def note(self, *_: object) -> None:
            self.calls += 1

    counter, net = Counter(), Product()
    with HookSession(net) as hooks:
        for add in (hooks.before_forward, hooks.after_forward, hooks.full_backward, hooks.output_gradient):
            add(counter.note, "")
        hooks.parameter_gradient(counter.note, "W")
        hooks.backward(net(*scalars(2, 3)))
    assert counter.calls == 5


def test_after_the_session_no_hook_runs_and_late_gradients_still_reach_the_record():
    net, calls = Product().requires_grad_(False), []
    with HookSession(net) as hooks:
        hooks.full_backward(noting(calls, "backward"), "")
        hooks.output_gradient(noting(calls, "gradient"), "")
        hooks.record("")
        score = net(*scalars(2, 3))
    score.backward()
    assert calls == []
    assert hooks.grad_outputs[""][0].item() == 1


@pytest.mark.parametrize("where", ["before_forward", "after_forward", "full_backward", "output_gradient"])
def test_an_exception_in_a_hook_comes_through_and_leaves_nothing(where, untouched):
    net = untouched(nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True)))
    hooks = HookSession(net)

    def use() -> None:
        with hooks:
            getattr(hooks, where)(failing, "*")
            hooks.record("*", kinds=["output", "grad_output", "parameter_grad"])
            hooks.backward(net(torch.ones(1, 2)).sum())

    with pytest.raises(ZeroDivisionError):
        use()
    assert hooks.current is None


def test_current_tells_path_and_number_of_the_call_forward_and_backward():
    twice, calls = nn.Tanh(), []
    net = nn.Sequential(twice, twice)
    with HookSession(net) as hooks:

        def note(*_: object) -> None:
            calls.append((hooks.current.path, hooks.current.number))

        hooks.before_forward(note, "0")
        hooks.full_backward(note, "0")
        hooks.backward(net(torch.ones(2)).sum())
    assert calls == [("0", 0), ("0", 1), ("0", 1), ("0", 0)]


def test_a_full_backward_hook_runs_where_no_argument_can_have_a_gradient():
    net, gradients = nn.Embedding(4, 2), []
    with HookSession(net) as hooks:
        hooks.full_backward(lambda module, grad_input, grad_output: gradients.append((grad_input, grad_output)), "")
        hooks.record("", kinds=["grad_input", "grad_output", "parameter_grad"])
        hooks.backward(net(torch.tensor([1, 3])).sum())
    ((grad_input, grad_output),) = gradients
    assert grad_input == (None,)
    assert grad_output[0].tolist() == [[1, 1], [1, 1]]
    assert hooks.grad_inputs[""] == [None]
    assert hooks.parameter_grads[""]["weight"].sum(dim=1).tolist() == [0, 2, 0, 2]


def test_a_module_without_arguments_has_gradients_of_its_output():
    class Prompt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.values = nn.Parameter(torch.tensor([1.0, 2.0]))

        def forward(self) -> Tensor:
            return 3 * self.values

    records = []
    with HookSession(nets.Wired(lambda net, x: (x * net.prompt()).sum(), prompt=Prompt())) as hooks:
        hooks.record("prompt")
        hooks.full_backward(lambda module, grad_input, grad_output: records.append((grad_input, grad_output)), "prompt")
        hooks.backward(hooks.modules[""](torch.tensor([5.0, 7.0])))
    assert hooks.grad_outputs["prompt"][0].tolist() == [5, 7]
    ((grad_input, (grad_output,)),) = records
    assert grad_input == ()
    assert grad_output.tolist() == [5, 7]


def test_a_view_that_a_module_modifies_in_place_ends_with_the_session():
    def run(net: nn.Module, x: Tensor) -> Tensor:
        net.relu(x[:2])
        return (x * x).sum()

    x = torch.tensor([-1.0, 2.0, -3.0])
    with HookSession(nets.Wired(run, relu=nn.ReLU(inplace=True))) as hooks:
        hooks.record("relu")
        hooks.backward(hooks.modules[""](x))
    assert x.tolist() == [0, 2, -3]
    assert not x.requires_grad
    assert x.grad_fn is None
    assert hooks.grad_inputs["relu"][0].tolist() == [0, 4]


def test_structured_outputs_show_none_where_no_gradient_flows():
    net, gradients = nets.seeded(nets.Pair), []
    with HookSession(net) as hooks:
        hooks.full_backward(lambda module, grad_input, grad_output: gradients.append((grad_input, grad_output)), "")
        features, _ = net(torch.rand(1, 3, 8, 8), scale=2.0, shift=torch.ones(1))
        hooks.backward(features.sum())
    ((image, keywords), (of_features, of_more)) = gradients[0]
    assert image.shape == (1, 3, 8, 8)
    assert keywords == {"scale": None, "shift": None}
    assert of_features.shape == features.shape
    assert of_more == {"shifted": None}, "not a gradient of zeros"


@pytest.mark.parametrize("kind", [nets.InPlaceModule, nets.InPlaceFunction, nets.AddsInto, nets.PreActivation])
def test_hooks_of_all_kinds_survive_in_place_operations(kind, images, untouched):
    net = untouched(nets.seeded(kind).requires_grad_(False))
    expected = net(images)
    leaf = images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(net(leaf)[:, 1].sum(), leaf)
    calls = []
    with HookSession(net) as hooks:
        hooks.before_forward(lambda module, args: args, "*")
        hooks.after_forward(lambda module, args, output: output, "*")
        hooks.full_backward(lambda module, grad_input, grad_output: calls.append(module) or grad_input, "*")
        hooks.output_gradient(lambda gradient: gradient, "*")
        hooks.record("")
        logits = net(images)
        hooks.backward(logits[:, 1].sum())
    assert torch.equal(logits, expected)
    assert len(calls) == len(list(net.modules())) - 1, "all but the unused one"
    assert nets.relative_error(hooks.grad_inputs[""][0], gradient) < 1e-5


def test_backward_without_a_cut_writes_no_grad_and_says_when_nothing_is_hooked(images):
    net = nets.seeded(nets.Net)
    with HookSession(net) as hooks:
        hooks.record("*")
        hooks.backward(net(images).sum())
    assert hooks.grad_inputs["stem"][0].shape == images.shape
    assert all(parameter.grad is None for parameter in net.parameters())
    with HookSession(net.requires_grad_(False)) as hooks:
        hooks.record("unused")
        with pytest.raises(LayerError, match=r"module\.forward"):
            hooks.backward(net(images).sum())


def test_a_session_and_its_records_die_without_the_garbage_collector(images):
    net = nets.seeded(nets.InPlaceModule)

    def use(fail: bool) -> list[weakref.ref]:
        hooks = HookSession(net)
        try:
            with hooks:
                hooks.record("*", kinds=["input", "output", "grad_input", "grad_output", "parameter_grad"])
                hooks.full_backward(lambda *_: None, "*")
                hooks.output_gradient(lambda *_: None, "*")
                handle = hooks.before_forward(lambda *_: None, "*")
                if fail:
                    hooks.after_forward(lambda *_: 1 / 0, "head")
                logits = net(images)
                hooks.backward(logits.sum())
        except ZeroDivisionError:
            return [weakref.ref(hooks), weakref.ref(handle), weakref.ref(hooks.outputs["conv"][0])]
        watched = [hooks, handle, hooks.outputs["conv"][0], hooks.grad_outputs["conv"][0], logits]
        return [weakref.ref(part) for part in watched]

    gc.collect()
    gc.disable()
    try:
        assert [reference() for reference in use(fail=False) if reference() is not None] == []
        assert [reference() for reference in use(fail=True) if reference() is not None] == []
        inner = nets.seeded(nets.Net)
        reference = weakref.ref(inner)
        with HookSession(inner) as hooks:
            hooks.record("*")
            hooks.backward(inner(images).sum())
        del inner, hooks
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("kinds", [("grad_output",), ("grad_input", "grad_output")])
@pytest.mark.parametrize("short", [nn.Identity(), nn.Dropout().eval()])
def test_a_module_that_passes_its_input_on_has_a_gradient_of_its_own_whatever_is_recorded(kinds, short):
    net, pairs = nets.Wired(lambda net, x: 3 * (same := x * 1) + net.short(same), short=short), []
    x = torch.ones(1, requires_grad=True)
    with HookSession(net) as hooks:
        hooks.record("short", kinds=kinds)
        hooks.full_backward(lambda module, grad_input, grad_output: pairs.append((grad_input, grad_output)), "short")
        hooks.backward(net(x).sum())
    assert hooks.grad_outputs["short"] == [torch.tensor([1.0])]
    assert pairs == [((torch.tensor([1.0]),), (torch.tensor([1.0]),))]
    assert hooks.grad_inputs.get("short", [torch.tensor([1.0])]) == [torch.tensor([1.0])]
    with HookSession(net) as hooks:
        hooks.output_gradient(lambda gradient: gradient * 10, "short")
        net(x).sum().backward()
    assert x.grad.item() == 3 + 10


@pytest.mark.parametrize("inner", [nn.Identity(), nn.ReLU(inplace=True), nn.Dropout().eval()])
def test_what_a_module_passes_on_stays_the_tensor_that_went_in(inner):
    def run(net: nn.Module, x: Tensor) -> Tensor:
        x = x * 1
        net.inner(x).mul_(3)
        return x.sum()

    net, x = nets.Wired(run, inner=inner), torch.ones(4, requires_grad=True)
    with HookSession(net) as hooks:
        hooks.record("*")
        score = net(x)
        assert score.item() == 12
        score.backward()
    assert x.grad.tolist() == [3] * 4
    assert hooks.grad_outputs["inner"][0].tolist() == [3] * 4
    assert hooks.grad_inputs["inner"][0].tolist() == [3] * 4


def test_nested_sessions_restore_what_a_module_modifies_in_place():
    net = nets.seeded(nets.PreActivation)
    images = torch.rand(2, 3, 16, 16)
    expected = net(images)
    with HookSession(net) as outer, HookSession(net) as inner:
        outer.record("*")
        inner.record("*")
        assert torch.equal(net(images), expected)


def test_backward_reaches_hooks_behind_inputs_that_need_a_gradient_already():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).requires_grad_(False)
    x, gradients = torch.ones(1, 2, requires_grad=True), []
    with HookSession(net) as outer, HookSession(net[1]) as inner:
        outer.record("*")
        inner.record("")
        inner.full_backward(lambda *arguments: gradients.append(arguments), "").remove()
        inner.output_gradient(gradients.append, "")
        inner.backward(net(x).sum(), retain_graph=True)
    assert len(gradients) == 1
    assert torch.equal(outer.grad_inputs[""][0], net[0].weight.T @ net[1].weight[0] * torch.ones(1, 2))
    assert x.grad is None


class Caches(nn.Module):
    def forward(self, x: Tensor, history: list[Tensor], cache: dict[str, Tensor]) -> dict[str, Tensor]:
        history.append(x)
        cache["x"] = x
        return cache


def test_lists_and_dicts_that_a_module_fills_stay_the_same_objects():
    net, history, cache = Caches(), [], {}
    with HookSession(net) as hooks:
        hooks.record("", kinds=["input", "grad_input"])
        hooks.before_forward(lambda *_: None, "")
        assert net(torch.ones(1), history, cache) is cache
    assert len(history) == len(cache) == 1


def test_records_stay_in_step_when_calls_nest_or_fail():
    class Recursive(nn.Module):
        def forward(self, x: Tensor, depth: int) -> Tensor:
            if depth == 0:
                return x + 1
            return self(x * 2, depth - 1) + depth

    net = Recursive()
    with HookSession(net) as hooks:
        hooks.record("")
        hooks.backward(net(torch.ones(1), 2).sum())
    assert [arguments[0].item() for arguments in hooks.inputs[""]] == [1, 2, 4]
    assert [output.item() for output in hooks.outputs[""]] == [1 + 4 + 1 + 2, 4 + 1 + 1, 5]
    assert [gradient[0].item() for gradient in hooks.grad_inputs[""]] == [4, 2, 1]


def test_recorded_outputs_do_not_change_with_what_the_module_keeps():
    net = nets.Wired(lambda net, x: (net.scale, x), scale=nn.Parameter(torch.ones(2)))
    x = torch.zeros(2)
    with HookSession(net) as hooks:
        hooks.record("")
        net(x)
    with torch.no_grad():
        net.scale.fill_(7)
        x.fill_(7)
    scale, passed = hooks.outputs[""][0]
    assert scale.tolist() == [1, 1]
    assert passed.tolist() == [0, 0]


def test_inference_tensors_packed_sequences_and_plain_images_pass():
    with torch.inference_mode():
        batch = torch.ones(1, 2)
    net = nn.Linear(2, 1).requires_grad_(False)
    with HookSession(net) as hooks:
        hooks.record("")
        hooks.backward(net(batch).sum())
    assert hooks.grad_inputs[""][0].shape == (1, 2)
    lstm = nn.LSTM(2, 3, batch_first=True)
    packed = nn.utils.rnn.pack_padded_sequence(torch.rand(2, 3, 2), torch.tensor([3, 2]), batch_first=True)
    with HookSession(lstm) as hooks:
        hooks.record("")
        hooks.full_backward(lambda *_: None, "")
        hooks.backward(lstm(packed)[0].data.sum())
    assert hooks.grad_outputs[""][0] is not None
    net, images = nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(4, 1)), torch.ones(1, 4)
    with HookSession(net) as hooks:
        hooks.record("*")
        hooks.backward(net(images).sum())
    assert not images.requires_grad
    images.numpy()


def test_a_long_session_keeps_no_graph():
    net, x = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(1000, 1000), nn.Dropout().eval()), torch.ones(8, 1000)
    with HookSession(net) as hooks:
        hooks.full_backward(lambda *_: None, "*")
        references = []
        for _ in range(3):
            images = x.clone()
            output = net(images)
            references += [weakref.ref(output), weakref.ref(output.grad_fn)]
            del output, images
        assert [reference() for reference in references if reference() is not None] == []


def test_mistaken_arguments_are_named():
    net = nn.Sequential(nn.Linear(2, 2))
    with HookSession(net) as hooks:
        assert hooks.record(net[0], kinds="output") == ("0",)
        with pytest.raises(LayerError, match="No layers were given"):
            hooks.record()
        with pytest.raises(LayerError, match="no such module as this Linear"):
            hooks.record(nn.Linear(2, 2))
        with pytest.raises(TypeError, match="as separate arguments, not by list"):
            hooks.record(["0"])
        with pytest.raises(TypeError, match="pass the hook first"):
            hooks.before_forward("0", print)
        with pytest.raises(ValueError, match="scalar"):
            hooks.backward(net(torch.ones(1, 2)))
    with HookSession(net) as hooks:
        with hooks.after_forward(lambda module, args, output: output * 0, "0"):
            assert not net(torch.ones(1, 2)).any()
        assert net(torch.ones(1, 2)).any()


def test_one_tensor_given_twice_has_a_gradient_for_each_place():
    net, x, gradients = Product(), torch.tensor(3.0), []
    with HookSession(net) as hooks:
        hooks.full_backward(lambda module, grad_input, grad_output: gradients.append(grad_input), "")
        hooks.backward(net(x, x * 1 + 1))
        hooks.backward(net(x, x))
    assert [[grad.item() for grad in grads] for grads in gradients] == [[20, 15], [15, 15]]


@pytest.mark.parametrize("used", [(1, 1), (1, 0), (0, 1)])
@pytest.mark.parametrize("factor", [None, 10])
def test_full_backward_pre_sees_and_replaces_the_gradients_of_all_outputs_as_torch_does(used, factor):
    net = nets.Wired(lambda net, x: (2 * x, 3 * x))

    def run(register):
        x, gradients = torch.ones(2, requires_grad=True), []

        def hook(module, grad_output):
            assert module is net
            gradients.extend(grad_output)
            return None if factor is None else tuple(None if grad is None else factor * grad for grad in grad_output)

        register(hook)
        first, second = net(x)
        sum(
            weight * output.sum() for weight, output in zip(used, (first, 5 * second), strict=True) if weight
        ).backward()
        return gradients, x.grad

    handles = []
    peers, expected = run(lambda hook: handles.append(net.register_full_backward_pre_hook(hook)))
    handles.pop().remove()
    with HookSession(net) as hooks:
        hooks.record("")
        gradients, gradient = run(lambda hook: hooks.full_backward_pre(hook, ""))
    assert torch.equal(gradient, expected)
    assert [grad is not None for grad in gradients] == [bool(weight) for weight in used]
    for actual, peer, record in zip(gradients, peers, hooks.grad_outputs[""][0], strict=True):
        if actual is None:  # where PyTorch shows none, or zeros
            assert record is None
            assert peer is None or not peer.any()
        else:
            assert torch.equal(actual, peer)
            assert torch.equal(record, actual * (factor or 1))


def test_full_backward_pre_comes_after_output_gradient_and_before_full_backward():
    net, order = nn.Linear(2, 1, bias=False), []
    x = torch.ones(1, 2, requires_grad=True)
    with HookSession(net) as hooks:
        hooks.full_backward(lambda *_: order.append("full_backward"), "")
        hooks.full_backward_pre(lambda module, grad_output: order.append("full_backward_pre") or 2 * grad_output[0], "")
        hooks.output_gradient(lambda gradient: order.append("output_gradient") or 5 * gradient, "")
        net(x).sum().backward()
    assert order == ["output_gradient", "full_backward_pre", "full_backward"]
    assert torch.equal(x.grad, 10 * net.weight)
    net.weight.grad = None


PREPENDED = {
    "before_forward": "register_forward_pre_hook",
    "after_forward": "register_forward_hook",
    "full_backward_pre": "register_full_backward_pre_hook",
    "full_backward": "register_full_backward_hook",
}


@pytest.mark.parametrize("kind", sorted(PREPENDED))
def test_prepended_hooks_run_first_as_with_torch(kind):
    net, handles = nn.Linear(2, 1, bias=False), []

    def run(register):
        order = []
        for name, prepend in (("a", False), ("b", True), ("c", False), ("d", True)):
            register(noting(order, name), prepend)
        net(torch.ones(1, 2, requires_grad=True)).sum().backward()
        net.weight.grad = None
        return order

    expected = run(lambda hook, first: handles.append(getattr(net, PREPENDED[kind])(hook, prepend=first)))
    for handle in handles:
        handle.remove()
    with HookSession(net) as hooks:
        assert run(lambda hook, first: getattr(hooks, kind)(hook, "", prepend=first)) == expected
    assert expected == ["d", "b", "a", "c"]


class Raises(nn.Module):
    def forward(self, x):
        raise ZeroDivisionError


@pytest.mark.parametrize("where", ["module", "before", "after", "nowhere"])
def test_hooks_that_always_run_do_so_once_as_with_torch(where):
    net = Raises() if where == "module" else nn.Identity()

    def run(before, after):
        records = []
        after(noting(records, "plain"), False)
        if where == "before":
            before(failing)
        if where == "after":
            after(failing, False)
        after(lambda module, args, output: records.append(("always", output is None)), True)
        after(noting(records, "last"), False)
        try:
            net(torch.ones(1))
        except ZeroDivisionError:
            records.append("raised")
        return records

    handles = []
    expected = run(
        lambda hook: handles.append(net.register_forward_pre_hook(hook)),
        lambda hook, always: handles.append(net.register_forward_hook(hook, always_call=always)),
    )
    for handle in handles:
        handle.remove()
    with HookSession(net) as hooks:
        result = run(
            lambda hook: hooks.before_forward(hook, ""),
            lambda hook, always: hooks.after_forward(hook, "", always_call=always),
        )
    assert result == expected
    assert ("raised" in result) is (where != "nowhere")
    assert [event for event in result if event[0] == "always"] == [("always", where in ("module", "before"))]
    assert not net._forward_hooks_always_called


def test_an_error_of_a_hook_that_always_runs_is_a_warning_after_another_error():
    net, paths = nn.Sequential(Raises()), []

    def fail(*_):
        raise KeyError("second")

    with HookSession(net) as hooks:
        hooks.after_forward(fail, "0", always_call=True)
        hooks.after_forward(lambda *_: paths.append(hooks.current.path), "*", always_call=True)
        with pytest.warns(UserWarning, match="silenced"), pytest.raises(ZeroDivisionError):
            net(torch.ones(1))
    assert paths == ["0", ""]


def test_hooks_of_a_session_stand_together_at_the_place_of_its_first():
    net, order = nn.Linear(2, 1), []

    def hook(hooks, name):
        hooks.before_forward(noting(order, name), "")
        hooks.after_forward(noting(order, f"{name} after"), "")

    with HookSession(net) as outer:
        hook(outer, "outer 1")
        before = net.register_forward_pre_hook(noting(order, "plain"))
        after = net.register_forward_hook(noting(order, "plain after"))
        with HookSession(net) as inner, before, after:
            hook(inner, "inner")
            hook(outer, "outer 2")
            net(torch.ones(1, 2))
    names = ["outer 1", "outer 2", "plain", "inner"]
    assert order == names + [f"{name} after" for name in names]


def test_backward_hooks_of_the_inner_session_run_first():
    net, order = nn.Linear(2, 1), []
    with HookSession(net) as outer, HookSession(net) as inner:
        for name, hooks in (("outer", outer), ("inner", inner)):
            for kind in ("output_gradient", "full_backward_pre", "full_backward"):
                getattr(hooks, kind)(noting(order, (name, kind)), "")
        inner.backward(net(torch.ones(1, 2)).sum())
    assert order == [
        *(("inner", "output_gradient"), ("inner", "full_backward_pre")),
        *(("outer", "output_gradient"), ("outer", "full_backward_pre")),
        *(("inner", "full_backward"), ("outer", "full_backward")),
    ]


@pytest.mark.parametrize("kind", ["output_gradient", "full_backward_pre", "full_backward", "parameter_gradient"])
@pytest.mark.parametrize("alone", [False, True])
def test_a_backward_hook_that_is_removed_after_the_forward_pass_does_not_run(kind, alone):
    net, calls = nn.Linear(2, 1), []
    x, where = torch.ones(1, 2, requires_grad=True), "weight" if kind == "parameter_gradient" else ""
    with HookSession(net) as hooks:
        handle = getattr(hooks, kind)(noting(calls, "removed"), where)
        if not alone:
            getattr(hooks, kind)(noting(calls, "left"), where)
        score = net(x).sum()
        handle.remove()
        handle.remove()
        score.backward()
    assert calls == ([] if alone else ["left"])
    assert torch.equal(x.grad, net.weight)
    net.zero_grad()
