"""Heads: the functions from logits to probabilities, as declared, or as inferred if this is certain."""

import pytest
import torch
from torch import nn

from seewhy import explain, wrap_model
from seewhy.explainers.tasks.classification import Classification
from seewhy.models import ModelError
from seewhy.models.errors import ModelsFileError
from seewhy.models.models_file import own_specs
from tests import nets
from tests.app.conftest import EXAMPLES
from tests.app.serving import application, declare

CAT = EXAMPLES / "cat.png"
LABELS = ["effusion", "mass", "nodule"]


@pytest.fixture(scope="module")
def module():
    return nets.seeded(nets.Net)


def test_labels_that_do_not_exclude_each_other_have_sigmoids(module):
    result = explain(wrap_model(module, LABELS, input_size=32, head="sigmoid"), CAT)
    assert result.target == result.predictions[0]
    for row in result.predictions:
        assert row.probability == pytest.approx(torch.tensor(row.logit).sigmoid().item())
    softmax = explain(wrap_model(module, LABELS, input_size=32), CAT)
    assert sum(row.probability for row in softmax.predictions) == pytest.approx(1)
    assert (softmax.map == result.map).all(), "the logit is explained, whatever the head"


def test_methods_that_watch_probabilities_take_those_of_the_head(module):
    maps = [
        explain(
            wrap_model(module, LABELS, input_size=32, head=head), CAT, "occlusion", target=1, score="probability"
        ).map
        for head in ("softmax", "sigmoid")
    ]
    assert abs(maps[0] - maps[1]).max() > 1e-3 * abs(maps[0]).max()


@pytest.mark.parametrize(
    ("logits", "head", "codes"),
    [
        ([3.0, 12.0, -3.0], "sigmoid", []),
        ([-1.0, 12.0, -3.0], "sigmoid", ["improbable-target"]),
        ([3.0, 12.0, -3.0], "softmax", ["improbable-target"]),
        ([3.0, 14.0, -3.0], "softmax", ["saturated-softmax", "improbable-target"]),
        ([0.0, 0.0, 0.0], "softmax", ["equal-logits"]),
        ([100.0, 100.0005, 100.0], "softmax", ["equal-logits"]),  # the order of sums differs
        ([100.0, 100.005, 100.0], "softmax", ["improbable-target"]),
        ([0.5, 0.5, 0.5], "sigmoid", ["equal-logits"]),
        ([-0.5, -0.5, -0.5], "sigmoid", ["equal-logits", "improbable-target"]),
    ],
)
def test_a_label_is_improbable_below_one_half_and_a_class_below_chance(logits, head, codes):
    assert [remark.code for remark in Classification(LABELS, head).remarks(torch.tensor(logits), 0)] == codes


@pytest.mark.parametrize(
    ("probability", "gives"),
    [
        (0.0009, "0.090%, below chance"),
        (0.00002, "less than 0.01%, below chance"),
        (0.002, "0.20%, below 1%"),
        (0.0096, "0.96%, below 1%"),
        (0.00997, "just below 1%"),
        (0.01001, None),
        (0.02, None),
    ],
)
def test_one_class_of_many_is_improbable_below_one_percent(probability, gives):
    others = torch.full((999,), (1 - probability) / 999)
    logits = torch.cat([torch.tensor([probability]), others]).log()
    remarks = Classification(head="softmax").remarks(logits, 0)
    assert [remark.message.partition(":")[0] for remark in remarks] == (
        [f"The model gives 'class 0' {gives}"] if gives else []
    )


def test_a_head_without_weights_chooses_no_class():
    module = nets.seeded(nets.Net)
    nn.init.zeros_(module.head.weight)
    nn.init.constant_(module.head.bias, 0.7)
    result = explain(wrap_model(module, LABELS, input_size=32), CAT)
    notes = {note.code: note.message for note in result.diagnostics}
    assert notes.keys() == {"blank-map", "equal-logits"}
    assert notes["equal-logits"].startswith("The model gives all 3 classes the same logit, so it chooses none;")


@pytest.mark.parametrize(
    ("classes", "head", "fault"),
    [
        (1, "softmax", "always 1; declare the head 'sigmoid'"),
        (1, None, "no head says what it is; declare the head 'sigmoid' if it is the logit of a label, or 'value'"),
        (3, "argmax", "no head 'argmax'"),
    ],
)
def test_a_head_that_does_not_suit_is_refused(classes, head, fault):
    with pytest.raises(ModelError, match=fault):
        wrap_model(nets.seeded(nets.Net, classes), input_size=32, head=head)


def test_a_sigmoid_at_the_end_of_the_network_is_told(module):
    with pytest.raises(Exception, match="Return the logits before it"):
        explain(wrap_model(nn.Sequential(module, nn.Sigmoid()), LABELS, input_size=32, head="sigmoid"), CAT, "cam")


def test_the_service_tells_the_head_of_its_answers(tmp_path, module):
    torch.save(module.state_dict(), tmp_path / "w.pth")
    models = declare(tmp_path, names=["chest"], head="sigmoid", labels=LABELS)
    with application(models=models, default_model="chest") as app:
        client = app.test_client()
        answer = client.post("/predict", data=CAT.read_bytes(), content_type="image/png").json
        assert answer["model"]["head"] == client.get("/models/chest").json["head"] == "sigmoid"
    expected = explain(wrap_model(module, LABELS, input_size=32, head="sigmoid"), CAT)
    for row, entry in zip(answer["predictions"], expected.predictions, strict=True):
        assert (row["label"], row["probability"]) == (entry.label, pytest.approx(entry.probability, abs=1e-3))


@pytest.mark.parametrize(("head", "fault"), [("softmax", "The softmax of one output"), (None, "There is one output")])
def test_one_declared_label_needs_a_head(tmp_path, head, fault):
    options = {} if head is None else {"head": head}
    with pytest.raises(ModelsFileError, match=rf"models\.mine\], head: {fault}"):
        own_specs(declare(tmp_path, labels=["mass"], **options))
