"""Observes what the parts of a run become with other settings: what they are built with, planned as and written as."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from backend.compile.cuda_graphs import capture
from backend.config.profiles import apply_profile
from backend.config.schema import Config, with_values
from backend.families.files.base_model import BaseModelFiles
from backend.latents.identity import text_identity, vae_identity
from backend.memory import run_block_swap
from backend.memory.devices import mixed_precision, weight_dtype
from backend.objectives.choose import objective_of
from backend.plan.make_plan import make_plan
from backend.plan.memory.settings import memory_settings
from backend.runs.control import Control
from backend.runs.events import EventWriter
from backend.runs.folder import Run
from backend.shapes.shape_runtime import ShapeRuntime
from backend.training import assembly, gathering, measuring
from backend.training.between_steps import BetweenSteps, ValidationSet
from backend.training.compile_setup import cache_folder, compile_blocks, record_passes
from backend.training.encoding import encode
from backend.training.gathering import gather, scan_dataset
from backend.training.inputs import Inputs
from backend.training.lora_metadata import file_metadata
from backend.training.position import Position
from backend.training.prepare import make_accelerator, seed
from backend.training.requests import Requests
from backend.training.trackers import row_writer
from backend.training.trainable import Trainable, load_trainable
from backend.training.validation import ValidationLoss

CPU = torch.device("cpu")


@dataclass
class World:
    """What a run of the tiny FLUX has gathered and loaded, for observations of other settings on the same files."""

    inputs: Inputs
    trainable: Trainable
    accelerator: Any
    events: EventWriter
    run: Run
    empty: nn.Module
    cache: Path | None

    def plan(self, cfg: Config) -> Any:
        facts = replace(self.inputs.family)
        return make_plan(cfg, self.inputs.scan, self.inputs.geometry, facts, lambda text: 1 + len(text.split()))

    def inputs_of(self, cfg: Config) -> Inputs:
        """The inputs of a run with `cfg`, as gathering checks and names them."""
        own, plan = self.inputs, self.plan(cfg)
        sizes = gathering._check_settings(cfg, own.family, self.empty, own.names, plan, CPU, own.dtype)
        precision = mixed_precision(cfg.training.mixed_precision, CPU)
        changed = replace(own, cfg=cfg, plan=plan, sizes=sizes, precision=precision, expected=None)
        return replace(changed, swapped=gathering._swapped(changed, self.empty))


def make_world(cfg: Config, stack: ExitStack) -> World:
    run = Run.create(cfg)
    events = EventWriter(run)
    requests = Requests(Control(run))
    inputs = gather(cfg, events, requests)
    encode(inputs, events, requests)
    accelerator = make_accelerator(inputs)
    trainable = load_trainable(inputs, accelerator, events, stack)
    return World(
        inputs, trainable, accelerator, events, run, inputs.code.empty_denoiser(inputs.base), cache_folder(cfg.compile)
    )


# Observations: what is asked is given the world and a config, and answers with something to compare.


def planned(world: World, cfg: Config) -> Any:
    """The plan as the page shows it, the first batches and their captions, and what decides over memory."""
    plan = world.plan(cfg)
    batches = [plan.batches(epoch) for epoch in range(3)]
    captions = [
        plan.caption(epoch, number, row, index)
        for epoch, each in enumerate(batches)
        for number, batch in enumerate(each)
        for row, index in enumerate(batch)
    ]
    return plan.to_dict(), plan.lines(), batches, captions


def scanned(world: World, cfg: Config) -> Any:
    scan = scan_dataset(cfg)
    sets = {"training": scan.train, **scan.validation}
    return {name: [(i.key, i.caption, i.repeats) for i in scan_of_set.items] for name, scan_of_set in sets.items()}


def compiled(world: World, cfg: Config) -> Any:
    """What torch.compile itself is told of each block, layers left out of graphs, and the activation budget."""
    return _compile(world, cfg)[:-1]


def left_out(world: World, cfg: Config) -> Any:
    """How many linear layers stay out of the graphs."""
    return _compile(world, cfg)[1]


def limited(world: World, cfg: Config) -> Any:
    """torch's recompile limit."""
    return _compile(world, cfg)[-1]


def _compile(world: World, cfg: Config) -> tuple[Any, ...]:
    model, calls = copy.deepcopy(world.trainable.denoiser), []
    inputs = replace(world.inputs, cfg=cfg, plan=world.plan(cfg))
    compile_ = torch.compile

    def recorded(function: Callable[..., Any], **options: Any) -> Any:
        calls.append((getattr(function, "__qualname__", ""), sorted(options.items(), key=str)))
        return compile_(function, **options)

    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(torch, "compile", recorded)
        torch._dynamo.config.recompile_limit = 8
        shapes = ShapeRuntime.from_plan(cfg, inputs.plan, CPU, torch.float32)
        trained = replace(world.trainable, denoiser=model)
        telemetry, report = compile_blocks(inputs, trained, shapes, world.cache, stack)
    left_out = sum(isinstance(layer, nn.Linear) and "forward" in vars(layer) for layer in model.modules())
    budget = torch._functorch.config.activation_memory_budget
    return calls, left_out, budget, telemetry is None and report is None, torch._dynamo.config.recompile_limit


def recorded(world: World, cfg: Config) -> Any:
    """Whether passes are recorded as CUDA graphs, as if this device had them, and whether they are tried first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture, "DEVICE", "cpu")
        denoiser = copy.deepcopy(world.trainable.denoiser)
        recorder = record_passes(
            replace(world.inputs, cfg=cfg), replace(world.trainable, denoiser=denoiser), world.events
        )
    return recorder is not None, recorder is not None and recorder.trial is not None


def compiled_and_recorded(world: World, cfg: Config) -> Any:
    return compiled(world, cfg), recorded(world, cfg)


def attended(world: World, cfg: Config) -> Any:
    """The attention route, or why this machine has no kernel for it."""
    try:
        return ShapeRuntime.from_plan(cfg, world.plan(cfg), CPU, torch.float32).describe()
    except ValueError as error:
        return str(error)


def loaded(world: World, cfg: Config) -> Any:
    """The denoiser, the LoRA, the optimizer and the schedule that a run is made of."""
    swaps: list[Any] = []
    swap = run_block_swap.BlockSwap

    def swapped(*arguments: Any, **named: Any) -> Any:
        swaps.append((arguments[2], sorted(named.items())))
        return swap(*arguments, **named)

    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(run_block_swap, "BlockSwap", swapped)
        trainable = load_trainable(world.inputs_of(cfg), world.accelerator, world.events, stack)
        modules = dict(trainable.denoiser.named_modules())
        layers = {name: _layer(modules[name]) for name in trainable.weights.paths if name in modules}
        optimizer, scheduler = trainable.optimizer.optimizer, trainable.scheduler.scheduler
        groups = [
            (sum(p.numel() for p in group["params"]), {k: v for k, v in group.items() if k != "params"})
            for group in optimizer.param_groups
        ]
        schedule = [factor(step) for factor in getattr(scheduler, "lr_lambdas", ()) for step in range(12)]
        base = sorted({f"{type(m).__name__} {getattr(m, 'way', '')}" for m in trainable.denoiser.modules()})
        base += sorted({str(tensor.dtype) for tensor in trainable.denoiser.state_dict().values()})
        hooks = _checkpointing(trainable.denoiser)
        return (
            layers, type(optimizer).__name__, str(groups), schedule, base, hooks, swaps,
            trainable.norms and trainable.norms.limit, trainable.ema and trainable.ema.decay,
        )  # fmt: skip


def _layer(module: nn.Module) -> Any:
    """A layer with its LoRA: classes, shapes and formats of what is trained, and its numbers."""
    tensors = {n: (tuple(p.shape), str(p.dtype)) for n, p in module.named_parameters() if p.requires_grad}
    numbers = [
        (path, name, str(value))
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, int | float | dict) and not name.startswith("_")
    ]
    names = [sorted(vars(part)) for part in module.modules()]
    dropouts = [str(part) for part in module.modules() if "rop" in str(part)[:20]]
    dropouts += [str(vars(hook)) for part in module.modules() for hook in part._forward_hooks.values()]
    return (
        type(module).__name__,
        tensors,
        numbers,
        names,
        dropouts,
    )


def _checkpointing(denoiser: nn.Module) -> Any:
    function = getattr(denoiser, "_gradient_checkpointing_func", None)
    on = any(getattr(module, "gradient_checkpointing", False) for module in denoiser.modules())
    return on, type(function).__name__


def trained_with(world: World, cfg: Config) -> Any:
    """The objective: distance, weights, and how noise levels are drawn."""
    own = world.inputs
    return repr(objective_of(cfg, own.family, own.code, own.base))


def decoded(world: World, cfg: Config) -> Any:
    made = assembly.make_decoder(replace(world.inputs, cfg=cfg, expected=None), world.trainable.denoiser)
    return made.exclusive, made.tiled, made.may_leave, made.may_tile


def validated(world: World, cfg: Config) -> Any:
    """What a validation is measured with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "validate", lambda examples, forward, **named: named)
        parts = measuring.measures(replace(world.inputs, cfg=cfg), None, None, None)  # type: ignore[arg-type]
        (named,) = [part([]) for part in parts.values()]
    return named["sigmas"], named["repeats"], named["seed"]  # type: ignore[index]


def described(world: World, cfg: Config) -> Any:
    """The metadata of the saved file, but for the time."""
    metadata = file_metadata(
        cfg, world.inputs.scan.train.items, {}, architecture="a", base_model_version="b", targets=1, step=1,
        steps=world.inputs.plan.steps, epoch=1, prediction="flow", started=0.0,
    )  # fmt: skip
    return {name: value for name, value in metadata.items() if "finished" not in name and "date" not in name}


def parts_found(world: World, cfg: Config) -> Any:
    """Where each part of the base model is read from."""
    base = BaseModelFiles.of(cfg.model)
    return base.variant, [str(base.place(part)) for part in world.inputs.family.parts], str(base.path)


def identified(world: World, cfg: Config) -> Any:
    """What caches are kept by."""
    return vae_identity(cfg), text_identity(cfg), vars(gathering._latent_cache(cfg, torch.float32, tiled=False))


def formats(world: World, cfg: Config) -> Any:
    """Number formats: of frozen weights, of arithmetic, and what they come to for memory."""
    return str(weight_dtype(cfg.model.weight_dtype, CPU)), mixed_precision(cfg.training.mixed_precision, CPU)


def kept_in(world: World, cfg: Config) -> Any:
    """What the estimate of memory and the loading of encoders take from the settings."""
    inputs = replace(world.inputs, cfg=cfg)
    return str(inputs.text_loading), str(inputs.denoiser_loading), str(memory_settings(cfg, on_gpu=True))


def read_ahead(world: World, cfg: Config) -> Any:
    with ExitStack() as stack:
        return stack.enter_context(assembly.make_loader(replace(world.inputs, cfg=cfg), world.events))._ahead


def shown_in_tensorboard(world: World, cfg: Config) -> Any:
    with ExitStack() as stack:
        row_writer(world.run, None, cfg, stack)  # type: ignore[arg-type]
        return (world.run.path / "tensorboard").exists()


def seeded(world: World, cfg: Config) -> Any:
    """Whether torch computes deterministically after the settings' seeds are set."""
    try:
        seed(cfg.training)
        return torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def done_between_steps(world: World, cfg: Config) -> Any:
    """What is saved, measured and drawn in a run of six steps, two an epoch, and when."""
    done: list[tuple[int, str]] = []
    position = Position()

    def note(what: str) -> None:
        done.append((position.step, what))

    def measure(examples: Any) -> ValidationLoss:
        note("validate")
        sigmas = len(cfg.validation.validation_sigmas)
        return ValidationLoss((0.0,) * sigmas)

    between_steps = BetweenSteps(
        saving=cfg.saving,
        validation=cfg.validation,
        sampling=cfg.sampling,
        position=lambda: position,
        total_steps=6,
        step_log=SimpleNamespace(settle=lambda: None),
        saver=SimpleNamespace(owed=False, state_is_old=False, save=lambda: note("save")),
        requests=Requests(Control(world.run)),
        events=world.events,
        validation_sets={"set": ValidationSet(count=0, read=list)},
        measure=measure,
        draw_samples=lambda step: note("sample"),
    )
    between_steps.at_start()
    for step in range(1, 7):
        position = Position(step=step, epoch=step // 2)
        between_steps.after_step(range((step - 1) // 2 + 1, step // 2 + 1))
    between_steps.at_end()
    return done


def config_with(world: World, beside: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Config:
    """The world's config with these values, and with what a profile among them sets."""
    cfg = with_values(world.inputs.cfg, {**(beside or {}), **values})
    apply_profile(cfg)
    return cfg
