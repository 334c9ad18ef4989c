"""Heatmaps with and without their proofs, in turn: `python -m benchmarks.proofs`.

They are timed for one picture, in Python (the model alone) and through the whole pipeline, from JPEG to PNG.
"""

import io
import sys
from collections.abc import Mapping
from functools import partial

from PIL import Image

from benchmarks import page
from benchmarks.machine import description
from benchmarks.rounds import QUICK, Effort, Run, Times, interleaved, ratio
from seewhy import LoadedModel, load_model
from seewhy.app import create_app
from seewhy.app.settings import Settings
from seewhy.explainers.methods.catalogue import METHODS
from seewhy.explainers.tasks.pose import predict
from seewhy.explainers.trust.faithfulness import prove
from seewhy.explainers.trust.trial import Trial
from seewhy.explainers.view import prepare

MODEL = "efficientnet_lite0"
METHOD_NAMES = ("gradcam", "votes-detail")
TRIALS = {"proof": Trial(), "full proof": Trial(full=True)}
EFFORT = Effort(seconds=40, most=200)

HEAD = ("", "ms", "× Grad-CAM", "× votes-detail")


def picture() -> bytes:
    """Return a JPEG of 512 pixels."""
    file = io.BytesIO()
    with Image.open(page.ROOT / "examples" / "coffee.png") as image:
        image.convert("RGB").resize((512, 512)).save(file, "JPEG", quality=90)
    return file.getvalue()


def in_python(model: LoadedModel) -> dict[str, Run]:
    """Return the methods, the proofs of a map of Grad-CAM, and the passes of a proof alone, on a prepared picture."""
    images = prepare(model, picture()).images(model.device)
    explainers = {name: METHODS[name].build({}) for name in METHOD_NAMES}
    attribution = explainers["gradcam"].explain(model, images)
    runs: dict[str, Run] = {name: partial(explainer.explain, model, images) for name, explainer in explainers.items()}
    runs |= {name: partial(prove, model, images, [attribution], trial) for name, trial in TRIALS.items()}
    return runs | {"two forward passes": partial(predict, model, images.repeat(2, 1, 1, 1))}


def in_requests() -> dict[str, Run]:
    """Return requests for maps with and without a proof; the picture is read and the map drawn in each."""
    client, upload = create_app(Settings()).test_client(), picture()

    def run(query: str) -> None:
        answer = client.post(f"/explain?{query}", data=upload, content_type="image/jpeg")
        if answer.status_code != 200:
            raise RuntimeError(answer.get_data(as_text=True))

    runs: dict[str, Run] = {}
    for name in METHOD_NAMES:
        runs[name] = partial(run, f"method={name}")
        runs[f"{name} with a proof"] = partial(run, f"method={name}&proof=true")
    return runs


def table(times: Times) -> str:
    """Return the table of contestants: the median time, and that over the times of both methods, round by round."""
    rows = []
    for name, seconds in times.items():
        middle = sorted(seconds)[len(seconds) // 2]
        ratios = [page.times(ratio(times, name, peer)) for peer in METHOD_NAMES]
        rows.append((name, f"{1000 * middle:.1f}", *ratios))
    return page.table(HEAD, rows)


def tables(parts: Mapping[str, Times]) -> str:
    """Return the part of the page."""
    return "\n".join([f"{description()}\n", *(f"{title}:\n\n{table(times)}" for title, times in parts.items())])


def main() -> None:
    """Measure and save."""
    effort = QUICK if "--quick" in sys.argv else EFFORT
    model = load_model(MODEL)
    parts = {
        f"The model alone, {MODEL}, one picture": interleaved(in_python(model), effort),
        "A request, from the JPEG of 512×512 to the PNG": interleaved(in_requests(), effort),
    }
    page.publish("proofs", {"machine": description(), "times": parts, "tables": tables(parts)}, effort is QUICK)


if __name__ == "__main__":
    main()
