"""Errors of models, as one tree.

    ModelError
    ├── UnknownModelError         no model, or no weight set, has that name
    ├── ModelsFileError           the TOML file of the user's models is wrong
    ├── ModelTooLargeError        the model can never fit into the service's memory
    └── WeightsError
        ├── WeightsUnavailableError   the weights are not installed
        └── BadWeightsError           the file is damaged, or belongs to another architecture

Every message says what to do next, and none holds a path of the machine; a note of an exception may.
"""


class ModelError(Exception):
    """Base class of all errors of this package."""


class UnknownModelError(ModelError):
    """No model, or no weight set of it, has that name."""


class ModelsFileError(ModelError):
    """The TOML file of the user's models is malformed, or names something that does not exist."""


class ModelTooLargeError(ModelError):
    """The model can never fit into the memory for models."""


class WeightsError(ModelError):
    """The weights of a model cannot be used."""


class WeightsUnavailableError(WeightsError):
    """The weights are not installed."""


class BadWeightsError(WeightsError):
    """The weights file is damaged, or belongs to another architecture."""
