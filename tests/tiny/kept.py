"""Bytes that autograd really keeps for a backward pass, counted at full size on torch's meta device.

On the meta device tensors have shapes and no contents, so that 12 GB are counted in a second on any machine. A mode
casts as CUDA's autocast does, which the meta device does not have.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from backend.config.layer_patterns import Kind
from backend.families.files.base_model import BaseModelFiles
from backend.families.spec import FamilyFacts
from backend.families.table import family
from backend.lora import dora
from backend.lora.inject import find_targets, inject
from backend.memory.checkpointing import Recompute
from backend.models.common.conditioning import CONTROLS
from backend.models.family_classes import load_family
from backend.shapes.attention_routes import Route
from backend.shapes.shape_runtime import ShapeRuntime

FLUX = family("flux")


class CudaAutocast(TorchFunctionMode):
    """What autocast does on CUDA in bf16: matrix products in bf16, norms in float32; trained weights cast once."""

    LOW = (F.linear, torch.matmul, torch.bmm)
    HIGH = (F.layer_norm, F.rms_norm)

    def __init__(self) -> None:
        super().__init__()
        self.cast_once: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        dtype = torch.bfloat16 if func in self.LOW else torch.float32 if func in self.HIGH else None
        if dtype is not None:
            args = tuple(self._cast(value, dtype) for value in args)
            kwargs = {name: self._cast(value, dtype) for name, value in kwargs.items()}
        return func(*args, **kwargs)

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dtype == dtype:
            return value
        if isinstance(value, nn.Parameter) and value.requires_grad:
            return self.cast_once.setdefault(id(value), value.to(dtype))
        return value.to(dtype)


class Flash(Route):
    """Flash attention, which keeps queries, keys, values and its result; on the meta device it only has shapes."""

    name, detail = "sdpa", "flash"

    def prepare(self, runs: Any, device: torch.device) -> None:
        return None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        parts = (x.transpose(1, 2) for x in (q, k, v))
        return torch.ops.aten._scaled_dot_product_flash_attention(*parts)[0].transpose(1, 2)


class KeptTensors(saved_tensors_hooks):
    """Counts what autograd keeps of a forward under it, weights and buffers of `model` left out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(self._keep, lambda tensor: tensor)
        self._own = {each.untyped_storage()._cdata for each in (*model.parameters(), *model.buffers())}
        # the tensors are held, so that no storage is counted under another's name
        self._kept: dict[int, Tensor] = {}

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    @property
    def bytes(self) -> int:
        """Of all storages that are kept, each once."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self._kept.values())

    def _keep(self, tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage()._cdata
        if place not in self._own:
            self._kept.setdefault(place, tensor)
        return tensor


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    """The model that `make` makes, in bf16 on the meta device."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            return make()
    finally:
        torch.set_default_dtype(before)


def empty_denoiser(facts: FamilyFacts, **changes: Any) -> nn.Module:
    """The denoiser of a family at full size but for `changes`, in train mode; what stays float32 is float32."""
    config = BaseModelFiles(None).config(facts.denoiser) | changes
    model = on_meta(lambda: load_family(facts.name).model.from_config(config).train())
    kept = set(model._keep_in_fp32_modules or ())
    for name, parameter in model.named_parameters():
        if kept & set(name.split(".")):
            parameter.data = parameter.data.float()
    if facts.name.startswith("wan"):
        for name, buffer in model.rope.named_buffers():
            model.rope.register_buffer(name, buffer.float(), persistent=False)
    if facts.name.startswith("qwen"):
        # real tables: only their places are looked up
        for name in ("pos_freqs", "neg_freqs"):
            setattr(model.pos_embed, name, torch.zeros(4096, 64, dtype=torch.complex64))
    return model


def empty_flux(double: int, single: int) -> nn.Module:
    """FLUX.1-dev's transformer at full width with fewer blocks, in bf16 on the meta device."""
    from diffusers import FluxTransformer2DModel

    return on_meta(
        lambda: FluxTransformer2DModel(
            in_channels=64, num_layers=double, num_single_layers=single, guidance_embeds=True
        )
    )


def kept_bytes(
    double: int,
    single: int,
    *,
    side: int,
    text: int,
    batch: int,
    rank: int,
    targets: Sequence[str],
    control: bool,
    kind: Kind = "lora",
) -> int:
    """Bytes kept by a forward of this FLUX in bf16 with a LoRA in `targets`, on pictures of `side` tokens a side.

    control: a picture of the same size stands behind each row, as Kontext has it.
    """
    model = empty_flux(double, single)
    inject(model, find_targets(model, targets), rank=rank, alpha=rank, dropout=0.0, seed=0, cast=False, kind=kind)
    model.train()
    latents = [torch.empty(16, 2 * side, 2 * side, device="meta") for _ in range(batch)]
    words = {
        "prompt_embeds": torch.empty(text, 4096, device="meta", dtype=torch.bfloat16),
        "pooled": torch.empty(768, device="meta", dtype=torch.bfloat16),
    }
    if control:
        words[CONTROLS[0]] = latents[0]
    shapes = ShapeRuntime("off", None, None, text, Flash())
    with _meta_lengths(), CudaAutocast(), KeptTensors(model) as kept:
        load_family(FLUX.name).predict(model, latents, torch.empty(batch, device="meta"), [words] * batch, 1.0, shapes)
    return kept.bytes


def _meta_lengths() -> Any:
    """A DoRA's lengths keep nothing either way; they turn autocast off, which the meta device has not."""
    return patch.object(dora, "changed_lengths", lambda layer, _: dora.row_lengths(layer.get_base_layer()))


class UnetAutocast(CudaAutocast):
    """Convolutions too, and attention by the flash kernel, whose shapes the meta device knows."""

    LOW = (*CudaAutocast.LOW, F.conv2d)
    HIGH = (*CudaAutocast.HIGH, F.group_norm)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is F.scaled_dot_product_attention:
            inputs = args if len(args) >= 3 else tuple((kwargs or {})[name] for name in ("query", "key", "value"))
            low = (self._cast(value, torch.bfloat16) for value in inputs[:3])
            return torch.ops.aten._scaled_dot_product_flash_attention(*low)[0]
        return super().__torch_function__(func, types, args, kwargs)


def empty_unet(config: dict[str, Any]) -> nn.Module:
    """diffusers' UNet of this config in bf16 on the meta device."""
    from diffusers import UNet2DConditionModel

    return on_meta(lambda: UNet2DConditionModel(in_channels=4, out_channels=4, layers_per_block=2, **config))


def unet_kept_bytes(
    model: nn.Module, *, side: int, batch: int, rank: int, targets: Sequence[str], kind: Kind = "lora"
) -> int:
    """Bytes kept by a forward of this UNet on latents of `side`, under mixed precision, with a LoRA in `targets`."""
    inject(model, find_targets(model, targets), rank=rank, alpha=rank, dropout=0.0, seed=0, cast=False, kind=kind)
    x = torch.empty(batch, 4, side, side, device="meta", dtype=torch.bfloat16, requires_grad=True)
    words = torch.empty(batch, 77, model.config.cross_attention_dim, device="meta", dtype=torch.bfloat16)
    added = {
        "text_embeds": torch.empty(batch, 1280, device="meta", dtype=torch.bfloat16),
        "time_ids": torch.empty(batch, 6, device="meta"),
    }
    with _meta_lengths(), UnetAutocast(), KeptTensors(model.train()) as kept:
        model(x, torch.empty(batch, device="meta"), encoder_hidden_states=words, added_cond_kwargs=added)
    return kept.bytes


class Live(TorchDispatchMode):
    """Counts the bytes of all tensors made under it that are alive. now, peak: bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tree_map_only(Tensor, self._hold, result)
        return result

    def leave_out(self, tensors: Iterable[Tensor]) -> None:
        """Count none of these, such as a model's weights."""
        self._seen.update(tensor.untyped_storage()._cdata for tensor in tensors)

    def _hold(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        place, size = storage._cdata, storage.nbytes()
        if place in self._seen:
            return
        self._seen.add(place)
        self.now += size
        self.peak = max(self.peak, self.now)

        def gone() -> None:
            self._seen.discard(place)
            self.now -= size

        weakref.finalize(storage, gone)


class _Again(Recompute):
    """Checkpointing whose second forward is cast as its first: a mode is not there while autograd computes."""

    def __call__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        calls = itertools.count()

        def cast(*arguments: Any, **more: Any) -> Any:
            with UnetAutocast() if next(calls) else contextlib.nullcontext():
                return function(*arguments, **more)

        return checkpoint(cast, *arguments, use_reentrant=False, preserve_rng_state=False, **named)


def unet_peak_bytes(model: nn.Module, *, side: int, rank: int, targets: Sequence[str]) -> int:
    """The most that a checkpointed forward and backward of this UNet hold beside weights, gradients included."""
    inject(model, find_targets(model, targets), rank=rank, alpha=rank, dropout=0.0, seed=0, cast=False)
    model.train().enable_gradient_checkpointing(_Again())
    live, cast = Live(), UnetAutocast()
    live.leave_out(model.parameters())
    x = torch.empty(1, 4, side, side, device="meta", dtype=torch.bfloat16)
    words = torch.empty(1, 77, model.config.cross_attention_dim, device="meta", dtype=torch.bfloat16)
    added = {
        "text_embeds": torch.empty(1, 1280, device="meta", dtype=torch.bfloat16),
        "time_ids": torch.empty(1, 6, device="meta"),
    }
    with live:
        with cast:
            made = model(x, torch.empty(1, device="meta"), encoder_hidden_states=words, added_cond_kwargs=added)[0]
            loss = made.float().pow(2).mean()
        # as autocast lets go of its copies of trained weights when it ends
        cast.cast_once.clear()
        torch.autograd.backward((loss,))
    return live.peak
