"""The command calibrate, and proofs that are graded by the file that it writes."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from seewhy import Calibration, calibrate, explain, load_model, open_batch
from seewhy.explainers.errors import OptionError
from tests import nets
from tests.app.conftest import EXAMPLES
from tests.app.serving import application, declare


@pytest.fixture
def pictures(tmp_path):
    """A folder of as many pictures as a calibration needs."""
    place = tmp_path / "pictures"
    place.mkdir()
    generator = np.random.default_rng(0)
    for number in range(34):
        Image.fromarray(generator.integers(0, 256, (40, 36, 3), dtype=np.uint8)).save(place / f"{number:02}.png")
    return place


@pytest.fixture
def environment(tmp_path):
    """The variables with which a custom model is known."""
    torch.save(nets.seeded(nets.Net).state_dict(), tmp_path / "w.pth")
    return {"SEEWHY_MODELS": str(declare(tmp_path))}


@pytest.fixture
def scores(run, pictures, environment, tmp_path):
    """A calibration of the custom model."""
    file = tmp_path / "new" / "scores.json"
    result = run("calibrate", pictures, "--model", "mine", "-o", file, env=environment)
    assert result.exit_code == 0, result.output
    for fill in ("blur", "mean"):
        assert f"{file}, {fill}: 102 scores of 34 pictures for mine; " in result.output
    assert "pass the file with --proof-calibration" in result.output
    return file


def test_proofs_of_a_custom_model_are_graded(run, pictures, environment, scores, tmp_path, monkeypatch):
    question = [pictures / "07.png", "--model", "mine", "--proof=true", "-o", tmp_path / "why.json"]
    result = run("explain", *question, env=environment)
    assert "  not graded: " in result.output
    how = "`seewhy calibrate FOLDER --model mine -o scores.json` collects the scores for grades, from at least 34"
    assert f"  {how} pictures in which the class has 30% or more.\n" in result.output
    assert how in run("explain", *question, "--proof-fill", "mean", env=environment).output
    result = run("explain", *question, "--proof-area", 0.1, env=environment)
    assert "`seewhy calibrate FOLDER --model mine --proof-area 0.1 -o scores-0.1.json`" in result.output
    many = [pictures / "06.png", *question[:-1], tmp_path / "many"]
    result = run("explain", *many, env=environment)
    assert (result.output.count("  not graded: "), result.output.count(how)) == (2, 1)
    result = run("explain", *question, "--proof-calibration", scores, env=environment)
    assert result.exit_code == 0, result.output
    assert "not graded" not in result.output
    assert "collects the scores for grades" not in result.output
    proof = json.loads((tmp_path / "why.json").read_text())["explanations"][0]["proof"]
    assert proof["cost"]["forwards"] == 2  # nothing is collected
    run("explain", *question[:-1], tmp_path / "why.html", "--proof-calibration", scores, env=environment)
    report = (tmp_path / "why.html").read_text()
    assert "--proof-calibration=SCORES" in report
    assert "<code>SCORES</code> for the file of scores" in report

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    model, calibration = load_model("mine"), Calibration.load(scores)
    again = calibrate(model, sorted(pictures.iterdir()), "gradcam")
    assert calibration.scores == pytest.approx(again.scores, abs=1e-4)
    assert calibration.contrast.scores == pytest.approx(again.contrast.scores, abs=1e-3)
    bare = {"scores": (), "contrast": None, "others": ()}
    assert replace(calibration, **bare) == replace(again, **bare)
    alone = explain(model, pictures / "07.png", "gradcam", proof=True, proof_calibration=calibration).proof
    assert (proof["grade"], proof["calibration"]["beats"]) == (alone.grade, pytest.approx(alone.calibration.beats))

    contrast = run("explain", *question, "--against", "a", "--proof-calibration", scores, env=environment)
    assert "graded" not in contrast.output
    assert "collects the scores for grades" in run("explain", *question, "--against", "a", env=environment).output
    best = str(explain(model, pictures / "07.png").target.index)
    contrast = run("explain", *question, "--target", "a", "--against", best, env=environment)
    assert "  not graded: " in contrast.output
    assert "collects the scores for grades" not in contrast.output

    graded = ["--model", "mine", "--proof=true", "--proof-calibration", scores]
    result = run("batch", pictures, "-o", tmp_path / "plain", *graded[:3], env=environment)
    assert "No proof is graded: `seewhy calibrate` collects the scores" in result.output
    result = run("batch", pictures, "-o", tmp_path / "run", *graded, env=environment)
    assert result.exit_code == 0
    assert "No proof" not in result.output
    assert open_batch(tmp_path / "run").manifest.options["calibration"].startswith("102 scores for mine, SHA-256 ")
    assert open_batch(tmp_path / "run").to_pandas().set_index("path").proof["07.png"] == alone.grade


def test_a_models_file_names_the_calibration_of_a_model(run, pictures, environment, scores, tmp_path, monkeypatch):
    monkeypatch.setenv("SEEWHY_MODELS", environment["SEEWHY_MODELS"])
    picture, plain, calibration = pictures / "07.png", load_model("mine"), Calibration.load(scores)
    graded = explain(plain, picture, "gradcam", proof=True, proof_calibration=calibration).proof
    declare(tmp_path, calibration=str(scores.relative_to(tmp_path)))
    model = load_model("mine")
    assert model.calibrations == (calibration,)
    assert model.fingerprint != plain.fingerprint
    assert explain(model, picture, "gradcam", proof=True).proof == graded
    assert explain(model, picture, "gradcam", proof=True, proof_area=0.1).proof.grade is None
    few = replace(calibration, scores=(9.0,) * 100, pictures=1)
    assert explain(model, picture, "gradcam", proof=True, proof_calibration=few).proof.calibration.pictures == 1
    result = run("explain", picture, "--model", "mine", "--proof=true", "-o", tmp_path / "why.json", env=environment)
    assert f"  {graded.verdict}: {graded.sentence}" in result.output
    question = ["explain", picture, "--model", "mine", "--proof=true", "-o", tmp_path / "why.html"]
    for own in ([], ["--proof-calibration", scores]):
        run(*question, *own, env=environment)
        assert ("--proof-calibration=SCORES" in (tmp_path / "why.html").read_text()) == bool(own)
    with application(models=tmp_path / "models.toml", default_model="mine") as app:
        for place in sorted(pictures.iterdir())[6:8]:
            answer = app.test_client().post("/explain?proof=true&format=json", data={"image": place.open("rb")})
        proof = answer.get_json()["explanations"][0]["proof"]
        assert (proof["grade"], proof["calibration"]["pictures"]) == (graded.grade, 34)
        assert proof["cost"]["forwards"] == 2  # nothing is collected


def test_a_calibration_serves_both_fills(run, pictures, environment, scores, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("SEEWHY_MODELS", environment["SEEWHY_MODELS"])
    file = tmp_path / "mean.json"
    arguments = ["calibrate", pictures, "--model", "mine", "--proof-fill", "mean", "-o", file]
    result = run(*arguments, env=environment)
    assert ("mean.json, mean: 102 scores" in result.output, "mean.json, blur: " in result.output) == (True, False)
    run(*arguments[:-3], "blur", "-o", tmp_path / "blur.json", env=environment)
    assert [*Calibration.load(tmp_path / "blur.json").trials] == [(0.25, "blur")]
    run(*arguments[:-1], tmp_path / "tenth.json", "--proof-area", "0.1", env=environment)
    both, mean = Calibration.load(scores), Calibration.load(file)
    assert [*both.trials] == [(0.25, "blur"), (0.25, "mean")]
    (other,) = both.others
    assert other.scores == pytest.approx(mean.scores, abs=1e-4)
    assert other.contrast.scores == pytest.approx(mean.contrast.scores, abs=1e-3)
    assert other.scores != pytest.approx(both.scores, abs=1e-4)
    other = replace(other, null="other maps")  # which tells whose scores were used
    both = replace(both, others=(other,))
    both.save(scores)
    declare(tmp_path, calibration=["mean.json"])
    assert load_model("mine").calibrations == (mean,)
    warning = "[models.mine], calibration: It grades only proofs with proof_area=0.25 and proof_fill='mean'."
    assert caplog.messages == [warning]
    declare(tmp_path, calibration=["new/scores.json", "tenth.json"])
    model = load_model("mine")
    assert model.calibrations == (both, Calibration.load(tmp_path / "tenth.json"))
    assert len(caplog.messages) == 1
    declare(tmp_path, calibration=["new/scores.json", "mean.json"])
    assert load_model("mine").calibrations == (both,)
    assert "another file has scores for the same proofs" in caplog.messages[-1]
    for fill, calibration in (("blur", both), ("mean", other)):
        trial = {"proof": True, "proof_fill": fill}
        proof = explain(model, pictures / "07.png", "gradcam", **trial).proof
        assert proof.calibration == calibration.compared(proof.faithfulness.score)
        own = explain(model, pictures / "07.png", "gradcam", proof_calibration=both, **trial).proof
        assert own.calibration == proof.calibration
    question = ["explain", pictures / "07.png", "--model", "mine", "--proof=true", "-o", tmp_path / "why.json"]
    for calibration, wanted in ((scores, 0), (file, 0), (tmp_path / "tenth.json", 2)):
        result = run(*question, "--proof-fill", "mean", "--proof-calibration", calibration, env=environment)
        assert (result.exit_code, "graded" in result.output) == (wanted, False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "other"}, "another model (model other, not mine); make one for this model with `calibrate`, or, "),
        ({"sha256": "0" * 64}, "another model (SHA-256 of the weights"),
        ({"scores": [0.5] * 99}, "99 scores, but 100 are needed"),
        ({"scores": None}, "other.json is not a calibration; `seewhy calibrate` and"),
        (None, "/other.json' cannot be read (No such file or directory)."),
    ],
)
def test_a_calibration_that_does_not_fit_grades_nothing_and_is_made_anew(
    run, pictures, change, message, environment, scores, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("SEEWHY_MODELS", environment["SEEWHY_MODELS"])
    declare(tmp_path, calibration="other.json")
    if change is not None:
        (tmp_path / "other.json").write_text(json.dumps(json.loads(scores.read_text()) | change))
    assert load_model("mine").calibrations == ()
    (warning,) = caplog.messages
    assert warning.startswith("[models.mine], calibration: ")
    assert message in warning
    assert warning.endswith(" Proofs do not use it.")
    result = run("calibrate", pictures, "--model", "mine", "-o", tmp_path / "other.json", env=environment)
    assert result.exit_code == 0, result.output
    (calibration,) = load_model("mine").calibrations
    assert calibration.scores == pytest.approx(Calibration.load(scores).scores, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "mine"], "--proof-calibration needs --proof."),
        (
            ["--model", "mine", "--proof=true", "--proof-area", 0.1],
            "proof_area=0.25 and proof_fill='blur' or 'mean'; use",
        ),
        (
            ["--proof=true"],
            "another model (model mine, not efficientnet_lite0); make one for this model with `calibrate`.",
        ),
    ],
)
@pytest.mark.parametrize("command", ["explain", "batch"])
def test_a_calibration_serves_its_own_model_and_trial(run, environment, scores, tmp_path, command, options, message):
    line = [command, EXAMPLES / "cat.png", "-o", tmp_path / "out", "--proof-calibration", scores, *options]
    result = run(*line, env=environment)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()


def test_the_weights_count(environment, scores, tmp_path, monkeypatch):
    monkeypatch.setenv("SEEWHY_MODELS", environment["SEEWHY_MODELS"])
    other = nets.seeded(nets.Net)
    other.head.bias.data[0] += 1
    torch.save(other.state_dict(), tmp_path / "w.pth")
    picture, calibration = EXAMPLES / "cat.png", Calibration.load(scores)
    with pytest.raises(OptionError, match="another model \\(SHA-256 of the weights") as caught:
        explain(load_model("mine"), picture, proof=True, proof_calibration=calibration)
    assert caught.value.field == "proof_calibration"
    declare(tmp_path, input_size=64)
    with pytest.raises(OptionError, match="input size \\(32, 32\\), not \\(64, 64\\)"):
        explain(load_model("mine"), picture, proof=True, proof_calibration=calibration)
    with pytest.raises(OptionError, match="ask for them with proof=True"):
        explain(load_model("mine"), picture, proof_calibration=calibration)


def test_pictures_that_cannot_be_read_are_named_and_left_out(run, pictures, environment, tmp_path):
    (pictures / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    shutil.copy(pictures / "00.png", pictures / "repeated.png")
    result = run("calibrate", pictures, "--model", "mine", "-o", tmp_path / "scores.json", env=environment)
    assert result.exit_code == 1
    assert f"{pictures / 'broken.png'}: " in result.stderr
    assert "1 of 36 pictures failed." in result.stderr
    reasons = "repeated or without the target, or with an explained class below 30%"
    assert f"1 picture left out: {reasons}" in result.output
    assert Calibration.load(tmp_path / "scores.json").pictures == 34
    result = run("calibrate", pictures, "--model", "mine", "-o", tmp_path / "w.pth" / "scores.json", env=environment)
    assert (result.exit_code, "cannot write" in result.stderr) == (1, True)


def test_a_calibration_of_few_scores_is_refused(environment, scores, monkeypatch):
    monkeypatch.setenv("SEEWHY_MODELS", environment["SEEWHY_MODELS"])
    calibration = Calibration.load(scores)
    few = replace(calibration, scores=calibration.scores[:99])
    with pytest.raises(OptionError, match="has 99 scores, but 100 are needed"):
        explain(load_model("mine"), EXAMPLES / "cat.png", proof=True, proof_calibration=few)
    with pytest.raises(OptionError, match=r"pass the result of `calibrate` or of `Calibration.load`"):
        explain(load_model("mine"), EXAMPLES / "cat.png", proof=True, proof_calibration=str(scores))


def test_scores_for_another_fill_are_checked_and_sorted_too(environment, scores, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("SEEWHY_MODELS", environment["SEEWHY_MODELS"])
    whole = Calibration.load(scores)
    (other,) = whole.others
    file = replace(whole, others=(replace(other, scores=other.scores[::-1]),)).save(tmp_path / "reversed.json")
    assert Calibration.load(file) == whole
    for others in ((replace(other, fill="blur"),), (other, other), (replace(other, others=(other,)),)):
        replace(whole, others=others).save(file)
        with pytest.raises(OptionError, match="several lists of scores for the same proofs; keep one for each area"):
            Calibration.load(file)
    replace(whole, others=(replace(other, scores=other.scores[:99]),)).save(file)
    declare(tmp_path, calibration="reversed.json")
    assert load_model("mine").calibrations == ()
    assert "The calibration has 99 scores, but 100 are needed" in caplog.messages[-1]


@pytest.mark.parametrize(
    "content", ["", "[]", '{"scores": [1]}', '{"scores": [NaN], "null": "", "model": "", "area": 0.25, "fill": "blur"}']
)
def test_another_file_is_no_calibration(tmp_path, content):
    (tmp_path / "scores.json").write_text(content)
    with pytest.raises(OptionError, match="is not a calibration; `seewhy calibrate` and"):
        Calibration.load(tmp_path / "scores.json")


def test_what_cannot_be_calibrated_is_a_usage_error(run, tmp_path):
    same = tmp_path / "same"
    same.mkdir()
    for number in range(34):
        (same / f"{number}.png").symlink_to(EXAMPLES / "cat.png")
    few = EXAMPLES / "cat.png"
    for pictures, arguments, message in (
        (few, ["-o", "scores.json", "--model", "absent"], "1 picture cannot give the 100 scores that are needed"),
        (few, ["-o", "scores.json"], "Pass at least 34; those whose explained class has less than 30% give none."),
        (few, ["-o", "scores.txt"], "'.txt' is not a format; use .json"),
        (few, ["-o", "scores.json", "--option", "against=1"], "calibrate takes no 'against'."),
        (
            same,
            ["-o", "scores.json"],
            "1 picture gave 2 scores to compare with, but 100 are needed. Pass more pictures",
        ),
        (same, ["-o", "scores.json"], "about 50 in all; each gives three scores at most"),
        (same, ["-o", "scores.json"], "Without scores, proof=full says whether a map does better than its own rotated"),
        (same, ["-o", "scores.json", "--target", "tabby"], "but 100 are needed. 1 gave none: their explained class"),
        (same, ["-o", "scores.json", "--target", "tabby"], "more pictures that show the target, at least 34 in all"),
        (same, ["-o", "scores.json", "--target", "dragon"], "has no class 'dragon'"),
    ):
        result = run("calibrate", pictures, *arguments)
        assert result.exit_code == 2
        assert message in " ".join(result.output.split())
