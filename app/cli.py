"""The `seewhy` command."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click
from pydantic import ValidationError

from app.answers import arrays, document, draw, encode
from app.carriers import parse
from app.cli_hooks import capture, intervene, trace
from app.cli_io import destination, each, form_of, open_service, pair, picture_options, read, table, yes
from app.errors import ServiceError
from app.schemas import ExplainOptions, Format, PredictOptions
from app.settings import Settings
from explainers.errors import ExplainerError
from explainers.registry import COMMON, METHODS, get_method, import_methods, list_methods
from explainers.render import VIEWS
from models import ModelError, Registry

FORMATS: tuple[Format, ...] = get_args(Format)


class _Group(click.Group):
    """Turns what a user can mend into one line and an exit status instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ValidationError as error:
            faults = "; ".join(f"{one['loc'][0]}: {one['msg'].removeprefix('Value error, ')}" for one in error.errors())
            raise click.ClickException(faults) from error
        except (ServiceError, ExplainerError, ModelError) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="seewhy")
def main() -> None:
    """SeeWhy: see where a pretrained CNN looked."""


@main.command()
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=int, help="Port to listen on.")
@click.option("--workers", type=int, help="Processes.")
@click.option("--device", help="auto, cpu, cuda or cuda:N.")
def serve(**given: Any) -> None:
    """Serve the HTTP API and the web page."""
    from app.server import serve as run

    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    # A mistake in the models file or in a module of methods is told here, once, before any process starts.
    import_methods(settings.methods)
    Registry(settings.weights_dir, settings.models).spec(settings.default_model)
    run(settings)


@main.command()
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


@main.command()
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


@main.command()
@click.option("--source", type=click.Choice(["own", "embedded", "torchvision", "timm"]), help="Only of this source.")
@click.option("--available", is_flag=True, help="Only those whose weights are on this machine.")
def models(source: str | None, available: bool) -> None:
    """List the models and whether their weights are at hand."""
    registry = open_service(None).registry
    rows = []
    for spec in registry.specs():
        at_hand = registry.availability(spec).available
        if source in (None, spec.source) and (at_hand or not available):
            height, width = spec.preprocess.size
            rows.append((spec.name, spec.source, f"{height}x{width}", str(len(spec.labels)), spec.licence, at_hand))
    table(
        ("NAME", "SOURCE", "INPUT", "CLASSES", "LICENCE", "WEIGHTS"),
        [(*row[:-1], yes(row[-1])) for row in rows],
    )


@main.command()
@click.argument("model")
def layers(model: str) -> None:
    """List every module of MODEL in execution order; * marks the default layer of CAMs."""
    registry = open_service(None).registry
    found = registry.survey(registry.spec(model))
    table(
        ("PATH", "TYPE", "OUTPUT", "PARAMETERS", "CALLS", "CAM"),
        [
            (
                ("*" if layer.default else " ") + (layer.path or "(the model)"),
                layer.type,
                "x".join(map(str, layer.output_shape[1:])) if layer.output_shape else "-",
                f"{layer.parameters:,}",
                str(layer.calls),
                yes(layer.cam),
            )
            for layer in found.layers
        ],
    )
    if found.reason:
        click.echo(f"No default layer. {found.reason}")


@main.command()
def methods() -> None:
    """List the methods and their options."""
    import_methods(Settings().methods)
    found = [get_method(name) for name in list_methods()]
    click.echo("All methods take:")
    shared = {name: schema for name, schema in METHODS["gradcam"].options.items() if name in COMMON}
    for line in _options(shared):
        click.echo(line)
    for method in found:
        click.echo(f"\n{method.name} ({method.family}): {method.summary}")
        click.echo(f"  {method.paper.authors} ({method.paper.year}). {method.paper.title}. {method.paper.url}")
        click.echo(f"  forwards: {method.forwards}; backwards: {method.backwards}")
        own = {name: schema for name, schema in method.options.items() if schema != shared.get(name)}
        for line in _options(own):
            click.echo(line)


def _options(options: dict[str, dict[str, Any]]) -> Iterator[str]:
    for name, schema in options.items():
        kind = "|".join(schema["enum"]) if "enum" in schema else schema.get("type", "")
        shown = "layer" if name == "layers" else name
        yield f"  {shown} [{kind}] default {schema.get('default')!r}: {schema.get('description', '')}"


@main.command()
def settings() -> None:
    """List the settings: environment variable, present value, default and help."""
    table(("VARIABLE", "VALUE", "DEFAULT", "HELP"), list(Settings().rows()))


for command in (trace, capture, intervene):
    main.add_command(command)

if __name__ == "__main__":
    main()
