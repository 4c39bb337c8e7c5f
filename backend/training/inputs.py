"""What a run works on, gathered and checked before anything large loads: base model, pictures, plan, encoded data."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from backend.base.errors import Refused
from backend.base.paths import resolve
from backend.base.problems import Problem, errors
from backend.config.layer_patterns import Size, included, sizes
from backend.config.schema import Config
from backend.dataset.buckets import Fit
from backend.dataset.controls import sample_items
from backend.dataset.items import DatasetScan, Item, count_of
from backend.dataset.scan import cache_folder, scan_dataset
from backend.families.files.base_model import BaseModelFiles
from backend.families.spec import FamilyFacts, Geometry
from backend.families.table import family as load_family
from backend.latents.cache import LatentCache, TextCache, Words, wanted_latents, wanted_text
from backend.latents.identity import text_identity, vae_identity
from backend.lora.comfyui_keys import LayerNames, linear_layers, names_of
from backend.lora.inject import find_targets, is_large
from backend.lora.load import check_continue
from backend.memory import quantization_support
from backend.memory.block_swap import swapped_paths
from backend.memory.devices import mixed_precision, pick_device, weight_dtype
from backend.models.common.base_weights import BaseWeights
from backend.models.common.load_options import LoadOptions
from backend.models.family import Family
from backend.models.family_classes import load_family as family_code
from backend.objectives.base import Objective
from backend.objectives.choose import objective_of
from backend.optimizers.build import make_optimizer, make_scheduler
from backend.plan import base_model_check as family_check
from backend.plan.make_plan import make_plan
from backend.plan.memory.swap import too_many
from backend.plan.memory.weight_bytes import stored_as
from backend.plan.memory.work import trains_text, work_of
from backend.plan.mode_plan import fitting_size
from backend.plan.plan import Plan
from backend.plan.texts import CHUNK, CountTokens, token_counter
from backend.runs.events import EventWriter
from backend.runs.progress import PhaseProgress
from backend.shapes import attention_routes
from backend.training import oom
from backend.training.encoding import encode, watched
from backend.training.expected_memory import Expected, limit
from backend.training.requests import Asks

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Inputs:
    """Everything but the denoiser. dtype: of the frozen weights. targets: module paths.

    family, code: the family's facts, and its code. swapped: module paths of the blocks whose weights stay in the
    machine's memory. base_weights: LoRAs that are merged into the base while it loads.
    """

    cfg: Config
    family: FamilyFacts
    code: Family
    base: BaseModelFiles
    device: torch.device
    dtype: torch.dtype
    precision: str
    geometry: Geometry
    scan: DatasetScan
    plan: Plan
    targets: tuple[str, ...]
    sizes: dict[str, Size]
    names: LayerNames
    latents: LatentCache
    texts: TextCache
    objective: Objective
    expected: Expected | None = None
    swapped: tuple[str, ...] = ()
    base_weights: BaseWeights | None = None

    def load_vae(self) -> Any:
        """The VAE that the settings name, on the CPU."""
        return self.code.load_vae(self.base, replace(self.loading, device=torch.device("cpu")))

    @property
    def tiled_encode(self) -> bool:
        """Whether pictures are encoded in tiles."""
        given = self.expected.estimate.given if self.expected is not None else None
        return given.tiled_encode if given is not None else self.cfg.memory.vae_tiling == "on"

    @property
    def loading(self) -> LoadOptions:
        """How a part of the base model is loaded that is neither quantised nor swapped."""
        return LoadOptions(self.dtype, self.device, self.cfg.model.variant)

    @property
    def denoiser_loading(self) -> LoadOptions:
        """How the denoiser is loaded."""
        memory = self.cfg.memory
        kind = stored_as(memory.base_quantization, memory.base_compute)
        host = self._is_swapped if self.swapped else None
        merge = self.base_weights and self.base_weights.merged
        return replace(self.loading, quantize=kind, compute=memory.base_compute, host=host, merge=merge)

    def _is_swapped(self, path: str) -> bool:
        return any(path == block or path.startswith(f"{block}.") for block in self.swapped)

    def running_order(self, denoiser: nn.Module) -> dict[str, nn.ModuleList]:
        """The denoiser's blocks in the order in which they run, which is not by class in every family."""
        return self.code.running_order(denoiser)

    @property
    def text_loading(self) -> LoadOptions:
        """How the text encoders are loaded."""
        kind = stored_as(self.cfg.memory.text_encoder_quantization)
        return replace(self.loading, quantize=kind, merge=self.base_weights and self.base_weights.merged)

    @property
    def trains_text(self) -> bool:
        """Whether the text encoders are trained: captions are then encoded in the loop and not cached."""
        return trains_text(self.cfg, self.family)

    @property
    def wanted_text(self) -> list[Words]:
        """Every caption with its length that has to be in the cache, and the picture that it is read with."""
        return [] if self.trains_text else wanted_text(self.cfg, self.plan)

    def pictures(self) -> list[tuple[Item, Fit]]:
        """Every picture that the run needs encoded, with its cut."""
        samples = []
        for number, prompt in enumerate(self.cfg.sampling.prompts):
            size = fitting_size(prompt.width, prompt.height, self.geometry)
            samples += self.plan.references.cuts(sample_items(prompt, number), size)
        return wanted_latents(self.plan) + samples

    @property
    def data_digest(self) -> str:
        """Digest of the training pictures, captions and repeats, in their order."""
        lines = (
            f"{item.key} {item.repeats} {item.caption!r}" + "".join(f" {control.key}" for control in item.controls)
            for item in self.plan.items
        )
        return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


def gather(cfg: Config, events: EventWriter, asks: Asks) -> Inputs:
    """Check the base model, scan and plan, see that the model fits, and fill the caches; encoders are freed again.

    Refused with every problem of a stage at once. StopAsked when a stop is asked for in the middle.
    """
    family = load_family(cfg.model.family)
    base = BaseModelFiles.of(cfg.model)
    tell_problems(family_check.problems(cfg), events)
    scan = _scan(cfg, events, asks)
    geometry = family.geometry(base)
    counter = token_counter(base, family)
    counts = (counter if cfg.compile.caption_buckets else None, family.picture_tokens(base))
    plan = make_plan(cfg, scan, geometry, family.narrowed(base), *counts)
    tell_problems([*plan.problems, *_cut_captions(plan, scan, counter, family)], events)
    for line in plan.lines():
        log.info(line)
    events.write("plan", **plan.to_dict())
    events.write("step_total", total=plan.steps.steps)

    device = pick_device()
    _limit(cfg, device, events)
    dtype = weight_dtype(cfg.model.weight_dtype, device)
    latents = _latent_cache(cfg, dtype, tiled=cfg.memory.vae_tiling == "on")
    code = family_code(family.name)
    empty = code.empty_denoiser(base)
    names = names_of(linear_layers(empty), family)
    base_weights = BaseWeights.of(cfg.network, base, family, names)
    tell_problems(base_weights.check() if base_weights else [], events)
    texts = TextCache(cache_folder(cfg), text_identity(cfg), dtype, cfg.dataset.transparency)
    given = _check_settings(cfg, family, empty, names, plan, device, dtype)
    tell_problems(quantization_support.fp8_compile_warnings(cfg, device), events)
    inputs = Inputs(
        cfg,
        family,
        code,
        base,
        device,
        dtype,
        mixed_precision(cfg.training.mixed_precision, device),
        geometry,
        scan,
        plan,
        tuple(given),
        given,
        names,
        latents,
        texts,
        objective_of(cfg, family, code, base),
        base_weights=base_weights,
    )
    inputs = replace(inputs, swapped=_swapped(inputs, empty))
    inputs = replace(inputs, expected=_expect(inputs, events))
    if inputs.tiled_encode:
        inputs = replace(inputs, latents=_latent_cache(cfg, dtype, tiled=True))
    with oom.explained(events, inputs.expected):
        encode(inputs, events, asks)
    return inputs


def _limit(cfg: Config, device: torch.device, events: EventWriter) -> None:
    without_effect = limit(cfg.memory.vram_limit_gb, device)
    if without_effect:
        events.write("warning", text=without_effect, remedy="Take memory.vram_limit_gb out.")
        log.warning(without_effect)


def _scan(cfg: Config, events: EventWriter, asks: Asks) -> DatasetScan:
    with PhaseProgress(events, "scan") as progress:
        scan = scan_dataset(cfg, watched(progress, asks))
    for name, found in (("training", scan.train), *scan.validation.items()):
        for line in found.summary():
            log.info("%s: %s", name, line)
    tell_problems(scan.problems, events)
    return scan


def _cut_captions(plan: Plan, scan: DatasetScan, counter: CountTokens | None, facts: FamilyFacts) -> list[Problem]:
    """A warning when the text encoder will not see the end of some captions."""
    if counter is None:
        return []
    long = [caption for caption in scan.captions() if counter(caption) > plan.text_length]
    if not long:
        return []
    text = f"{count_of(len(long), 'caption')} longer than {plan.text_length} tokens, cut there: {long[0][:60]!r} ..."
    if "max_token_length" in facts.options and plan.text_length < facts.text_length + 2 * CHUNK:
        remedy = "Shorten them, or raise max_token_length to 150 or 225."
        return [Problem("dataset.max_token_length", None, text, remedy, "warning")]
    if plan.text.fixed:
        return [Problem("dataset.folders", None, text, "Shorten them: this model reads no more.", "warning")]
    return [Problem("model.text_length", None, text, "Shorten them, or raise text_length.", "warning")]


def tell_problems(problems: list[Problem], events: EventWriter) -> None:
    """Tell warnings as events; Refused with all errors."""
    for problem in problems:
        if problem.severity == "warning":
            events.write("warning", text=problem.text, remedy=problem.remedy)
            log.warning(problem.sentence())
    if errors(problems):
        raise Refused.of(errors(problems))


def _check_settings(
    cfg: Config,
    family: FamilyFacts,
    empty: nn.Module,
    names: LayerNames,
    plan: Plan,
    device: torch.device,
    dtype: torch.dtype,
) -> dict[str, Size]:
    """Targets, the LoRA to continue from, optimizer, schedule and attention route are tried before the long work.

    Returns the targets with their sizes.
    """
    targets = find_targets(empty, included(cfg.network, family), cfg.network.targets_exclude)
    given = sizes(targets, cfg.network, {path for path in targets if is_large(empty.get_submodule(path))})
    if cfg.network.network_weights:
        network = cfg.network
        path = resolve(network.network_weights)
        check_continue(path, names, given, network.network_type, network.lokr_factor)
    optimizer = optimizer_of(cfg, [nn.Parameter(torch.zeros(2, 2))])
    scheduler_of(cfg, optimizer, max(1, plan.steps.steps))
    computed = compute_dtype(cfg, device, dtype)
    lacking = quantization_support.problems(cfg.memory, device)
    if lacking:
        raise Refused.of(lacking)
    try:
        attention_routes.choose_route(cfg.compile.attention, device, computed)
    except ValueError as error:
        raise Refused.from_error(error, "compile.attention") from error
    return given


def _swapped(inputs: Inputs, empty: nn.Module) -> tuple[str, ...]:
    """Module paths of the blocks to swap; Refused when there are not so many."""
    count = inputs.cfg.memory.blocks_to_swap
    if not count:
        return ()
    lists = inputs.running_order(empty)
    total = sum(map(len, lists.values()))
    problem = too_many(count, total)
    if problem is not None:
        raise Refused.of([problem])
    return swapped_paths(empty, lists, count)


def compute_dtype(cfg: Config, device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """What attention computes in: autocast's format, else that of the weights."""
    precision = mixed_precision(cfg.training.mixed_precision, device)
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, dtype)


def optimizer_of(cfg: Config, parameters: Sequence[nn.Parameter | dict[str, Any]]) -> torch.optim.Optimizer:
    """The optimizer of the settings over `parameters`, or groups of them with rates of their own."""
    chosen = cfg.optimizer
    return make_optimizer(
        chosen.optimizer,
        parameters,
        learning_rate=chosen.learning_rate,
        weight_decay=chosen.weight_decay,
        betas=(chosen.betas[0], chosen.betas[1]),
        eps=chosen.eps,
        arguments=chosen.optimizer_args,
    )


def scheduler_of(cfg: Config, optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    """The learning-rate schedule of the settings over `steps` optimizer steps."""
    chosen = cfg.optimizer
    return make_scheduler(
        chosen.lr_scheduler,
        optimizer,
        total_steps=steps,
        warmup=chosen.lr_warmup,
        cycles=chosen.lr_scheduler_num_cycles,
        power=chosen.lr_scheduler_power,
        min_lr_ratio=chosen.lr_scheduler_min_lr_ratio,
    )


def _latent_cache(cfg: Config, dtype: torch.dtype, tiled: bool) -> LatentCache:
    """The cache of encoded pictures; those made in tiles, which differ a little, are kept apart."""
    made_by = f"{vae_identity(cfg)} tiled" if tiled else vae_identity(cfg)
    return LatentCache(cache_folder(cfg), made_by, dtype, cfg.dataset.transparency)


def _expect(inputs: Inputs, events: EventWriter) -> Expected | None:
    """The estimate of the run's memory, told; Refused when weights alone are more than the card has."""
    cfg, plan = inputs.cfg, inputs.plan
    work = replace(
        work_of(cfg, plan),
        encodes_text=bool(inputs.texts.missing(inputs.texts.path(*wanted) for wanted in inputs.wanted_text)),
        encodes_pictures=bool(inputs.latents.missing(inputs.latents.path(*pair) for pair in inputs.pictures())),
    )
    expected = Expected.of(cfg, work, inputs.device)
    if expected is not None:
        expected.tell(events)
        expected.refuse_what_can_not_fit()
    return expected
