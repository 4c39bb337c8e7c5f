"""Registers flash kernels as our own operators, so that a compiled block has no graph break at them.

Two styles, both exact on real tokens:

- *segments*: a varlen kernel over [pad | run | pad] of each row (`segments.cu_seqlens`).
- *sink*: a dense kernel over whole rows whose padded keys and values are zero. Such a key adds exp(0) to the softmax
  denominator and nothing else, so with n of them lse_true = log(exp(lse) - n), out_true = out * exp(lse - lse_true).
  Handing *these* to the kernel's own backward makes the gradients exact too: P = exp(s - lse_true) is the unpadded
  softmax, D = sum(dO * out_true) its correction term, and zero keys send nothing back to q. (Correcting the output by
  an lse that carries no gradient leaves the gradients of q and k some 20 % off.)

The packages' private entries change from release to release, so they are called by parameter name.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

Pair = tuple[Tensor, Tensor]
Triple = tuple[Tensor, Tensor, Tensor]


class Kernel(ABC):
    """What a flash package offers; q, k, v are (B, S, H, D), or (T, H, D) with `cu` (n + 1,) int32 and `longest`.

    forward -> (out like q, lse float32 (B, H, S) or (H, T)); backward -> (dq, dk, dv).
    """

    @abstractmethod
    def forward(self, q: Tensor, k: Tensor, v: Tensor, cu: Tensor | None, longest: int) -> Pair:
        """Output and lse of attention."""

    @abstractmethod
    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cu: Tensor | None, longest: int
    ) -> Triple:
        """Gradients of q, k and v from that of the output."""


@functools.lru_cache(maxsize=32)
def _parameters(function: Callable[..., Any]) -> dict[str, bool]:
    """Parameter names of a kernel's entry -> whether it is required; sees through torch.library wrappers."""
    plain = getattr(function, "_init_fn", function)
    signature = inspect.signature(plain)
    return {name: p.default is inspect.Parameter.empty for name, p in signature.parameters.items()}


def call_by_name(function: Callable[..., Any], **values: Any) -> Any:
    """Call `function` with those `values` that it knows; parameters that it requires beyond them get None."""
    known = _parameters(function)
    arguments = {name: value for name, value in values.items() if name in known}
    arguments |= {name: None for name, required in known.items() if required and name not in arguments}
    return function(**arguments)


class Flash2(Kernel):
    """The flash-attn package (2.x): `flash_attn.flash_attn_interface`."""

    def __init__(self) -> None:
        self.module = importlib.import_module("flash_attn.flash_attn_interface")

    def forward(self, q: Tensor, k: Tensor, v: Tensor, cu: Tensor | None, longest: int) -> Pair:
        entry = self.module._flash_attn_forward if cu is None else self.module._flash_attn_varlen_forward
        out, lse, *_ = call_by_name(entry, q=q, k=k, v=v, **_bounds(cu, longest), **_options(q))
        return out, lse

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cu: Tensor | None, longest: int
    ) -> Triple:
        entry = self.module._flash_attn_backward if cu is None else self.module._flash_attn_varlen_backward
        grads = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v)]
        tensors = {"dout": dout, "q": q, "k": k, "v": v, "out": out, "softmax_lse": lse}
        call_by_name(
            entry,
            **tensors,
            dq=grads[0],
            dk=grads[1],
            dv=grads[2],
            **_bounds(cu, longest),
            **_options(q),
            rng_state=None,
        )
        return grads[0], grads[1], grads[2]


class Flash3(Kernel):
    """FlashAttention 3 for Hopper: `flash_attn_interface`, built from flash-attention's hopper/ folder."""

    def __init__(self) -> None:
        self.module = importlib.import_module("flash_attn_interface")

    def forward(self, q: Tensor, k: Tensor, v: Tensor, cu: Tensor | None, longest: int) -> Pair:
        out, lse, *_ = call_by_name(
            self.module._flash_attn_forward, q=q, k=k, v=v, **_bounds(cu, longest), **_options(q), **_HOPPER
        )
        return out, lse

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cu: Tensor | None, longest: int
    ) -> Triple:
        grads = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v)]
        tensors = {"dout": dout, "q": q, "k": k, "v": v, "out": out, "softmax_lse": lse}
        call_by_name(
            self.module._flash_attn_backward,
            **tensors,
            dq=grads[0],
            dk=grads[1],
            dv=grads[2],
            **_bounds(cu, longest),
            **_options(q),
            sm_margin=0,
        )
        return grads[0], grads[1], grads[2]


class Flash4(Kernel):
    """FlashAttention 4 (CuTe): `flash_attn.cute.interface`. It JIT-compiles at the first call of a shape class."""

    def __init__(self) -> None:
        self.module = importlib.import_module("flash_attn.cute.interface")

    def forward(self, q: Tensor, k: Tensor, v: Tensor, cu: Tensor | None, longest: int) -> Pair:
        # 4.0.0b36 returns five values, earlier ones two: only the first two are ours.
        out, lse, *_ = call_by_name(
            self.module._flash_attn_fwd,
            q=q,
            k=k,
            v=v,
            **_bounds(cu, longest),
            softmax_scale=q.shape[-1] ** -0.5,
            causal=False,
            return_lse=True,
        )
        return out, lse

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cu: Tensor | None, longest: int
    ) -> Triple:
        dq, dk, dv, *_ = call_by_name(
            self.module._flash_attn_bwd,
            q=q,
            k=k,
            v=v,
            out=out,
            dout=dout,
            lse=lse,
            softmax_scale=q.shape[-1] ** -0.5,
            causal=False,
            softcap=0.0,
            **_bounds(cu, longest),
        )
        return dq, dk, dv


class AtenFlash(Kernel):
    """torch's own flash kernel (FlashAttention 2), dense only: what SDPA's flash backend runs, with its lse.

    Its entry is called below SDPA, which would turn every tensor to (B, H, S, D) and back.
    """

    def forward(self, q: Tensor, k: Tensor, v: Tensor, cu: Tensor | None, longest: int) -> Pair:
        if not q.is_cuda:
            qt, kt, vt = (t.transpose(1, 2) for t in (q, k, v))
            out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(qt, kt, vt)
            return out.transpose(1, 2), lse
        lengths = (q.shape[1], k.shape[1])
        out, lse, *_ = torch.ops.aten._flash_attention_forward(q, k, v, None, None, *lengths, 0.0, False, False)
        return out, lse

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cu: Tensor | None, longest: int
    ) -> Triple:
        if not q.is_cuda:
            dt, qt, kt, vt, ot = (t.transpose(1, 2) for t in (dout, q, k, v, out))
            grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                dt, qt, kt, vt, ot, lse, 0.0, False
            )
            dq, dk, dv = (g.transpose(1, 2) for g in grads)
            return dq, dk, dv
        lengths = (q.shape[1], k.shape[1])
        state = _random_state(q.device)
        return torch.ops.aten._flash_attention_backward(
            dout, q, k, v, out, lse, None, None, *lengths, 0.0, False, *state
        )


@functools.cache
def _random_state(device: torch.device) -> Pair:
    """Two tensors in the form of torch's own calls; without dropout they are never read."""
    return torch.zeros(2, dtype=torch.uint64, device=device), torch.empty(0, dtype=torch.uint64, device=device)


_HOPPER = {"attention_chunk": 0, "num_splits": 1, "sm_margin": 0, "rotary_interleaved": True, "pack_gqa": None}


def _options(q: Tensor) -> dict[str, Any]:
    """Values that flash-attn 2 and 3 ask for in some release: plain attention, no dropout, no window."""
    return {
        "dropout_p": 0.0,
        "softmax_scale": q.shape[-1] ** -0.5,
        "causal": False,
        "is_causal": False,
        "window_size": (-1, -1),
        "window_size_left": -1,
        "window_size_right": -1,
        "softcap": 0.0,
        "deterministic": False,
        "return_softmax": False,
    }


def _bounds(cu: Tensor | None, longest: int) -> dict[str, Any]:
    if cu is None:
        return {}
    return {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": longest, "max_seqlen_k": longest}


def _fresh(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _dense(*tensors: Tensor) -> list[Tensor]:
    return [t.contiguous() for t in tensors]


def _tell_flops(operator: Any, count: Callable[..., int]) -> None:
    """Tell torch what an operator costs: one of unknown cost is free to repeat to the partitioner.

    `count` gets the operator's arguments, tensors as their shapes, and `out_shape`.
    """
    register_flop_formula(operator.overloadpacket)(count)


_LIBRARY = torch.library.Library("monotile", "FRAGMENT")


def _register(name: str, schema: str, compute: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Register `monotile::<name>` and return it. `compute` returns new tensors, `fake` tensors of their form.

    Not by torch.library.custom_op: it wraps each call in checks, and its autograd in more Python, which together take
    longer than a small kernel runs. A step of SDXL makes 280 such calls.
    """
    _LIBRARY.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, compute, "CompositeExplicitAutograd")
    torch.library.register_fake(f"monotile::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.monotile, name).default


def _differentiable(name: str, schema: str, forward: Any, backward: Callable[..., Triple]) -> Any:
    """Register `monotile::<name>`: the operator `forward` -> (out, lse), with `backward` as its gradient.

    An operator of its own: graphs are traced through its autograd, so what they call at each step is `forward` and
    `backward`, which have none. The first four arguments are tensors, or None; `backward` gets (dout, q, k, v, out,
    lse, the arguments from the fourth on).
    """

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Pair:
            out, lse = forward(*inputs)
            ctx.save_for_backward(*inputs[:4], out, lse)
            ctx.rest = inputs[4:]
            ctx.mark_non_differentiable(lse)
            return out, lse

        @staticmethod
        def backward(ctx: Any, dout: Tensor, _dlse: Tensor | None) -> tuple[Any, ...]:
            q, k, v, mask, out, lse = ctx.saved_tensors
            rest = (mask, *ctx.rest)
            return (*backward(dout, q, k, v, out, lse, *rest), *(None for _ in rest))

    def differentiated(*inputs: Any) -> Pair:
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs[:3]):
            return Differentiable.apply(*inputs)
        return forward(*inputs)

    operator = _register(name, schema, forward, forward)
    _LIBRARY.impl(name, differentiated, "Autograd")
    return operator


def segment_operator(name: str, make: Callable[[], Kernel]) -> Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]:
    """Register `monotile::<name>_segments` and return attend(q, k, v (T, H, D), cu (n + 1,) int32, longest) -> out.

    `make` builds the kernel at its first use, so that registering imports no package.
    """
    kernel = functools.cache(make)

    def compute(q: Tensor, k: Tensor, v: Tensor, cu: Tensor, longest: int) -> Pair:
        out, lse = kernel().forward(*_dense(q, k, v), cu, longest)
        return out.contiguous(), lse.contiguous()

    def fake(q: Tensor, k: Tensor, v: Tensor, cu: Tensor, longest: int) -> Pair:
        return _fresh(q), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)

    def compute_backward(
        dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cu: Tensor, longest: int
    ) -> Triple:
        return _dense(*kernel().backward(*_dense(dout, q, k, v, out, lse), cu, longest))

    inputs = "Tensor q, Tensor k, Tensor v"
    schema = f"({inputs}, Tensor cu, SymInt longest) -> (Tensor, Tensor)"
    forward = _register(f"{name}_segments_forward", schema, compute, fake)
    backward = _register(
        f"{name}_segments_backward",
        f"(Tensor dout, {inputs}, Tensor out, Tensor lse, Tensor cu, SymInt longest) -> (Tensor, Tensor, Tensor)",
        compute_backward,
        lambda dout, q, k, v, *_: (_fresh(q), _fresh(k), _fresh(v)),
    )
    # Segments' lengths are not known from shapes: the most it can be.
    _tell_flops(forward, lambda q, k, v, cu, longest, **_: 4 * longest * math.prod(q))
    operator = _differentiable(f"{name}_segments", schema, forward, backward)

    def attend(q: Tensor, k: Tensor, v: Tensor, cu: Tensor, longest: int) -> Tensor:
        return operator(q, k, v, cu, longest)[0]

    return attend


# Closer to 1 the corrected denominator would be rounding noise; only rows whose real scores all lie some 14 below zero
# against thousands of pads come near.
_MOST_PADDING = 1 - 2.0**-20


def remove_zero_keys(out: Tensor, lse: Tensor, pads: Tensor) -> Pair:
    """Output and lse of attention as if `pads` (B,) zero keys with zero values had not been there.

    `out` (B, S, H, D) is overwritten, `lse` float32 (B, H, S). With 0 pads both come back bit for bit.
    """
    share = (pads[:, None, None] * torch.exp(-lse)).clamp(max=_MOST_PADDING)
    shift = torch.log1p(-share)
    factor = torch.exp(-shift).transpose(1, 2).unsqueeze(-1)
    # In place: computed in float32 and rounded once, without a float32 copy of the output.
    return out.mul_(factor), lse + shift


def sink_operator(name: str, make: Callable[[], Kernel]) -> Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]:
    """Register `monotile::<name>_sink` and return attend(q (B, S, H, D), k, v (B, T, H, D), pads (B,) float32) -> out.

    Keys and values of padded positions must be zero; `pads` counts them a row, None says that there are none.
    """
    kernel = functools.cache(make)

    def compute(q: Tensor, k: Tensor, v: Tensor, pads: Tensor | None) -> Pair:
        out, lse = kernel().forward(*_dense(q, k, v), None, q.shape[1])
        if pads is not None:
            out, lse = remove_zero_keys(out, lse, pads)
        return out.contiguous(), lse.contiguous()

    def fake(q: Tensor, k: Tensor, v: Tensor, pads: Tensor | None) -> Pair:
        return _fresh(q), q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)

    def compute_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Triple:
        return _dense(*kernel().backward(*_dense(dout, q, k, v, out, lse), None, q.shape[1]))

    inputs = "Tensor q, Tensor k, Tensor v"
    schema = f"({inputs}, Tensor? pads) -> (Tensor, Tensor)"
    forward = _register(f"{name}_sink_forward", schema, compute, fake)
    backward = _register(
        f"{name}_sink_backward",
        f"(Tensor dout, {inputs}, Tensor out, Tensor lse) -> (Tensor, Tensor, Tensor)",
        compute_backward,
        lambda dout, q, k, v, out, lse: (_fresh(q), _fresh(k), _fresh(v)),
    )
    _tell_flops(forward, lambda q, k, v, pads, **_: 4 * k[1] * math.prod(q))
    operator = _differentiable(f"{name}_sink", schema, forward, lambda *inputs: backward(*inputs[:6]))

    def attend(q: Tensor, k: Tensor, v: Tensor, pads: Tensor | None) -> Tensor:
        return operator(q, k, v, pads)[0]

    return attend
