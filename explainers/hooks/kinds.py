"""The kinds of tensors that sessions record; without PyTorch, because the help and completion of commands use them."""

from typing import Literal, get_args

Kind = Literal["input", "output", "grad_input", "grad_output", "parameter_grad"]
KINDS: tuple[Kind, ...] = get_args(Kind)
CALL_KINDS: tuple[Kind, ...] = KINDS[:4]
"""The kinds that each call of a module has; the gradient of a parameter is one for all calls."""
GRADIENTS: tuple[Kind, ...] = KINDS[2:]
