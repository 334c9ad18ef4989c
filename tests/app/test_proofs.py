import json

import pytest
from PIL import Image

from seewhy.explainers import explain
from seewhy.models import load_model
from tests.app.conftest import EXAMPLES
from tests.app.test_explain import arrays


def test_the_service_proves_as_python_does(post, coffee):
    answer = post(coffee, format="json", proof="full", proof_area="0.2", proof_fill="mean").json
    (explanation,) = answer["explanations"]
    options = {"proof": "full", "proof_area": 0.2, "proof_fill": "mean"}
    expected = explain(load_model("efficientnet_lite0"), coffee, "gradcam", **options).document()
    (expected,) = (part["proof"] for part in expected["explanations"])
    assert explanation["proof"].keys() == expected.keys()
    for part in ("faithfulness", "copies", "shape"):
        assert explanation["proof"][part] == pytest.approx(expected[part], abs=0.02)  # a smaller copy was decoded
    assert explanation["proof"]["cost"] == {"forwards": 6, "backwards": 0}
    assert "'espresso' falls from" in explanation["proof"]["sentence"]


def test_a_drawing_tells_its_proof_in_a_header(post, coffee):
    response = post(coffee, proof="true")
    score, *_ = [part for part in response.headers["X-SeeWhy-Proof"].split("; ") if part.startswith("score=")]
    proof = post(coffee, proof="true", format="json").json["explanations"][0]["proof"]
    assert float(score.removeprefix("score=")) == pytest.approx(proof["faithfulness"]["score"], abs=0.006)
    assert int(response.headers["X-SeeWhy-Cost"]) in (2, 3)  # 3 while what it is compared with is gathered
    without = post(coffee)
    assert "X-SeeWhy-Proof" not in without.headers
    assert without.headers["X-SeeWhy-Cost"] == "1"
    assert "proof" not in post(coffee, format="json").json["explanations"][0]


def test_each_map_of_several_methods_and_classes_has_its_own_proof(post, coffee):
    content = arrays(post(coffee, method="gradcam,eigencam", target=["espresso", "cup"], proof="true", format="npz"))
    proofs = [json.loads(text) for text in content["proofs"]]
    assert len(proofs) == 4
    assert len({proof["faithfulness"]["kept"] for proof in proofs}) == 4
    assert [round(proof["faithfulness"]["probability"], 4) for proof in proofs[::2]] == [
        round(proof["faithfulness"]["probability"], 4) for proof in proofs[1::2]
    ]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("proof", "yes please", "It must be true, false or 'full'."),
        ("proof_area", "0.001", "It must be greater than or equal to 0.01."),
        ("proof_fill", "noise", "It must be 'blur' or 'mean'."),
        ("proof_area", "0.2", "proof_area is an option of proofs; give `proof` too, or leave it out."),
        ("proof_fill", "mean", "proof_fill is an option of proofs; give `proof` too, or leave it out."),
        ("prof", "true", "Near matches: proof"),
        ("proof_aera", "0.3", "Near matches: proof_area"),
        ("prooffill", "mean", "Near matches: proof_fill"),
    ],
)
def test_a_bad_option_is_told_what_is_possible(post, coffee, field, value, message):
    response = post(coffee, **{field: value})
    assert response.status_code == 422
    assert message in response.get_data(as_text=True)


def test_the_command_prints_the_sentence(run, tmp_path):
    result = run("explain", EXAMPLES / "coffee.png", "-o", tmp_path / "map.png", "--proof")
    assert result.exit_code == 0, result.output
    head, proof = result.output.splitlines()
    assert head.startswith(f"{EXAMPLES / 'coffee.png'}: espresso")
    assert "'espresso' falls from" in proof


def test_the_command_explains_each_warning_once_and_names_a_method_that_may_do_better(run, tmp_path):
    with Image.open(EXAMPLES / "coffee.png") as picture:
        for name in ("a.png", "b.png"):
            picture.crop((150, 0, 750, 400)).save(tmp_path / name)
    pictures, output = [tmp_path / "a.png", tmp_path / "b.png"], tmp_path / "maps"
    result = run("explain", *pictures, "-o", output, "--method", "edges", "--proof")
    lines = [line.strip() for line in result.output.splitlines()]
    told = [line for line in lines if line.startswith("same-for-every-class")]
    assert told[0].startswith("same-for-every-class: ")
    assert told[1:] == ["same-for-every-class (see above)"]
    assert lines.count("Another method may find what matters: try --method votes-detail.") == 1
    result = run("explain", *pictures, "-o", output, "--method", "edges", "--method", "votes-detail", "--proof")
    assert "Another method" not in result.output
    assert "edges for espresso, same-for-every-class (see above)" in result.output
    result = run("explain", pictures[0], "-o", output, "--method", "edges", "--method", "random", "--proof")
    assert "edges for espresso, same-for-every-class: " in result.output
    assert "random for espresso, same-for-every-class (see above)" in result.output
    result = run("explain", EXAMPLES / "cat.png", "-o", output, "--proof", "--layer", "blocks.0")
    assert "not supported: " in result.output
    assert "Another method" not in result.output


def test_the_command_names_the_other_fill_for_an_inconclusive_proof(run, tmp_path, monkeypatch):
    monkeypatch.setattr("seewhy.explainers.trust.proof.verdict_of", lambda grade, warnings: "inconclusive")
    question = ["explain", EXAMPLES / "coffee.png", "-o", tmp_path / "map.png", "--method", "edges", "--proof=true"]
    for fill, hint in (("blur", "try --proof-fill mean."), ("mean", "try --method votes-detail.")):
        lines = run(*question, "--proof-fill", fill).output.splitlines()
        assert "inconclusive: " in lines[1]
        (told,) = [line for line in lines if ": try --" in line]
        assert told.endswith(hint)


def test_the_command_warns_of_a_crop_that_cuts_off_what_the_map_shows(run, tmp_path):
    with Image.open(EXAMPLES / "coffee.png") as picture:
        picture.crop((150, 0, 750, 400)).save(tmp_path / "cut.png")
    result = run("explain", tmp_path / "cut.png", "-o", tmp_path / "map.png", "--proof=true")
    *_, warning = result.output.splitlines()
    assert warning.startswith(
        "  crop-hides: More than a quarter of the picture is cropped away before the model sees it."
    )
