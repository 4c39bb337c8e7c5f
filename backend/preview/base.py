"""Gathers what a preview draws with besides weights: settings, base model, family, formats, shapes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from backend.base.errors import Refused
from backend.base.problems import errors
from backend.config.experts import sides_of
from backend.config.schema import Config
from backend.dataset.references import References
from backend.families.files.base_model import BaseModelFiles
from backend.families.spec import FamilyFacts, Geometry, Side, VideoRule
from backend.families.table import family as load_facts
from backend.lora.comfyui_keys import LayerNames, linear_layers, names_of
from backend.memory import quantization_support
from backend.memory.block_swap import swapped_paths
from backend.memory.devices import DTYPES, mixed_precision, pick_device, weight_dtype
from backend.models.common.base_weights import BaseWeights
from backend.models.common.load_options import LoadOptions
from backend.models.common.text_layers import text_layers, text_words
from backend.models.family import Family
from backend.models.family_classes import load_family
from backend.objectives.base import Objective
from backend.objectives.choose import objective_of
from backend.plan import base_model_check
from backend.plan.memory.swap import too_many
from backend.plan.memory.weight_bytes import stored_as
from backend.plan.texts import TextPlan, text_length_of, token_counter
from backend.shapes import attention_routes
from backend.shapes.shape_runtime import ShapeRuntime
from backend.training.sampling import video_rule

_LARGEST_PX = 4096
"""Side of the largest picture that shares its graphs with all others; a larger one has graphs of its own."""
_MOST_CLIP_TOKENS = 2**18
"""The same of clips: 1280 x 720 px and 281 frames, where a token has 16 px and 4 frames."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewBase:
    """A checked base model and how it is loaded; no weights yet."""

    cfg: Config
    facts: FamilyFacts
    code: Family
    files: BaseModelFiles
    device: torch.device
    dtype: torch.dtype
    """Of the frozen weights."""
    precision: str
    """Of autocast: no, fp16 or bf16."""
    geometry: Geometry
    references: References
    """How control images come to their sizes."""
    video: VideoRule | None
    """How clips are made, of a family that makes them."""
    text: TextPlan
    names: LayerNames
    """Of the layers of denoiser and text encoders in LoRA files."""
    objective: Objective
    merged: BaseWeights | None
    """LoRAs that are merged into the base while it loads."""
    swapped: tuple[str, ...]
    """Module paths of the blocks whose weights stay in RAM."""

    @classmethod
    def of(cls, cfg: Config) -> PreviewBase:
        """The base model of `cfg`, of which [model], [memory] and [compile] count. Refused with all its problems."""
        if cfg.model.base_model is None:
            raise Refused("no base model is given", "Give its folder or file with --base.", "model.base_model")
        problems = errors(base_model_check.problems(cfg))
        if problems:
            raise Refused.of(problems)
        facts, files, device = load_facts(cfg.model.family), BaseModelFiles.of(cfg.model), pick_device()
        lacking = quantization_support.problems(cfg.memory, device)
        if lacking:
            raise Refused.of(lacking)
        code = load_family(facts.name)
        empty = code.empty_denoiser(files)
        plain = names_of(linear_layers(empty), facts)
        merged = BaseWeights.of(cfg.network, files, facts, plain)
        if merged is not None:
            merged.check()
        geometry = facts.geometry(files)
        return cls(
            cfg=cfg,
            facts=facts,
            code=code,
            files=files,
            device=device,
            dtype=weight_dtype(cfg.model.weight_dtype, device),
            precision=mixed_precision(cfg.training.mixed_precision, device),
            geometry=geometry,
            references=References.of(cfg, facts, geometry),
            video=video_rule(cfg, facts),
            text=_text_plan(cfg, facts, files),
            names=plain.joined(text_layers(files, facts)),
            objective=objective_of(cfg, facts, code, files),
            merged=merged,
            swapped=_swapped(cfg.memory.blocks_to_swap, code, empty),
        )

    @property
    def mode(self) -> str:
        """The shape mode: as set, or with auto one graph for all sizes where the family can have that."""
        if self.cfg.compile.shape_mode != "auto":
            return self.cfg.compile.shape_mode
        return "dynamic" if "dynamic" not in self.facts.lacks_modes else "off"

    @property
    def computes_in(self) -> torch.dtype:
        """The number format of attention: autocast's, else that of the weights."""
        return DTYPES.get(self.precision, self.dtype)

    def autocast(self) -> AbstractContextManager[Any]:
        """The arithmetic of the run, as training has it."""
        if self.precision == "no":
            return nullcontext()
        return torch.autocast(self.device.type, DTYPES[self.precision])

    def shapes(self) -> ShapeRuntime:
        """The shapes of the preview. Refused where the attention that is set has no kernel here."""
        compiling = self.cfg.compile
        try:
            route = attention_routes.choose_route(compiling.attention, self.device, self.computes_in)
            shapes = ShapeRuntime(
                self.mode,
                compiling.static_token_count,
                self.text.buckets,
                self.text.tokens,
                route,
                longest=self._longest,
            )
        except ValueError as error:
            raise Refused.from_error(error, "compile.attention") from error
        if compiling.compile:
            shapes.expect_graphs(compiling.compile_dynamic, self.device, self.computes_in)
        return shapes

    @property
    def _longest(self) -> int:
        """Text and image tokens of the largest picture or clip that one graph of open sizes is for."""
        side = _LARGEST_PX // self.geometry.pixels_per_token
        return self.text.tokens + max(side * side, _MOST_CLIP_TOKENS if self.video is not None else 0)

    def is_text(self, path: str) -> bool:
        """Whether a LoRA's layer is one of a text encoder."""
        return path.partition(".")[0] in text_words(self.facts)

    def is_swapped(self, path: str) -> bool:
        """Whether the weights of a module of the denoiser stay in RAM."""
        return any(path == block or path.startswith(f"{block}.") for block in self.swapped)

    @property
    def _loading(self) -> LoadOptions:
        return LoadOptions(self.dtype, self.device, self.cfg.model.variant)

    def load_denoiser(self) -> nn.Module:
        """The denoiser, quantised as the memory settings say; of two experts the one that draws first."""
        sides = sides_of(self.cfg)
        return self.load_expert(sides[0] if sides else None)

    def load_expert(self, side: Side | None, host: torch.device | None = None) -> nn.Module:
        """An expert, or the only denoiser. host: where all of it stays, in place of the device."""
        memory = self.cfg.memory
        loading = replace(
            self._loading,
            quantize=stored_as(memory.base_quantization, memory.base_compute),
            compute=memory.base_compute,
            host=(lambda path: True) if host is not None else self.is_swapped if self.swapped else None,
            merge=self.merged and self.merged.merged,
        )
        # under the name of the first, by which LoRA files are merged into it
        part = replace(self.facts.expert_part(self.files, side), name=self.facts.denoiser.name)
        return self.code.load_denoiser(self.files, loading, part)

    def load_text(self) -> Any:
        """The text encoders, on the device."""
        kind = stored_as(self.cfg.memory.text_encoder_quantization)
        loading = replace(self._loading, quantize=kind, merge=self.merged and self.merged.merged)
        return self.code.load_text(self.files, loading)

    def load_vae(self) -> Any:
        """The VAE, on the CPU."""
        return self.code.load_vae(self.files, replace(self._loading, device=torch.device("cpu")))


def _text_plan(cfg: Config, facts: FamilyFacts, files: BaseModelFiles) -> TextPlan:
    """Text lengths as the plan of a run has them."""
    text = TextPlan(
        text_length_of(cfg, facts),
        fixed=facts.fixed_text_length,
        before=facts.text_before,
        picture=facts.picture_tokens(files),
    )
    trimmed = None if facts.fixed_text_length else cfg.compile.caption_buckets
    counter = token_counter(files, facts) if trimmed else None
    return text if counter is None else replace(text, buckets=tuple(trimmed or ()), count=counter)


def _swapped(count: int, code: Family, empty: nn.Module) -> tuple[str, ...]:
    """Module paths of the blocks to swap; Refused when there are not so many."""
    if not count:
        return ()
    lists = code.running_order(empty)
    problem = too_many(count, sum(map(len, lists.values())))
    if problem is not None:
        raise Refused.of([problem])
    return swapped_paths(empty, lists, count)
