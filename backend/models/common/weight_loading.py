"""Loads the weights of one part of a base model onto its device, tensor by tensor, from local files only.

The model is made without weights first; then each tensor is read from its mapped file, brought into its number format,
quantised where asked, and put where it belongs. So memory holds the result and one tensor more, never two models.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import diffusers.utils.logging
import torch
import transformers.utils.logging
from torch import Tensor, nn

from backend.base.errors import Refused
from backend.compile.memory_shortage import is_out_of_ram, is_out_of_vram
from backend.families.files import headers
from backend.families.files.parts import Part
from backend.memory.quantized_linear import products_words, quantize_layer, quantized_layers
from backend.models.common import meta_model
from backend.models.common.load_options import LoadOptions
from backend.models.common.tensor_sources import FolderSource, LazyTensor, PartSource

log = logging.getLogger(__name__)

# The run has a progress of its own; theirs would fill its log with control characters.
diffusers.utils.logging.disable_progress_bar()
transformers.utils.logging.disable_progress_bar()


def load_part(cls: Any, source: Path | PartSource, part: Part, loading: LoadOptions, folder: Path | None = None) -> Any:
    """The model of class `cls` that is `part` of `source`: a base model's folder, or where else its tensors come from.

    cls: a model class of diffusers or transformers. folder: read from this folder in place of the part's own (another
    VAE). Weights are frozen, the model is in eval mode; what `loading` keeps on the host lies in its ordinary memory.
    Refused with every problem of the part's files, and for names that the model lacks or the file lacks.
    """
    if isinstance(source, Path):
        source = FolderSource.checked(folder or source / part.folder, part, loading.variant)
    try:
        config = source.config()
        if config.get("quantization_config"):
            raise Refused(
                f"{part.title} in {source.title} is already quantised by another program",
                "Choose the original model; it is quantised while it loads.",
                headers.SETTING,
            )
        model = meta_model.empty_model(cls, config, loading.dtype)
        tensors: Mapping[str, LazyTensor] = _matched(
            model, meta_model.by_model_names(model, source.tensors()), part, source.title
        )
        if loading.merge is not None:
            tensors = loading.merge(part.name, tensors, loading.device)
        quantized = _quantized(model, loading)
        for name, lazy in tensors.items():
            _put(model, name, lazy, loading, name in quantized)
    except Refused:
        raise
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError) as error:
        if is_out_of_vram(error) or is_out_of_ram(error):
            raise
        text = f"{part.title} in {source.title} can't be loaded: {_first_line(error)}"
        raise Refused(text, "Copy it again from where the model came from.", headers.SETTING) from error
    if meta_model.of_transformers(cls):
        model.tie_weights()
    _place_buffers(model, loading, tensors)
    if loading.quantize is not None and loading.compute != "bf16":
        log.info("%s in %s", part.title, products_words(model))
    return model.requires_grad_(False).eval()


def _matched(model: nn.Module, tensors: Mapping[str, LazyTensor], part: Part, title: str) -> dict[str, LazyTensor]:
    """The model's own tensors in its order; Refused for missing and foreign names and for wrong shapes, all at once."""
    tied = meta_model.ties(model)
    # a file may hold either of two tied names
    tensors = {tied[n] if n in tied and tied[n] not in tensors else n: lazy for n, lazy in tensors.items()}
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items() if name not in tied}
    missing = [name for name in wanted if name not in tensors and not meta_model.optional(model, name)]
    foreign = [n for n in tensors if n not in wanted and n not in tied and not meta_model.ignored(model, n)]
    shapes = [
        f"{name} {list(tensors[name].shape)} instead of {list(shape)}"
        for name, shape in wanted.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    wrong = [
        f"{fault} {_some(names)}"
        for fault, names in (("it lacks", missing), ("it holds unknown", foreign), ("of another shape:", shapes))
        if names
    ]
    if wrong:
        text = f"The weights of {part.title} in {title} don't fit its config: {'; '.join(wrong)}"
        remedy = "Take config and weights from the same model; these belong to different ones."
        raise Refused(text, remedy, headers.SETTING)
    return {name: tensors[name] for name in wanted if name in tensors}


def _quantized(model: nn.Module, loading: LoadOptions) -> set[str]:
    """Names of the weights to quantise; what the model's class wants in float32 is none of them."""
    if loading.quantize is None:
        return set()
    names = (f"{path}.weight" for path in quantized_layers(model))
    return {name for name in names if not meta_model.keeps_float32(model, name, loading.dtype)}


def _put(model: nn.Module, name: str, lazy: LazyTensor, loading: LoadOptions, quantized: bool) -> None:
    """Read one tensor and put it into the model, in its format and place."""
    path, _, leaf = name.rpartition(".")
    owner = model.get_submodule(path)
    device = torch.device("cpu") if loading.on_host(path) else loading.device
    if quantized:
        # on the device, which does it fastest, whether the result stays there or not
        weight = lazy.read().to(loading.device)
        quantize_layer(model, path, weight, loading.quantize, loading.compute, loading.products).keep_on(device)
        return
    dtype = torch.float32 if meta_model.keeps_float32(model, name, loading.dtype) else loading.dtype
    value = _converted(lazy, dtype, device)
    if leaf in owner._parameters:
        owner._parameters[leaf] = nn.Parameter(value, requires_grad=False)
    else:
        owner._buffers[leaf] = value


def _converted(lazy: LazyTensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of its own, no view of the file; only floating numbers change their format."""
    value = lazy.read()
    wanted = dtype if value.dtype.is_floating_point else value.dtype
    return value.to(device=device, dtype=wanted, copy=True, memory_format=torch.contiguous_format)


def _place_buffers(model: nn.Module, loading: LoadOptions, loaded: Mapping[str, LazyTensor]) -> None:
    """Bring what the constructor computed to the device."""
    for path, module in model.named_modules():
        for leaf, buffer in module._buffers.items():
            name = f"{path}.{leaf}" if path else leaf
            if buffer is not None and name not in loaded:
                module._buffers[leaf] = buffer.to(loading.device)


def _some(names: Iterable[str]) -> str:
    """The first names and how many more there are."""
    names = list(names)
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
