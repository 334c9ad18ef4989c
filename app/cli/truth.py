"""Files that say where targets lie: boxes of pictures, as CSV or in COCO's JSON."""

import csv
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from seewhy.app.cli.files import printable

Box = tuple[float, float, float, float]

_COLUMNS = ("picture", "left", "top", "right", "bottom")


def read_boxes(path: Path, pictures: Sequence[Path]) -> list[list[Box] | None]:
    """Return the boxes of each picture, left, top, right, bottom in its pixels; None where the file names none.

    A name in the file is that of a picture, with as many of its folders as the file gives.

    Args:
        path: path of a CSV file with the columns picture, left, top, right and bottom, or of a JSON file of COCO, whose
            categories do not matter.

    Raises:
        click.BadParameter: the file is neither, or names none of the pictures.
    """
    boxes: dict[str, list[Box]] = defaultdict(list)
    try:
        for name, box in (_coco if path.suffix.lower() == ".json" else _rows)(path):
            boxes[Path(name).as_posix()].append(box)
    except (KeyError, TypeError, ValueError) as error:
        raise click.BadParameter(
            f"{printable(path)} cannot be read ({type(error).__name__}: {error}); give a CSV file with the columns "
            f"{','.join(_COLUMNS)}, or a .json file with COCO's images and annotations.",
            param_hint="--boxes",
        ) from error
    result = [next((boxes[name] for name in _names(picture) if name in boxes), None) for picture in pictures]
    if not any(result):
        raise click.BadParameter(f"{printable(path)} contains none of the pictures.", param_hint="--boxes")
    return result


def _rows(path: Path) -> Iterator[tuple[str, Box]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            yield row["picture"], _box(row[name] for name in _COLUMNS[1:])


def _coco(path: Path) -> Iterator[tuple[str, Box]]:
    content = json.loads(path.read_text(encoding="utf-8"))
    names = {image["id"]: image["file_name"] for image in content["images"]}
    for annotation in content["annotations"]:
        left, top, width, height = _box(annotation["bbox"])
        yield names[annotation["image_id"]], (left, top, left + width, top + height)


def _box(edges: Any) -> Box:
    left, top, right, bottom = map(float, edges)
    return left, top, right, bottom


def _names(picture: Path) -> Iterator[str]:
    """Yield a picture's path, the same without its first folder, and so on down to the mere name."""
    for start in range(len(picture.parts)):
        yield Path(*picture.parts[start:]).as_posix()
