"""The commands that list models, layers and methods."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from seewhy.app.cli.equations import readable
from seewhy.app.cli.names import complete_method, complete_model
from seewhy.app.cli.options import examples, option
from seewhy.app.cli.output import table, yes
from seewhy.app.pipeline.option_table import SOURCE
from seewhy.models.sources import SOURCES

if TYPE_CHECKING:
    from seewhy.explainers.methods.catalogue import Method


@click.command(
    epilog=examples(
        "models --available",
        "models --source torchvision",
        "models efficientnet_lite0",
    )
)
@click.argument("name", required=False, shell_complete=complete_model)
@option("source", SOURCE, type=click.Choice(SOURCES))
@click.option("--available", is_flag=True, help="List only the models that are ready to use, with installed weights.")
def models(name: str | None, source: str | None, available: bool) -> None:
    """List the models, or the labels of the model NAME.

    The list says whether a model's weights are available.
    """
    from seewhy.app.cli.run import open_service

    registry = open_service(None).models.registry
    if name is not None:
        if source or available:
            raise click.UsageError("Give NAME, or --source and --available, not both.")
        table(("INDEX", "LABEL"), [(str(index), label) for index, label in enumerate(registry.spec(name).labels)])
        return
    rows: list[tuple[str, ...]] = []
    for spec in registry.specs():
        at_hand = registry.missing_weights(spec) is None
        if source in (None, spec.source) and (at_hand or not available):
            size = "-" if spec.input_size is None else "x".join(map(str, spec.input_size))
            rows.append((spec.name, spec.source, size, str(len(spec.labels)), spec.licence, yes(at_hand)))
    table(("NAME", "SOURCE", "INPUT", "CLASSES", "LICENCE", "WEIGHTS"), rows)


@click.command(epilog=examples("layers efficientnet_lite0"))
@click.argument("model", required=False, metavar="MODEL", shell_complete=complete_model)
@click.option("--model", "named", hidden=True, shell_complete=complete_model)  # as the other commands have it
def layers(model: str | None, named: str | None) -> None:
    """List every module of MODEL in execution order.

    * marks the default layer of CAMs: in most networks the last grid over the picture before pooling and the head,
    through which all evidence passes.
    """
    from seewhy.app.cli.run import open_service

    if (model is None) == (named is None):
        raise click.UsageError("Name one model, as in `seewhy layers efficientnet_lite0`.")
    registry = open_service(None).models.registry
    survey = registry.survey(registry.spec(str(named if model is None else model)))
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
            for layer in survey.layers
        ],
    )
    if survey.reason:
        click.echo(f"No default layer. {survey.reason}")


@click.command(
    epilog=examples(
        "methods",
        "methods gradcam",
    )
)
@click.argument("name", required=False, shell_complete=complete_method)
def methods(name: str | None) -> None:
    """List the methods and options, or describe the method NAME."""
    from seewhy.app.cli.environment import read_settings
    from seewhy.explainers.methods.catalogue import COMMON, METHODS, get_method, import_methods, list_methods

    import_methods(read_settings().methods)
    if name is not None:
        for line in _description(get_method(name)):
            click.echo(line)
        return
    click.echo("All methods take:")
    common = {name: schema for name, schema in METHODS["gradcam"].options.items() if name in COMMON}
    for line in _options(common):
        click.echo(line)
    for method in map(get_method, list_methods()):
        click.echo(f"\n{method.name} ({method.family}): {method.summary}")
        for line in _source_and_cost(method):
            click.echo(line)
        for line in _options({name: schema for name, schema in method.options.items() if schema != common.get(name)}):
            click.echo(line)


def _description(method: "Method") -> Iterator[str]:
    """Yield the lines about one method."""
    yield f"{method.name} ({method.family}): {method.summary}"
    if method.equation:
        yield ""
        yield from (f"    {line}" for line in readable(method.equation).splitlines())
        yield ""
    yield from _source_and_cost(method)
    yield f"  needs: {', '.join(method.needs) or 'only predictions'}"
    yield f"  map: {'one value for each pixel of the input' if method.fine else 'coarse'}" + ", signed" * method.signed
    yield "Options:"
    yield from _options(method.options)


def _source_and_cost(method: "Method") -> Iterator[str]:
    for paper in method.papers:
        yield f"  {paper.authors} ({paper.year}). {paper.title}. {paper.url}"
    yield f"  forwards: {method.forwards}; backwards: {method.backwards}"


def _options(schemas: dict[str, dict[str, Any]]) -> Iterator[str]:
    for name, schema in schemas.items():
        option = "layer" if name == "layers" else name
        yield f"  {option} [{_kind(schema)}]{_default(name, schema)}: {schema.get('description', '')}"


def _kind(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return "|".join(schema["enum"])
    kind = str(schema.get("type", ""))
    return f"{schema['items']['type']}, several" if kind == "array" else kind


def _default(name: str, schema: dict[str, Any]) -> str:
    """Return the default of an option as text; empty if its description names it."""
    default = schema.get("default")
    if default != []:
        return f" default {str(default).lower() if isinstance(default, bool) else default}"
    if "by default" in schema.get("description", ""):
        return ""
    return " default the model's default layer" if name == "layers" else " default none"
