"""Makes a model without its weights (on torch's meta device), and reads its class's rules of names and formats."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import nn

from backend.models.common.tensor_sources import LazyTensor


def of_transformers(cls: Any) -> bool:
    """Whether `cls` is a model class of transformers, else of diffusers."""
    return cls.__module__.startswith("transformers.")


def empty_model(cls: Any, config: Mapping[str, Any], dtype: torch.dtype) -> nn.Module:
    """The model of class `cls` with its parameters on torch's meta device and its buffers real, on the CPU.

    Buffers are real since those that no file holds (position ids, rotary frequencies) are computed by the constructor,
    in `dtype` where it names no other, as ``from_pretrained`` of both libraries has it. TypeError or ValueError for a
    config that does not fit.
    """
    with _default_dtype(dtype), init_empty_weights(include_buffers=False):
        if of_transformers(cls):
            model = cls(cls.config_class.from_dict(dict(config)))
        else:
            model = cls.from_config(dict(config))
    if of_transformers(cls):
        model.tie_weights()  # the constructor's ties were cut when its parameters went to meta
    return model


def by_model_names(model: nn.Module, tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """`tensors` under the names that the model has now: both libraries renamed layers over the years."""
    if not of_transformers(type(model)):
        return dict(model._fix_state_dict_keys_on_load(dict(tensors)))
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    renamings = [rule for rule in get_model_conversion_mapping(model) if isinstance(rule, WeightRenaming)]
    names = model.state_dict()
    return {
        rename_source_key(name, renamings, [], model.base_model_prefix, names)[0]: tensor
        for name, tensor in tensors.items()
    }


def ties(model: nn.Module) -> dict[str, str]:
    """Parameter name -> the name of the one that it shares its weights with (T5's two embeddings)."""
    return model.get_expanded_tied_weights_keys(all_submodels=True) if of_transformers(type(model)) else {}


def keeps_float32(model: nn.Module, name: str, dtype: torch.dtype) -> bool:
    """Whether the tensor `name` stays float32 in a model of `dtype`, by the rules of its own class.

    diffusers: always, for modules that ``_keep_in_fp32_modules`` names. transformers: those in fp16 only, and
    ``_keep_in_fp32_modules_strict`` always.
    """
    if dtype == torch.float32:
        return False
    kept = set(getattr(model, "_keep_in_fp32_modules", None) or ())
    if of_transformers(type(model)):
        kept = kept if dtype == torch.float16 else set()
        kept |= set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
        return any(re.search(rf"(^|\.){re.escape(module)}($|\.)", name) for module in kept)
    return not kept.isdisjoint(name.split("."))


def ignored(model: nn.Module, name: str) -> bool:
    """Whether a file may hold `name` although the model has no such weight: its class says so."""
    patterns = set(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ())
    patterns |= {r"(^|\.)position_ids$", r"rotary_emb\.inv_freq$"}
    return any(re.search(pattern, name) for pattern in patterns)


def optional(model: nn.Module, name: str) -> bool:
    """Whether a file may lack `name`, by what the model's class says."""
    return any(re.search(p, name) for p in getattr(model, "_keys_to_ignore_on_load_missing", None) or ())


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
