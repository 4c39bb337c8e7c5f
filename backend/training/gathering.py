"""Gathers and checks what a run works on, before anything large loads: base model, pictures, plan, memory."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch
from torch import nn

from backend.base.errors import Refused
from backend.base.paths import resolve
from backend.base.problems import Problem, errors
from backend.config.experts import expert_file, sides_of
from backend.config.layer_patterns import Size, included, rates_of, trained_names
from backend.config.layer_patterns import sizes as sizes_of
from backend.config.schema import Config
from backend.config.sections.training import TrainingSection
from backend.dataset.items import DatasetScan, count_of
from backend.dataset.masks import MaskRule
from backend.dataset.scan import cache_folder, scan_dataset
from backend.families.clip_words import clip_words
from backend.families.files.base_model import BaseModelFiles
from backend.families.spec import FamilyFacts
from backend.families.table import family as load_family
from backend.latents.identity import text_identity, vae_identity
from backend.latents.masks import MaskCache
from backend.latents.store import LatentCache, TextCache
from backend.lora.comfyui_keys import LayerNames, linear_layers, names_of
from backend.lora.inject import find_targets, is_large
from backend.lora.load import check_continue
from backend.memory import quantization_support
from backend.memory.block_swap import swapped_paths
from backend.memory.devices import mixed_precision, pick_device, weight_dtype
from backend.models.common.base_weights import BaseWeights
from backend.models.common.whole_model_files import text_shapes
from backend.models.family_classes import load_family as family_code
from backend.objectives.choose import objective_of
from backend.optimizers.from_settings import optimizer_of, scheduler_of
from backend.plan import base_model_check as family_check
from backend.plan.caption_draw import trains_text
from backend.plan.make_plan import make_plan
from backend.plan.memory.parts import read_parts
from backend.plan.memory.swap import too_many
from backend.plan.memory.work import work_of
from backend.plan.plan import Plan
from backend.plan.texts import CHUNK, CountTokens, token_counter
from backend.plan.trained_blocks import trained_blocks
from backend.runs.events import EventWriter
from backend.runs.events.kinds import PlanEvent, StepTotalEvent, WarningEvent
from backend.runs.folder import Run
from backend.runs.phase_progress import PhaseProgress
from backend.shapes import attention_routes
from backend.training.expected_memory import ExpectedMemory, limit
from backend.training.full_files import full_files
from backend.training.full_weights import FullWeights, denoiser_dtype
from backend.training.inputs import Inputs
from backend.training.requests import Requests
from backend.training.save_check import save_problems

log = logging.getLogger(__name__)


def gather(cfg: Config, events: EventWriter, requests: Requests, only_trains: bool = False) -> Inputs:
    """Check the base model, scan and plan, try the settings, and see that the model fits.

    only_trains: this is not the run's first process, and leaves the run's folder alone.
    Refused with every problem of a stage at once. StopRequested when a stop is requested in the middle.
    """
    family = load_family(cfg.model.family)
    base = BaseModelFiles.of(cfg.model)
    report_problems(family_check.problems(cfg), events)
    scan = _scan(cfg, events, requests)
    geometry = family.geometry(base)
    counter = token_counter(base, family)
    counts = (counter if cfg.compile.caption_buckets else None, family.picture_tokens(base))
    narrowed = family.narrowed(base)
    trained = trained_blocks(cfg, narrowed, read_parts(family, base))
    plan = make_plan(cfg, scan, geometry, narrowed, *counts, trained)
    cut = _cut_captions(plan, scan, counter, family)
    report_problems([*_without_validation(cfg, plan), *plan.problems, *cut], events)
    for line in plan.lines():
        log.info(line)
    events.write(PlanEvent(**plan.to_dict()))
    events.write(StepTotalEvent(total=plan.steps.steps))
    device = pick_device()
    _limit(cfg, device, events)
    dtype = weight_dtype(cfg.model.weight_dtype, device)
    code = family_code(family.name)
    empty = code.empty_denoiser(base)
    names = names_of(linear_layers(empty), family)
    base_weights = BaseWeights.of(cfg.network, base, family, names)
    report_problems(base_weights.check() if base_weights else [], events)
    sizes = _check_settings(cfg, family, empty, names, plan, device, dtype)
    if cfg.training.kind == "full":
        report_problems(_full_problems(cfg, base, family, empty, base_weights, Run(events.path.parent)), events)
    report_problems(quantization_support.fp8_compile_warnings(cfg, device), events)
    # of both, each draws its own noise levels
    sides = sides_of(cfg)
    inputs = Inputs(
        cfg=cfg,
        family=family,
        code=code,
        base=base,
        device=device,
        dtype=dtype,
        precision=mixed_precision(cfg.training.mixed_precision, device),
        geometry=geometry,
        scan=scan,
        plan=plan,
        sizes=sizes,
        names=names,
        latents=_latent_cache(cfg, dtype, tiled=cfg.memory.vae_tiling == "on"),
        texts=TextCache(cache_folder(cfg), text_identity(cfg), dtype, cfg.dataset.transparency),
        masks=MaskCache(cache_folder(cfg), geometry.downscale, _mask_rule(cfg), cfg.training.seed),
        objective=objective_of(cfg, family, code, base, sides[0] if len(sides) == 1 else None),
        base_weights=base_weights,
    )
    inputs = replace(inputs, swapped=_swapped(inputs, empty))
    inputs = replace(inputs, expected=_expect(inputs, None if only_trains else events))
    if inputs.tiled_encode:
        inputs = replace(inputs, latents=_latent_cache(cfg, dtype, tiled=True))
    return inputs


def _limit(cfg: Config, device: torch.device, events: EventWriter) -> None:
    without_effect = limit(cfg.memory.vram_limit_gb, device)
    if without_effect:
        events.write(WarningEvent(text=without_effect, remedy="Take memory.vram_limit_gb out."))
        log.warning(without_effect)


def _scan(cfg: Config, events: EventWriter, requests: Requests) -> DatasetScan:
    with PhaseProgress(events, "scan") as progress:
        scan = scan_dataset(cfg, requests.watched(progress))
    for name, pictures in (("training", scan.train), *scan.validation.items()):
        for line in pictures.summary():
            log.info("%s: %s", name, line)
    report_problems(scan.problems, events)
    return scan


def _cut_captions(plan: Plan, scan: DatasetScan, counter: CountTokens | None, facts: FamilyFacts) -> list[Problem]:
    """A warning when the text encoder will not see the end of some captions."""
    if counter is None:
        return []
    further = (plan.captions.rule.plain(text) for item in plan.items for text in item.texts[1:])
    captions = dict.fromkeys([*scan.captions(), *further])
    long = [caption for caption in captions if counter(caption) > plan.text_length]
    if not long:
        return []
    text = f"{count_of(len(long), 'caption')} longer than {plan.text_length} tokens, cut there: {long[0][:60]!r} ..."
    if "max_token_length" in facts.options and plan.text_length < facts.text_length + 2 * CHUNK:
        remedy = "Shorten them, or raise max_token_length to 150 or 225."
        return [Problem("dataset.max_token_length", None, text, remedy, "warning")]
    if plan.text.fixed:
        return [Problem("dataset.folders", None, text, "Shorten them: this model reads no more.", "warning")]
    return [Problem("model.text_length", None, text, "Shorten them, or raise text_length.", "warning")]


def report_problems(problems: list[Problem], events: EventWriter) -> None:
    """Write warnings as events; Refused with all errors."""
    for problem in problems:
        if problem.severity == "warning":
            events.write(WarningEvent(text=problem.text, remedy=problem.remedy))
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
    sizes = {} if _own_weights(cfg, empty) else _lora_sizes(cfg, family, empty, names)
    optimizer = optimizer_of(cfg.optimizer, [nn.Parameter(torch.zeros(2, 2))])
    scheduler_of(cfg.optimizer, optimizer, max(1, plan.steps.steps))
    computed = compute_dtype(cfg.training, device, denoiser_dtype(cfg.training, dtype))
    lacking = quantization_support.problems(cfg.memory, device)
    if lacking:
        raise Refused.of(lacking)
    try:
        attention_routes.choose_route(cfg.compile.attention, device, computed)
    except ValueError as error:
        raise Refused.from_error(error, "compile.attention") from error
    return sizes


def _without_validation(cfg: Config, plan: Plan) -> list[Problem]:
    """Errors where settings need a validation loss, and no picture is left to measure."""
    if any(plan.validation.values()):
        return []
    text = "there is no validation image among those that were scanned"
    remedy = "Add images to the dataset or to the validation folders, or remove it."
    wanted = {
        "saving.keep_best": cfg.saving.keep_best,
        "saving.average_from": cfg.saving.average_from == "best",
        "validation.early_stop_patience": cfg.validation.early_stop_patience,
    }
    return [Problem(path, None, f"{path.split('.')[1]}: {text}", remedy) for path, value in wanted.items() if value]


def _own_weights(cfg: Config, empty: nn.Module) -> bool:
    """Whether the model's own weights are trained. Refused where the settings name none of them."""
    if cfg.training.kind != "full":
        return False
    named = [name for name, _ in empty.named_parameters()]
    trained = trained_names(named, cfg.network.targets_include, cfg.network.targets_exclude)
    rates_of(trained, cfg.network.layer_settings)
    return True


def _full_problems(
    cfg: Config, base: BaseModelFiles, family: FamilyFacts, empty: nn.Module, merged: BaseWeights | None, run: Run
) -> list[Problem]:
    """What keeps a whole model and its state from being saved: the layout, and room on the disk; and what is not saved
    with it. Asked before the long work, on shapes alone."""
    texts = [*clip_words(family)] if trains_text(cfg, family) else []
    shapes = text_shapes(base, family, texts)
    files = full_files(
        empty,
        base,
        family,
        layout=cfg.saving.model_layout,
        precision=cfg.saving.save_precision,
        state=lambda: empty.state_dict() | {name: torch.empty(each, device="meta") for name, each in shapes.items()},
        encoders=dict.fromkeys(texts, nn.Module()),
        part=family.expert_part(base, next(iter(sides_of(cfg)), None)),
    )
    return [
        *save_problems(run, cfg, FullWeights.of(empty, cfg.network), files, [*shapes.values()]),
        *([] if texts else _text_that_is_not_saved(merged)),
    ]


def _text_that_is_not_saved(merged: BaseWeights | None) -> list[Problem]:
    """A warning where a merged LoRA changes text encoders too: a whole model is saved with the base model's own."""
    return [
        Problem(
            "network.base_weights",
            None,
            f"{path.name} also changes the text encoders, and the saved model has those of the base model",
            f"Load {path.name} for the text encoders beside the saved model, or merge a file without them.",
            "warning",
        )
        for path in (merged.of_text() if merged else [])
    ]


def _lora_sizes(cfg: Config, family: FamilyFacts, empty: nn.Module, names: LayerNames) -> dict[str, Size]:
    network = cfg.network
    targets = find_targets(empty, included(network, family), network.targets_exclude)
    sizes = sizes_of(targets, network, {path for path in targets if is_large(empty.get_submodule(path))})
    if network.network_weights:
        path, sides = resolve(network.network_weights), sides_of(cfg)
        for file in {expert_file(path, side) for side in sides} if len(sides) == 2 else {path}:
            check_continue(file, names, sizes, network.network_type, network.lokr_factor)
    return sizes


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


def compute_dtype(settings: TrainingSection, device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """What attention computes in: autocast's format, else that of the weights."""
    precision = mixed_precision(settings.mixed_precision, device)
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, dtype)


def _mask_rule(cfg: Config) -> MaskRule:
    return MaskRule(**cfg.masks.model_dump(exclude={"alpha_mask"}))


def _latent_cache(cfg: Config, dtype: torch.dtype, tiled: bool) -> LatentCache:
    """The cache of encoded pictures; those made in tiles, which differ a little, are kept apart."""
    made_by = f"{vae_identity(cfg)} tiled" if tiled else vae_identity(cfg)
    return LatentCache(cache_folder(cfg), made_by, dtype, cfg.dataset.transparency)


def _expect(inputs: Inputs, events: EventWriter | None) -> ExpectedMemory | None:
    """The estimate of the run's memory, written down where `events` are given.

    Refused when weights alone are more than the GPU has.
    """
    cfg, plan = inputs.cfg, inputs.plan
    work = replace(
        work_of(cfg, plan),
        encodes_text=bool(inputs.texts.missing(inputs.texts.path(*wanted) for wanted in inputs.wanted_text)),
        encodes_pictures=bool(inputs.latents.missing(inputs.latents.path(*pair) for pair in inputs.pictures())),
    )
    expected = ExpectedMemory.of(cfg, work, inputs.device)
    if expected is not None:
        if events is not None:
            expected.write(events)
        expected.refuse_if_too_large()
    return expected
