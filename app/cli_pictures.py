"""The commands about pictures: explain, predict."""

from pathlib import Path
from typing import Any, get_args

import click

from app.answers import arrays, document, draw, encode
from app.carriers import parse
from app.cli_io import destination, each, form_of, open_service, pair, picture_options, read
from app.schemas import ExplainOptions, Format, PredictOptions
from explainers.render import VIEWS

FORMATS: tuple[Format, ...] = get_args(Format)


@click.command()
@picture_options
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File, or folder for several pictures.")
@click.option(
    "--method", multiple=True, default=["gradcam"], show_default=True, help="A name of `seewhy methods`; repeatable."
)
@click.option("--against", help="Class index or label to contrast the explained class with.")
@click.option("--target", multiple=True, help="Class index or label; repeatable. Default: the most probable.")
@click.option("--top", type=int, help="Explain the N most probable classes.")
@click.option("--layer", multiple=True, help="Dotted module path or glob; repeatable (fused).")
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: by the output's suffix, or png.")
@click.option("--view", type=click.Choice(VIEWS), default="overlay", show_default=True)
@click.option("--colormap", help="A perceptual colour map.")
@click.option("--alpha", type=float, default=0.5, show_default=True, help="Strength of the overlay, 0 to 1.")
@click.option("--scale", default="image", show_default=True, help="`image`, `robust`, or fixed ends `lo,hi`.")
@click.option("--values", is_flag=True, help="Include the heatmap's numbers in a JSON answer.")
@click.option("--option", "extra", multiple=True, metavar="NAME=VALUE", help="An option of the method; repeatable.")
def explain(
    pictures: tuple[Path, ...],
    device: str | None,
    output: Path | None,
    form: Format | None,
    extra: tuple[str, ...],
    **given: Any,
) -> None:
    """Write the heatmap of each PICTURE."""
    fields = {name: value for name, value in given.items() if value not in (None, ())}
    fields |= {name: list(value) for name, value in fields.items() if isinstance(value, tuple)}
    fields |= dict(pair(one) for one in extra)
    form = form or form_of(output, FORMATS)
    options = parse(ExplainOptions, {**fields, "format": form})
    service = open_service(device)
    into = destination(pictures, output, form)

    def one(picture: Path) -> str:
        explained = service.explain(read(picture), options, drawn=form != "npz")
        path = into(picture)
        if form == "json":
            text = document(explained, options.values, service.settings.max_json_values)
            path.write_text(text.model_dump_json(exclude_unset=True, indent=2), encoding="utf-8")
        elif form == "npz":
            path.write_bytes(arrays(explained, service.settings.max_values))
        else:
            path.write_bytes(encode(draw(explained), form))
        named = ", ".join(f"{target.label} {target.probability:.1%}" for target in explained.targets)
        against = explained.explanations[0].against
        named += f" against {against.label}" if against else ""
        methods = ", ".join(method.name for method, _ in explained.methods)
        return f"{picture}: {named} by {methods} -> {path}"

    each(pictures, one)


@click.command()
@picture_options
@click.option("--top", type=int, default=5, show_default=True, help="How many classes to print.")
def predict(pictures: tuple[Path, ...], device: str | None, model: str | None, top: int) -> None:
    """Print the most probable classes of each PICTURE."""
    service = open_service(device)
    options = parse(PredictOptions, {"model": model, "top": top})

    def one(picture: Path) -> str:
        best = service.predict(read(picture), options).predictions
        rows = [f"  {found.probability:7.2%}  {found.index:>5}  {found.label}" for found in best]
        return "\n".join([f"{picture}:", *rows])

    each(pictures, one)
