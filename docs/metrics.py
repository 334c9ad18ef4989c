"""Writes docs/metrics.md from the catalogue of metrics: `make methods`. A test holds the page to what it says."""

from pathlib import Path

from docs.methods import notes, values_of
from seewhy.explainers.trust.metrics.catalogue import METRICS, MetricEntry, list_metrics

PAGE = Path(__file__).with_name("metrics.md")
ASPECTS = {
    "faithfulness": ("Faithfulness", "Does the score depend on what the map marks?"),
    "localisation": ("Localisation", "Does the map mark the place where the target is known to be?"),
    "complexity": ("Complexity", "Over how much of the picture does the map spread?"),
    "stability": ("Stability", "Does the map stay where the picture hardly changes?"),
    "randomisation": ("Randomisation", "Does the map change when the network forgets what it has learnt?"),
}

_HEAD = """\
# Metrics

Made by `make methods` from the catalogue of metrics. `seewhy.evaluate`, [`seewhy evaluate`](cli.md#metrics) and
[`POST /evaluate`](http.md#post-evaluate) measure methods with them.

A number alone says little: blurred edges of the picture, which know nothing of the network, beat many a method. So
each table has three controls, [`random`](methods.md#random), [`edges`](methods.md#edges) and
[`centre`](methods.md#centre); `beats_controls`, a star in tables, says that a method is better than each of them,
picture by picture. Intervals are the 2.5th and 97.5th percentiles of the mean over 1000 resamples of the pictures,
the same for all methods.

```python
from seewhy import evaluate, load_model

model = load_model("efficientnet_lite0")
pictures = [f"examples/{name}.png" for name in ("astronaut", "cat", "coffee", "rocket")]
table = evaluate(model, pictures, ["gradcam", "layercam", "saliency"], ["insertion", "sparseness"])
print(table.table())
table.save("table.csv")  # or .json, with the value of each picture; .png, .pdf and .svg are the plot
cell = table["gradcam", "insertion"]
print(f"{cell.mean:.2f}, 95 % interval {cell.low:.2f} to {cell.high:.2f} of {cell.count} pictures")
```

```text
TABLE
```

Metrics are given by name, or with parameters, as `ROAD(imputation="exact")`; methods likewise, or as a mapping from
names of your own, such as `{"late": GradCAM(layers=("blocks.6",)), "early": GradCAM(layers=("blocks.2",))}`. Pictures
may be pairs with targets, and `boxes` or `masks` say where these lie. `gridpg` and `difull` make mosaics of the
pictures, so they need some of several classes. Four pictures are too few for a paper. Where a metric cannot measure a
method, as `difull` cannot measure `fullgrad`, the cell is empty and `table[method, metric].reason` says why.

| metric | measures | better | forwards | explanations | needs |
| --- | --- | --- | --- | --- | --- |"""


def page(table: str) -> str:
    """Return the text of the page, given what its example prints."""
    lines = [_HEAD.replace("TABLE", table)]
    for name in list_metrics():
        entry = METRICS[name]
        needs = {"truth": "boxes or masks", "pictures": "several pictures"}
        needed = ", ".join(needs[need] for need in entry.needs) or "-"
        lines.append(
            f"| [`{name}`](#{name}) | {entry.summary} | {entry.better} | {entry.forwards} | {entry.explanations} | "
            f"{needed} |"
        )
    lines += [
        "",
        "Passes are those of each picture and method: forward passes of altered pictures, and how often the method "
        "explains anew. Which pixels sensitivity-n and infidelity hide no map decides: their passes serve all methods"
        " of a table. `levels` are 7, or `steps` + 1, and `mosaics` 1, or as many as a mosaic has cells where these "
        "are whole inputs. Metrics read the map over the model's input, resized bilinearly. A blank map counts as one"
        " that is the same everywhere; where a value is undefined it is NaN (null in JSON), and means leave it out.",
        "",
        "Wherever quantus 0.6 has a metric, values equal its own to 10⁻⁵, given the same maps, hidden parts, noise and "
        "networks; a test holds that. (Deletion is its `PixelFlipping`, sensitivity-n its `FaithfulnessCorrelation`, "
        "the numbers of grids and boxes are its `AttributionLocalisation`, `RelevanceMassAccuracy` and "
        "`RelevanceRankAccuracy`.)",
        "",
    ]
    for aspect, (title, question) in ASPECTS.items():
        lines += [f"## {title}", "", question, ""]
        for name in list_metrics():
            if METRICS[name].aspect == aspect:
                lines += _section(METRICS[name])
    return "\n".join(lines).rstrip() + "\n"


def _section(entry: MetricEntry) -> list[str]:
    title, text = notes(entry.metric)
    paper = entry.paper
    lines = [f"### `{entry.name}`", "", title, "", "```math", entry.equation, "```", ""]
    lines += [text, ""] if text else []
    lines += [f"{paper.authors}: [{paper.title}]({paper.url}), {paper.year}.", ""]
    if not entry.options:
        return lines
    lines += ["| option | meaning | values | default |", "| --- | --- | --- | --- |"]
    for name, schema in entry.options.items():
        default = str(schema["default"]).lower() if isinstance(schema["default"], bool) else schema["default"]
        lines.append(f"| `{name}` | {schema['description']} | {values_of(schema)} | `{default}` |")
    return [*lines, ""]


def printed(text: str) -> str:
    """Return what the example on a page printed."""
    return text.split("```text\n", 1)[1].split("\n```", 1)[0] if "```text\n" in text else "..."


if __name__ == "__main__":
    # The test of the pages runs the example, and holds what it prints.
    PAGE.write_text(page(printed(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else "..."), encoding="utf-8")
