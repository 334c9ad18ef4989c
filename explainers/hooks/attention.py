"""Attention sessions: within a session, attention is computed by its definition and its probabilities are recorded.

Fused kernels never hold the probabilities. `DefinedAttention` sees the functions that its thread calls, and computes
PyTorch's two kinds of fused attention step by step; a model that computes its own softmax stays as it is. Nothing is
changed on the module, and other threads run as before.
"""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.hooks.user_hooks import listed


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One computation of attention.

    Attributes:
        path: path of the innermost module that computed it.
        probabilities: (..., Q, K), the share of each of K keys in the result of each of Q queries; the rows sum to one.
            A tensor of the forward pass itself, with its graph: (N, heads, T, T) where T tokens attend to each other,
            (N * windows, heads, T, T) within windows.
    """

    path: str
    probabilities: Tensor


class DefinedAttention(TorchFunctionMode):
    """Computes the attention of this thread by its definition, softmax(QKᵀ/√d + mask) V.

    It sees `scaled_dot_product_attention`, `multi_head_attention_forward` (so `nn.MultiheadAttention`), and products of
    a softmax over the last axis with values. Multi-head attention with added keys (`add_bias_kv`, `add_zero_attn`) runs
    as it is, unseen.

    Args:
        see: called with the probabilities of each attention, in order.
    """

    def __init__(self, see: Callable[[Tensor], None] = lambda probabilities: None) -> None:
        super().__init__()
        self._see = see
        self._softmaxes = WeakTensorKeyDictionary()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            bound = _MULTI_HEAD.bind(*args, **kwargs)
            bound.apply_defaults()
            if all(bound.arguments[name] is None or bound.arguments[name] is False for name in _EXTRA_KEYS):
                return self._multi_head(bound.arguments)
        result = func(*args, **kwargs)
        if func in _SOFTMAXES and _last_axis(result, *args[1:2], **kwargs):
            self._softmaxes[result] = True
        elif func in _PRODUCTS:
            factor = next((value for value in args if isinstance(value, Tensor)), None)
            if factor is not None and factor in self._softmaxes:
                self._see(factor)
        return result

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """The arguments are those of `scaled_dot_product_attention`; a true entry of a mask keeps a key."""
        if enable_gqa:
            key, value = (part.repeat_interleave(query.shape[-3] // part.shape[-3], dim=-3) for part in (key, value))
        if is_causal:
            shape = query.shape[-2], key.shape[-2]
            attn_mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return self._weighted(query * scale, key, value, attn_mask, dropout_p)[0]

    def _multi_head(self, arguments: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        """Return the output and, where they are needed, the probabilities, as `multi_head_attention_forward` does."""
        batched = arguments["query"].ndim == 3  # (T, N, C), or (T, C) without a batch
        tokens = [arguments[name] if batched else arguments[name].unsqueeze(1) for name in ("query", "key", "value")]
        query, key, value = (_heads(part, arguments["num_heads"]) for part in _projected(arguments, tokens))
        dropout = arguments["dropout_p"] if arguments["training"] else 0.0
        mask = _mask(arguments, query, key)
        output, probabilities = self._weighted(query * query.shape[-1] ** -0.5, key, value, mask, dropout)
        output = output.permute(2, 0, 1, 3).flatten(2)
        output = functional.linear(output, arguments["out_proj_weight"], arguments["out_proj_bias"])
        if arguments["average_attn_weights"]:
            probabilities = probabilities.mean(dim=1)
        if not batched:
            output, probabilities = output.squeeze(1), probabilities.squeeze(0)
        return output, probabilities if arguments["need_weights"] else None

    def _weighted(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float
    ) -> tuple[Tensor, Tensor]:
        """Return the values (..., Q, C) weighted by the probabilities (..., Q, K), and the latter, for scaled
        queries."""
        scores = torch.matmul(query, key.transpose(-2, -1))
        if mask is not None:
            scores = scores + _additive(mask, scores.dtype)
        probabilities = torch.softmax(scores, dim=-1)
        self._see(probabilities)
        weights = functional.dropout(probabilities, dropout) if dropout else probabilities
        return torch.matmul(weights, value), weights


class AttentionSession:
    """Records the attention probabilities of a model's forward passes.

    >>> from torch import nn, ones
    >>> model = nn.Sequential(nn.Flatten(2), nn.TransformerEncoderLayer(16, 2, batch_first=True)).eval()
    >>> with AttentionSession(model) as attention:
    ...     logits = model(ones(1, 5, 4, 4))
    >>> [(call.path, tuple(call.probabilities.shape)) for call in attention.calls]
    [('1.self_attn', (1, 2, 5, 5))]

    The results differ from those of fused attention only by rounding. A session sees only forward passes of the thread
    that opened it.

    Args:
        module: the model, an `nn.Module` or a `LoadedModel`.
        values: whether to keep the probabilities; if not, `calls` has tensors of their shapes on the ``meta`` device,
            which take no memory.

    Raises:
        UnsupportedModuleError: the module is scripted, compiled or data-parallel.

    Attributes:
        hooks: a `HookSession` of the same modules, for further hooks and records.
        calls: one entry for each attention, in order.
    """

    def __init__(self, module: Any, values: bool = True) -> None:
        self._values = values
        self.hooks = HookSession(module)
        self._mode = DefinedAttention(self._see)
        self._running: list[str] = []
        self.calls: list[AttentionCall] = []

    def __enter__(self) -> Self:
        self.hooks.__enter__()
        self.calls.clear()
        self._running.clear()
        self.hooks.before_forward(self._begin, nn.Module)
        self.hooks.after_forward(self._end, nn.Module, always_call=True)
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mode.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self.hooks.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        paths = dict.fromkeys(call.path for call in self.calls)
        records = f"; attention of {listed([*paths])}" if paths else ""
        return f"AttentionSession({self.hooks.state}{records})"

    @property
    def probabilities(self) -> dict[str, list[Tensor]]:
        """Per path, the probabilities of each call."""
        paths: dict[str, list[Tensor]] = {}
        for call in self.calls:
            paths.setdefault(call.path, []).append(call.probabilities)
        return paths

    def _begin(self, _module: nn.Module, _args: Any) -> None:
        call = self.hooks.current
        if call is not None:
            self._running.append(call.path)

    def _end(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        self._running.pop()

    def _see(self, probabilities: Tensor) -> None:
        if not self._values:
            probabilities = torch.empty_like(probabilities, device="meta")
        self.calls.append(AttentionCall(self._running[-1] if self._running else "", probabilities))


def _last_axis(result: Tensor, *axes: int | None, dim: int | None = None, **_: Any) -> bool:
    """Whether a softmax with these arguments was over the last axis."""
    axis = next(iter(axes), dim)
    return axis is not None and axis % result.ndim == result.ndim - 1


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask to add to scores, given such a mask or one whose true entries are kept."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask.logical_not(), float("-inf"))


def _projected(arguments: dict[str, Any], tokens: list[Tensor]) -> list[Tensor]:
    """Return queries, keys and values (T, N, C), projected by the weights of `multi_head_attention_forward`."""
    if arguments["use_separate_proj_weight"]:
        weights = [arguments[f"{name}_proj_weight"] for name in "qkv"]
    else:
        weights = arguments["in_proj_weight"].chunk(3)
    bias = arguments["in_proj_bias"]
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    return [functional.linear(*triple) for triple in zip(tokens, weights, biases, strict=True)]


def _heads(tokens: Tensor, count: int) -> Tensor:
    """Return tokens (T, N, C) as (N, heads, T, C / heads)."""
    length, pictures, channels = tokens.shape
    return tokens.reshape(length, pictures, count, channels // count).permute(1, 2, 0, 3)


def _mask(arguments: dict[str, Any], query: Tensor, key: Tensor) -> Tensor | None:
    """Return the mask to add to scores (N, heads, Q, K); in `multi_head_attention_forward` true entries drop keys."""
    mask, padding = arguments["attn_mask"], arguments["key_padding_mask"]
    parts = []
    if mask is not None:
        parts.append(mask.reshape(*query.shape[:2], *mask.shape[-2:]) if mask.ndim == 3 else mask)
    if padding is not None:
        parts.append(padding.reshape(query.shape[0], 1, 1, key.shape[2]))
    terms = [_additive(part.logical_not() if part.dtype == torch.bool else part, query.dtype) for part in parts]
    return (terms[0] if len(terms) == 1 else terms[0] + terms[1]) if terms else None


_MULTI_HEAD = signature(functional.multi_head_attention_forward)
_EXTRA_KEYS = ("bias_k", "bias_v", "add_zero_attn", "static_k", "static_v")
"""Arguments that add keys, or put other keys in their place."""

_SOFTMAXES = frozenset({functional.softmax, torch.softmax, Tensor.softmax})
_PRODUCTS = frozenset({torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.einsum})
