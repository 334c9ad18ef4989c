"""The inputs that fuzzing has kept, one archive for each target: together they cover what the fuzzer has covered.

``python -m tools.hostile.corpus TARGET FOLDER`` adds the files of a folder, such as the third argument of
``tools.hostile.fuzz`` names.
"""

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

CORPUS = Path(__file__).parents[2] / "tests" / "app" / "hostile" / "corpus"


def archive(target: str) -> Path:
    """Return the path of a target's archive."""
    return CORPUS / f"{target}.zip"


def inputs(target: str) -> dict[str, bytes]:
    """Return the inputs of a target by name."""
    with ZipFile(archive(target)) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def pack(target: str, contents: Iterable[bytes]) -> None:
    """Write a target's archive: each input once, under its digest. Equal inputs make equal archives."""
    names = {hashlib.sha1(content, usedforsecurity=False).hexdigest()[:12]: content for content in contents}
    with ZipFile(archive(target), "w") as packed:
        for name, content in sorted(names.items()):
            packed.writestr(ZipInfo(name), content, ZIP_DEFLATED, 9)


def main(target: str, folder: str) -> None:
    """Add the files of a folder to a target's archive."""
    pack(target, [*inputs(target).values(), *(file.read_bytes() for file in Path(folder).iterdir())])


if __name__ == "__main__":
    main(*sys.argv[1:])
