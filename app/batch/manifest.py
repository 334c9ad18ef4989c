"""The manifest of a run: its model, its question, and the number of explained pictures."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from seewhy.explainers.errors import OptionError
from seewhy.explainers.results.origin import VERSIONS
from seewhy.models import LoadedModel

NAME = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """The contents of a folder of shards.

    Attributes:
        model: name of the model.
        digest: digest of the model's weights, preprocessing, labels, device and dtype.
        method: name of the method.
        options: options of the method and of the question, by name, with their defaults.
        source: the data set, see `description_of`.
        versions: versions of packages, when the run began.
        started: time of the start, in UTC.
        finished: likewise; None while pictures are missing.
        pictures: rows without an error.
        errors: rows with an error.
        sha256: SHA-256 of the weights file; None if there is none.
    """

    model: str
    digest: str
    method: str
    options: dict[str, Any]
    source: list[str]
    versions: dict[str, str]
    started: str
    finished: str | None = None
    pictures: int = 0
    errors: int = 0
    sha256: str | None = None

    @property
    def run(self) -> str:
        """Digest of everything that decides the rows. A run continues only in a folder with the same digest."""
        question = self.model, self.digest, self.method, json.dumps(self.options, sort_keys=True), self.source
        return hashlib.sha256(repr(question).encode()).hexdigest()

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the manifest of a folder; None if it has none.

        Raises:
            OptionError: the file is not a manifest.
        """
        try:
            fields = json.loads((folder / NAME).read_text(encoding="utf-8"))
            fields.pop("run")
            return cls(**fields)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OptionError(f"{folder / NAME} is not a run manifest; use another folder.", "out") from error

    def write(self, folder: Path) -> None:
        """Write the manifest whole, then rename it."""
        part = folder / f".{NAME}"
        part.write_text(json.dumps({"run": self.run, **asdict(self)}, indent=2) + "\n", encoding="utf-8")
        os.replace(part, folder / NAME)


def manifest_of(model: LoadedModel, method: str, options: dict[str, Any], source: list[str]) -> Manifest:
    """Return the manifest of a run that begins now; arguments as the attributes."""
    digest = hashlib.sha256(model.fingerprint.encode())
    if model.sha256 is None:  # a module of the user, or random weights: their file is not known
        for name, value in sorted(model.module.state_dict().items()):
            digest.update(name.encode() + value.detach().cpu().contiguous().float().numpy().tobytes())
    return Manifest(model.name, digest.hexdigest(), method, options, source, VERSIONS, now(), sha256=model.sha256)


def now() -> str:
    """Return the time in UTC, in ISO format."""
    return datetime.now(UTC).isoformat(timespec="seconds")
