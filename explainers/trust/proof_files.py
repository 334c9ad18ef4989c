"""Proofs in files of arrays, without PyTorch: clients of the service have no model."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from seewhy.explainers.trust.proof import Proof


def proof_arrays(proofs: "Iterable[Proof | None]") -> dict[str, NDArray[np.str_]]:
    """Return proofs as an array of JSON texts (T,), for npz files; nothing without proofs."""
    texts = [json.dumps(asdict(proof)) for proof in proofs if proof]
    return {"proofs": np.array(texts)} if texts else {}
