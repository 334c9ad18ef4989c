"""The commands about what there is: models, layers, methods."""

from collections.abc import Iterator
from typing import Any

import click

from seewhy.app.cli.names import complete_model
from seewhy.app.cli.run import open_service, read_settings, table, yes


@click.command()
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


@click.command()
@click.argument("model", shell_complete=complete_model)
def layers(model: str) -> None:
    """List every module of MODEL in execution order.

    * marks the default layer of CAMs.
    """
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


@click.command()
def methods() -> None:
    """List the methods and their options."""
    from seewhy.explainers.methods.catalogue import COMMON, METHODS, get_method, import_methods, list_methods

    import_methods(read_settings().methods)
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
