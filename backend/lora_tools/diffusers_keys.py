"""Tells which keys of a LoRA file diffusers takes: its own converter runs, and each tensor is followed."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import diffusers
import torch
from diffusers.utils import (
    convert_state_dict_to_diffusers,
    convert_state_dict_to_peft,
    convert_unet_state_dict_to_peft,
)
from torch import Tensor, nn

from backend.families.spec import FamilyFacts
from backend.lora.comfyui_keys import LayerNames, split_key
from backend.lora_tools.verdict import Verdict

_TEXTS = {"text_encoder": ("te", "te1"), "text_encoder_2": ("te2",)}
"""Prefix in diffusers' files -> what the encoder's layers are called in `LayerNames`."""


class Followed(Tensor):
    """A tensor that knows from which keys its numbers come. `read`: keys of which a number was asked for."""

    keys: frozenset[str] = frozenset()
    read: set[str] = set()

    @classmethod
    def of(cls, tensor: Tensor, key: str) -> Followed:
        """`tensor`, as the one that the file has under `key`."""
        followed = tensor.as_subclass(cls)
        followed.keys = frozenset([key])
        return followed

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Do what was asked for, and give the result the keys of all that went into it."""
        result = super().__torch_function__(func, types, args, kwargs or {})
        keys = frozenset().union(*(each.keys for each in _inside((args, kwargs))))
        for each in _inside(result):
            each.keys = keys
        if isinstance(result, int | float) and not isinstance(result, bool):
            cls.read |= keys
        return result


def diffusers_verdict(
    tensors: Mapping[str, Tensor], facts: FamilyFacts, denoiser: nn.Module, names: LayerNames
) -> Verdict:
    """What the family's pipeline makes of the file's tensors. denoiser: without weights."""
    pipeline = getattr(diffusers, facts.pipeline_class, None)
    total = len(tensors)
    if pipeline is None or not hasattr(pipeline, "lora_state_dict"):
        error = f"its pipeline of {facts.title} has no LoRA loader."
        return Verdict(program="diffusers", total=total, error=error)
    Followed.read = set()
    try:
        with _quiet():
            state, kept = _converted(pipeline, tensors, denoiser)
    except KeyError as error:
        text = (
            f"its converter looks for {error.args[0] if error.args else 'a key'}: it takes a file of these names only "
            "with all layers of each block."
        )
        note = "It takes any layers under its own names: launcher.py lora merge --lora FILE --layout diffusers."
        return Verdict(program="diffusers", total=total, error=text, note=note)
    except Exception as error:  # whatever the converter raises, it is what a person would see
        text = " ".join(str(error).split()) or type(error).__name__
        return Verdict(program="diffusers", total=total, error=f"its converter says: {text[:300]}")
    named = [key for key in state if "lora" in key]
    if not named or (len(named) < len(state) and not facts.pipeline_class.startswith("Flux")):
        # a converter may take nothing at all
        wrong = next((key for key in state if "lora" not in key), next(iter(tensors)))
        return Verdict(program="diffusers", total=total, error=f"it takes no file with {wrong}.")
    layers = dict(_layers(state, facts, names))
    taken = set().union(*(value.keys for value in layers.values()))
    stems = {split[0] for key in taken if (split := split_key(key)) is not None}
    alphas = {key for key in Followed.read | kept if (split_key(key) or ("", ""))[1] == "alpha"}
    taken |= {key for key in alphas if split_key(key)[0] in stems}
    ignored = [key for key in tensors if key not in taken]
    if len(ignored) == total:
        error = f"its {facts.pipeline_class} has no layers of these names, such as {next(iter(tensors))}."
        return Verdict(program="diffusers", total=total, error=error)
    lengths = any(key.endswith(".dora_scale") for key in ignored)
    note = "Without its lengths (dora_scale) a DoRA draws other pictures." if lengths else ""
    return Verdict(program="diffusers", total=total, ignored=ignored, note=note)


def _converted(
    pipeline: Any, tensors: Mapping[str, Tensor], denoiser: nn.Module
) -> tuple[dict[str, Followed], set[str]]:
    """The tensors under diffusers' names, and the keys of alphas that it keeps beside them."""
    followed = {key: Followed.of(value.clone(), key) for key, value in tensors.items()}
    extra: dict[str, Any] = {}
    if "return_alphas" in inspect.signature(pipeline.lora_state_dict).parameters:
        extra["return_alphas"] = True
    if pipeline.__name__.startswith("StableDiffusionXL"):
        extra["unet_config"] = denoiser.config
    result = pipeline.lora_state_dict(followed, **extra)
    state, alphas = result if isinstance(result, tuple) else (result, None)
    return state, {key for value in (alphas or {}).values() for key in getattr(value, "keys", ())}


def _layers(state: Mapping[str, Followed], facts: FamilyFacts, names: LayerNames) -> Iterator[tuple[str, Followed]]:
    """The converted tensors that a layer of the pipeline takes, by their names in peft."""
    for prefix, words in {facts.lora_prefix: (), **_TEXTS}.items():
        own = {key.removeprefix(f"{prefix}."): value for key, value in state.items() if key.startswith(f"{prefix}.")}
        if not own:
            continue
        if words:
            own = convert_state_dict_to_peft(convert_state_dict_to_diffusers(own))
        elif "lora_A" not in next(iter(own)):
            own = convert_unet_state_dict_to_peft(own)
        known = [f"{word}." for word in words] or [""]
        for key, value in own.items():
            split = split_key(key)
            if split is not None and any(start + split[0] in names.layers for start in known):
                yield f"{prefix}.{key}", value


def _inside(value: Any) -> Iterator[Followed]:
    """The followed tensors in arguments or results."""
    if isinstance(value, Followed):
        yield value
    elif isinstance(value, Mapping):
        yield from _inside(tuple(value.values()))
    elif isinstance(value, Iterable) and not isinstance(value, str | Tensor):
        for each in value:
            yield from _inside(each)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of the converter, which the verdict tells."""
    logger = logging.getLogger("diffusers")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with torch.no_grad():
            yield
    finally:
        logger.setLevel(before)
