"""Defines the attention routes: one result whichever is chosen, each with the mask form that its kernel takes.

`choose_route` picks a route for a device and dtype, or gives the reason why a named one can't be used. A `Route` has
two halves: `prepare`, run once a step outside of every compiled region, turns the rows' valid spans into tensors;
`attend` is traced into each block.
"""

import functools
import importlib
import logging
from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from backend.config.packages import about_package, install_remedy, load_problem
from backend.shapes import flash_kernels, padding
from backend.shapes.padding import ValidSpans

log = logging.getLogger(__name__)

ROUTES = ("sdpa", "flash2", "fa3", "fa4", "varlen", "flex")
HALF = (torch.bfloat16, torch.float16)


def plain_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """SDPA on (B, S, H, D); `mask` (B, 1, 1, S) bool, True on real keys, or None where nothing is padded."""
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask)
    return out.transpose(1, 2)


class Route(ABC):
    """A way to compute attention over runs. `name` is the setting's value, `detail` says what runs underneath.

    unguarded: operator of unpadded rows in graphs of open sizes, None for SDPA; see `open_sizes`.
    """

    name: str
    detail: str
    unguarded: Any = None

    @abstractmethod
    def prepare(self, runs: ValidSpans, device: torch.device) -> Any:
        """Mask of the batch in this route's form."""

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        """Attention of q, k, v (B, S, H, D) of one dtype -> (B, S, H, D); `mask` from `prepare`, None if unpadded."""

    def plain(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of q (B, S, H, D) to k, v (B, T, H, D) where nothing is padded."""
        if self.unguarded is None or q.shape[-1] % 8:  # flash kernels take no other heads; SDPA pads them
            return plain_attention(q, k, v)
        return self.unguarded(q, k, v, None)

    def open_sizes(self) -> None:
        """Unpadded rows go through torch's flash kernel behind our operator, for graphs of open sizes.

        SDPA's backward pass is guarded by inductor on whether rows of its lse are a multiple of 8 long
        (`sdpa_constraint`, on a GPU alone): 4096 tokens were one graph and 4068 the next. An operator of ours is asked
        nothing.
        """
        self.unguarded = _operator("sink", "aten")


class MaskedSdpa(Route):
    """SDPA with a key mask: any device and dtype; on CUDA the memory-efficient kernel, since flash takes no mask."""

    name, detail = "sdpa", "SDPA with a mask"

    def prepare(self, runs: ValidSpans, device: torch.device) -> Tensor:
        return padding.key_mask(runs, device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return plain_attention(q, k, v, mask)


class Sink(Route):
    """A dense flash kernel, padded keys removed from its softmax exactly (see `kernels`).

    own: whether rows without padding go through the operator too. torch's own kernel is what plain SDPA runs anyway.
    other: for heads that are not of a size in HEADS; None where the operator takes all.
    """

    HEADS = (64, 128)

    def __init__(self, name: str, detail: str, operator: Any, own: bool = True, other: Any = None) -> None:
        self.name, self.detail, self.operator, self.own, self.other = name, detail, operator, own, other

    def prepare(self, runs: ValidSpans, device: torch.device) -> tuple[Tensor, Tensor]:
        mask = padding.key_mask(runs, device)
        return mask.reshape(mask.shape[0], runs.length, 1, 1), padding.pad_counts(runs, device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: tuple[Tensor, Tensor] | None) -> Tensor:
        operator = self.operator
        if self.other is not None and q.shape[-1] not in self.HEADS:
            operator = self.other
        if mask is None:
            if not self.own or operator is self.other:
                return self.plain(q, k, v)
            return operator(q, k, v, None)
        real, pads = mask
        # where, not a product: padding that overflowed to inf must not become NaN.
        return operator(q, torch.where(real, k, 0.0), torch.where(real, v, 0.0), pads)


class Varlen(Route):
    """torch.nn.attention.varlen over [pad | run | pad] of each row."""

    name, detail = "varlen", "torch.nn.attention.varlen"

    def __init__(self) -> None:
        # Not at the top: older torch has no such module. Not in `attend`: that is traced.
        self.kernel = importlib.import_module("torch.nn.attention.varlen").varlen_attn

    def prepare(self, runs: ValidSpans, device: torch.device) -> Tensor:
        return padding.cu_seqlens(runs, device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return self.plain(q, k, v)
        size = q.shape[1]
        flat = [t.reshape(-1, *t.shape[2:]) for t in (q, k, v)]
        return self.kernel(*flat, mask, mask, size, size).reshape(q.shape)


class Segments(Route):
    """A flash package's varlen kernel over [pad | run | pad] of each row, behind our own operator."""

    def __init__(self, name: str, detail: str, operator: Any) -> None:
        self.name, self.detail, self.operator = name, detail, operator

    def prepare(self, runs: ValidSpans, device: torch.device) -> Tensor:
        return padding.cu_seqlens(runs, device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return self.plain(q, k, v)
        flat = [t.reshape(-1, *t.shape[2:]) for t in (q, k, v)]
        return self.operator(*flat, mask, q.shape[1]).reshape(q.shape)


class Flex(Route):
    """flex attention with a BlockMask. Compiled with its block; alone only where its block runs eagerly on a GPU.

    Rows without padding go through it too in compiled blocks of fixed sizes: its kernels are not those of SDPA.
    """

    name, detail = "flex", "flex attention"

    def prepare(self, runs: ValidSpans, device: torch.device) -> Any:
        return padding.span_mask(runs, device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        if mask is None and not self._runs_unpadded(q, k):
            return self.plain(q, k, v)
        run = flex_attention
        if q.is_cuda and not torch.compiler.is_compiling():
            run = _compiled_flex()
        out = run(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), block_mask=mask and mask.block_mask)
        return out.transpose(1, 2)

    def _runs_unpadded(self, q: Tensor, k: Tensor) -> bool:
        """Whether unpadded rows take flex's kernels: where they were measured, and SDPA everywhere else."""
        fixed = self.unguarded is None and torch.compiler.is_compiling()
        return fixed and q.is_cuda and q.shape[1] == k.shape[1] and q.shape[-1] in (64, 128)


@functools.cache
def _compiled_flex() -> Any:
    return torch.compile(flex_attention, dynamic=False)


@functools.cache
def _operator(style: str, name: str) -> Any:
    """Registered operator of a flash kernel, made at first use: one process, one registration."""
    kernel = {
        "flash2": flash_kernels.Flash2,
        "fa3": flash_kernels.Flash3,
        "fa4": flash_kernels.Flash4,
        "aten": flash_kernels.AtenFlash,
    }[name]
    make = flash_kernels.sink_operator if style == "sink" else flash_kernels.segment_operator
    return make(name, kernel)


def sink_route(name: str, kernel: str, detail: str) -> Sink:
    """Sink-style route over one of the kernels flash2, fa3, fa4, aten; torch's own for heads that FA3 and FA4 lack."""
    other = _operator("sink", "aten") if kernel in ("fa3", "fa4") else None
    return Sink(name, detail, _operator("sink", kernel), own=kernel != "aten", other=other)


def segment_route(name: str, kernel: str, detail: str) -> Segments:
    """Segment-style route over one of the kernels flash2, fa3, fa4."""
    return Segments(name, detail, _operator("segments", kernel))


def has_flash(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this torch build and GPU run SDPA's flash kernel for `dtype`."""
    if device.type != "cuda" or dtype not in HALF or torch.version.hip:
        return False
    return torch.backends.cuda.is_flash_attention_available() and torch.cuda.get_device_capability(device) >= (8, 0)


def make_route(name: str, device: torch.device, dtype: torch.dtype) -> Route:
    """The route `name` for a device and dtype; no check, see `route_problem`."""
    if name == "sdpa":
        if has_flash(device, dtype):
            return sink_route("sdpa", "aten", "SDPA's flash kernel, padded keys removed")
        return MaskedSdpa()
    if name == "varlen":
        return Varlen()
    if name == "flex":
        return Flex()
    if name == "flash2":
        return segment_route("flash2", "flash2", "flash-attn 2, variable length")
    return sink_route(name, name, f"FlashAttention {name[2:]}, padded keys removed")


@functools.cache
def package_problem(route: str) -> str | None:
    """Why the package behind a flash route can't be used, in words; None when it loads."""
    needs = {
        "flash2": ("flash_attn.flash_attn_interface", "the package flash-attn"),
        "fa3": ("flash_attn_interface", "FlashAttention 3 (flash_attn_interface)"),
        "fa4": ("flash_attn.cute.interface", "the package flash-attn-4"),
        "varlen": ("torch.nn.attention.varlen", f"torch.nn.attention.varlen (of torch {torch.__version__})"),
    }
    if route not in needs:
        return None
    module, title = needs[route]
    why = load_problem(module)
    return None if why is None else about_package(title, why)


_PACKAGES = {"flash2": "flash_attn", "fa4": "flash_attn.cute"}


def route_remedy(route: str, why: str) -> str:
    """What to install for a route that can't be used because of `why`, in words without a full stop; "" for nothing."""
    if route not in _PACKAGES or not why.endswith("is not installed") and "does not load" not in why:
        return ""
    return install_remedy(_PACKAGES[route], why)


def route_problem(route: str, device: torch.device, dtype: torch.dtype, training: bool = True) -> str | None:
    """Why `route` has no kernel for this device and dtype, in words; None when it has one."""
    if route == "sdpa":
        return None
    if route == "flex":
        if device.type == "cpu":
            return "flex attention has no backward pass on the CPU" if training else None
        return None if device.type == "cuda" else f"flex attention does not run on {device.type}"
    if device.type != "cuda":
        return f"{route} attention needs an NVIDIA GPU, and this run is on {device.type}"
    if dtype not in HALF:
        return f"{route} attention computes in bf16 or fp16, and this run is in {str(dtype).removeprefix('torch.')}"
    major, minor = torch.cuda.get_device_capability(device)
    if route == "fa3" and major != 9:
        return f"FlashAttention 3 is for Hopper GPUs (9.0), and this one is {major}.{minor}"
    if route == "fa4" and major < 9:
        return f"FlashAttention 4 needs a Hopper or Blackwell GPU, and this one is {major}.{minor}"
    if major < 8:
        return f"{route} attention needs an Ampere GPU (8.0) or newer, and this one is {major}.{minor}"
    if route == "varlen" and not torch.backends.cuda.is_flash_attention_available():
        return "this build of torch has no flash attention kernel"
    return package_problem(route)


# As measured on an H100 (docs/benchmarks.md): FA4 first where it was measured, then the dense flash kernel that every
# torch has, before varlen's segments and flex's block lists. sdpa has a kernel everywhere.
AUTO_ORDER = ("fa4", "sdpa", "varlen", "flash2", "flex")


@functools.cache
def _proven(name: str, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `auto` may take the package behind a route: measured on this kind of GPU, and it computes here and now.

    A small forward and backward pass: a package that loads may still not fit this torch or driver. The kernels that it
    builds on the way are those of the run.
    """
    if torch.cuda.get_device_capability(device)[0] != 9:
        return False
    q, k, v = (torch.zeros(1, 128, 1, 128, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    try:
        with torch.enable_grad():
            make_route(name, device, dtype).attend(q, k, v, None).sum().backward()
        torch.cuda.synchronize(device)
    except Exception as error:
        # Anything: a binary package fails in its own way, and there is a route that works.
        log.warning("attention = auto passes over %s, which is installed but fails: %s", name, error)
        return False
    return True


def choose_route(setting: str, device: torch.device, dtype: torch.dtype, training: bool = True) -> Route:
    """The route for the setting `attention`; ValueError that names the route and the reason when it has no kernel."""
    if setting != "auto":
        if setting not in ROUTES:
            raise ValueError(f"unknown attention route {setting!r}; known: auto, {', '.join(ROUTES)}")
        why = route_problem(setting, device, dtype, training)
        if why is not None:
            remedy = ". ".join(filter(None, ["Set attention to auto, or choose another", route_remedy(setting, why)]))
            raise ValueError(f"attention = {setting} cannot be used: {why}. {remedy}.")
        return make_route(setting, device, dtype)
    for name in AUTO_ORDER:
        if route_problem(name, device, dtype, training) is not None:
            continue
        if name != "fa4" or _proven(name, device, dtype):
            return make_route(name, device, dtype)
    return MaskedSdpa()


def pin_sdpa_backends() -> None:
    """Choose SDPA's CUDA kernels on purpose: flash, then memory-efficient, then math; never cuDNN.

    cuDNN's backward crashed (illegal memory access) on an H100 with torch 2.11.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_flash_sdp(True)
    torch.backends.cuda.enable_mem_efficient_sdp(True)
    torch.backends.cuda.enable_math_sdp(True)


def route_report(device: torch.device, dtype: torch.dtype) -> dict[str, str | None]:
    """Every route -> None if usable for this device and dtype, else why not; for doctor and the page."""
    return {name: route_problem(name, device, dtype) for name in ROUTES}
