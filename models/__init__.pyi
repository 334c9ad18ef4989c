from .errors import ModelError as ModelError
from .preprocess import Preprocess as Preprocess
from .registry import Registry as Registry
from .registry import list_models as list_models
from .registry import load_model as load_model
from .spec import LoadedModel as LoadedModel
from .spec import ModelSpec as ModelSpec
from .wrap import wrap_model as wrap_model
