"""Both experts of Wan 2.2 14B in one run: each trains, samples and is saved as if it were alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanPipeline
from PIL import Image

from backend.config.experts import SIDES, Turns
from backend.config.schema import Config
from backend.families.spec import Side
from backend.objectives.flow_matching import EulerSteps
from backend.preview.__main__ import main as preview
from backend.publish.card import Statement
from backend.publish.folder import publish
from backend.runs.control import Control
from backend.runs.events import EventWriter
from backend.runs.folder import Run
from backend.runs.preview.request import checkpoints_of
from backend.training.prepare import prepare
from backend.training.requests import Requests
from backend.training.sampling import draw_latent
from backend.training.trainer import Trainer
from tests.tiny.clips import write_clip
from tests.tiny.shapes import relative
from tests.tiny.training import config, events, lora_of, rows, same, state_of, train_here
from tests.tiny.wan_loras import assert_comfyui_takes

PROMPT = {"prompt": "a clip", "width": 64, "height": 48, "frames": 5, "steps": 5, "seed": 1, "lora_scale": 0.5}
SECTIONS: dict[str, dict[str, Any]] = {
    "model": {"family": "wan22", "text_length": 512},
    "video": {"target_frames": [5]},
    "compile": {"compile": False, "shape_mode": "static"},
    "timesteps": {"train_experts": "both", "switch_boundary_every": 2},
    "optimizer": {"learning_rate": 0.03, "lr_scheduler": "cosine", "lr_warmup": 0.0},
    "validation": {"validation_sigmas": [0.5, 0.9, 0.875, 0.3]},
    "sampling": {"prompts": [PROMPT]},
}
# one of each kind, where it is not the point: each costs its time in every step
FEW = {"targets_include": ["attn1.to_q", "attn2.to_k", "ffn.net.2"]}
FILES = {side: f"tiny_{side}_noise.safetensors" for side in SIDES}


@pytest.fixture(scope="module")
def make(tiny_wan22: Path, tiny_wan22_i2v: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Config]:
    """(steps, changes by section) -> a run's settings, on three clips of which one is held out."""
    where = tmp_path_factory.mktemp("experts")
    for number, size in enumerate([(64, 48), (48, 64), (64, 64)]):
        write_clip(where / "clips" / f"clip_{number}.mp4", 12, size=size)
        (where / "clips" / f"clip_{number}.txt").write_text(f"a grey clip {number}", encoding="utf-8")

    def made(steps: int, **changes: dict[str, Any]) -> Config:
        sections = {name: {**SECTIONS.get(name, {}), **changes.get(name, {})} for name in {*SECTIONS, *changes}}
        sections["training"] = {"max_train_steps": steps, **sections.get("training", {})}
        sections["dataset"] = {"validation_split": 0.34, **sections.get("dataset", {})}
        family = sections["model"]["family"]
        return config({"wan22": tiny_wan22, "wan22_i2v": tiny_wan22_i2v}[family], where / "clips", where, **sections)

    return made


def prepared(cfg: Config, stack: ExitStack) -> Trainer:
    """A run that is ready to train."""
    torch._dynamo.reset()
    run = Run.create(cfg)
    events_of = EventWriter(run.events_path)
    trainer = prepare(run, cfg, events_of, Requests(Control(run)), False, stack)
    trainer.begin()
    return trainer


def step(trainer: Trainer) -> None:
    """One step of a run that is driven by hand, as `backend.training.loop` does it."""
    while True:
        batch = trainer.next_batch()
        with trainer.accelerator.accumulate():
            loss = trainer.loss(batch)
            trainer.backward(loss)
            if trainer.accelerator.sync_gradients:
                trainer.clip_gradients()
            trainer.update()
        trainer.count_batch(loss)
        if trainer.accelerator.sync_gradients:
            trainer.count_step()
            return


class Levels:
    """An objective that draws the levels of other batches than those that it is asked for."""

    def __init__(self, objective: Any) -> None:
        self.objective, self.number = objective, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.objective, name)

    def levels(self, tokens: Any, seed: int, number: int) -> torch.Tensor:
        self.number += 1
        return self.objective.levels(tokens, seed, self.number - 1)


VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "16 bits and two points": {
        "training": {"gradient_accumulation_steps": 2},
        "timesteps": {"stratified": True},
        "network": {"lora_weight_dtype": "bf16"},
        "optimizer": {"optimizer": "adamw_schedulefree", "lr_scheduler": "constant"},
    },
    "swapped dora with a mean": {
        "memory": {"blocks_to_swap": 2},
        "network": {"network_type": "dora", **FEW},
        "training": {"ema": True, "ema_decay": 0.5},
        "optimizer": {"optimizer": "prodigy", "learning_rate": 1.0},
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_expert_learns_draws_and_is_measured_as_in_a_run_of_its_own(
    make: Callable[..., Config], tiny_wan22: Path, variant: str
) -> None:
    """Bit by bit: two runs of one expert each, which do the steps of its turns at their batches, noise and rates."""
    more = VARIANTS[variant]
    with ExitStack() as stack:
        both = prepared(make(7, **more), stack)
        alone: dict[Side, Trainer] = {}
        for side in SIDES:
            times = {**more.get("timesteps", {}), "train_experts": side}
            alone[side] = prepared(make(7, **{**more, "timesteps": times}), stack)
            alone[side].objective = Levels(alone[side].objective)
        assert both.experts is not None
        places = [p.data_ptr() for p in both.forward.denoiser.parameters()]
        for number in range(7):
            side = "high" if number in (0, 1, 4, 5) else "low"
            own = alone[side]
            own.counter.position = replace(own.counter.position, **position_of(both))
            for group, now in zip(own.optimizer.param_groups, both.optimizer.param_groups, strict=True):
                group["lr"] = now["lr"]
            step(both)
            step(own)
            assert both.experts.side == side
            assert torch.equal(both._grad_norm, own._grad_norm)
            if number == 2:
                # whatever is done between two steps changes nothing
                both.between_steps._validate()
                both.between_steps._sample()
                both.saver.save()
        assert places == [p.data_ptr() for p in both.forward.denoiser.parameters()]
        used = both.experts.used_tensors()
        for side in SIDES:
            own = alone[side]
            assert same(used[side], (own.weights if own.ema is None else own.ema).tensors())
            with both.experts.trained(side) as lora:
                assert same(lora.tensors(), own.weights.tensors())
        assert not same(used["high"], used["low"])
        assert_measured_alike(both, alone)
        assert_drawn_alike(both, alone)
        assert_saved_alike(both, alone)
        if variant.startswith("16 bits"):
            assert_drawn_as_diffusers_does(both, tiny_wan22)
        assert_rescued(both)


def position_of(trainer: Trainer) -> dict[str, Any]:
    position = trainer.position
    return {name: getattr(position, name) for name in ("step", "micro", "epoch", "batch", "step_epoch")}


def assert_measured_alike(both: Trainer, alone: dict[Side, Trainer]) -> None:
    """Each level by its expert: 0.875 is the first of that for high noise."""

    def measured(trainer: Trainer) -> tuple[float, ...]:
        between = trainer.between_steps
        (examples,) = between.validation_sets.values()
        with between.to_use():
            return between.measure(list(examples.read())).sigma_losses

    losses = {side: measured(trainer) for side, trainer in alone.items()}
    # of a run of one expert, too, all levels are measured
    wanted = [losses["high" if sigma >= 0.875 else "low"][at] for at, sigma in enumerate([0.5, 0.9, 0.875, 0.3])]
    assert measured(both) == tuple(wanted)


def assert_drawn_alike(both: Trainer, alone: dict[Side, Trainer]) -> None:
    sampler = both.between_steps.draw_samples.__self__  # type: ignore[union-attr]

    drawn = sampler._latent(0, Progress())
    prompt, sides = sampler.prompts[0], []

    def predict(noisy: Any, level: torch.Tensor, text: Any, guidance: float) -> Any:
        side: Side = "high" if float(level) >= 0.875 else "low"
        sides.append(side)
        own = alone[side]
        with own.between_steps.to_use(), own.weights.scaled(prompt.lora_scale):
            return own.forward(noisy, level, text, guidance)

    (positive,) = sampler.conditioning([sampler.texts[0].positive])
    text = replace(sampler.texts[0], positive=positive, negative=None)
    wanted = draw_latent(
        prompt, text, predict, sampler.sampler, sampler.geometry, sampler.device, guide=sampler.guide, frames=5
    )
    assert torch.equal(drawn, wanted) and set(sides) == set(SIDES)


def assert_saved_alike(both: Trainer, alone: dict[Side, Trainer]) -> None:
    both.saver.save_final()
    for side, own in alone.items():
        own.saver.save_final()
        assert same(lora_of(both.saver.run, FILES[side]), lora_of(own.saver.run))
        assert_comfyui_takes(lora_of(both.saver.run, FILES[side]))


def assert_drawn_as_diffusers_does(both: Trainer, base: Path) -> None:
    """The pipeline's clip, with both files of LoRA loaded; its scheduler's levels lie on both sides of the boundary."""
    pipeline = WanPipeline.from_pretrained(base, local_files_only=True)
    pipeline.load_lora_weights(both.saver.run.checkpoints_dir / FILES["high"])
    pipeline.load_lora_weights(both.saver.run.checkpoints_dir / FILES["low"], load_into_transformer_2=True)
    pipeline.scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    pipeline.set_progress_bar_config(disable=True)
    theirs = pipeline(
        PROMPT["prompt"],
        guidance_scale=1.0,
        width=64,
        height=48,
        num_frames=5,
        num_inference_steps=5,
        generator=torch.Generator("cpu").manual_seed(PROMPT["seed"]),
        output_type="latent",
    ).frames[0]
    sigmas = pipeline.scheduler.sigmas.tolist()
    assert sigmas[0] >= 0.875 > sigmas[-2]
    sampler = both.between_steps.draw_samples.__self__  # type: ignore[union-attr]
    sampler.prompts[0].lora_scale = 1.0
    sampler.sampler = lambda steps, tokens: EulerSteps(sigmas)
    drawn = sampler._latent(0, Progress())
    assert relative(drawn, theirs) < 1e-4


def assert_preview_draws_the_same(run: Run) -> None:
    """A preview of the run's last pair of files draws the clip of the run's end; the pair is one row."""
    (sample,) = [each for each in run.samples() if each.step == 5]
    out = run.path / "drawn"
    assert preview(["--run", str(run.path), "--shape_mode", "off", "--out", str(out)]) == 0
    with Image.open(sample.sheet or "") as mine, Image.open(out / "01-01.sheet.png") as drawn:
        # the run's rows are padded, which rounds otherwise
        assert np.abs(np.asarray(drawn).astype(int) - np.asarray(mine)).max() <= 1
    assert [each.path.name for each in checkpoints_of(run)] == [FILES["high"]]


def assert_rescued(both: Trainer) -> None:
    """The last good values of both, which were those of a step of the other expert than is in the model now."""
    good = both.good
    assert good is not None and good.sides is not None and both.experts is not None
    assert both.experts.side == "low" and both.experts.turns.side(good.step - 1) == "high"
    both.saver.save_rescued(good.tensors, good.step, good.sides)
    for side in SIDES:
        kept = lora_of(both.saver.run, f"tiny-step{good.step:08d}-last-good_{side}_noise.safetensors")
        a = good.sides[side]["blocks.0.attn1.to_q.lora_A.weight"]
        assert torch.equal(kept["lora_unet_blocks_0_self_attn_q.lora_down.weight"], a)


class Progress:
    """Of a sample that nobody watches."""

    def advance(self) -> None: ...


def test_turns_are_counted_as_they_are_taken() -> None:
    for every in (1, 3):
        turns = Turns(every)
        for total in range(14):
            taken = [turns.side(number) for number in range(total)]
            assert [turns.steps(side, total) for side in SIDES] == [taken.count(side) for side in SIDES]


def test_a_run_resumed_within_a_turn_ends_as_one_that_ran_through(
    make: Callable[..., Config], image_folder: Path
) -> None:
    """Of image to video, whose samples start from a picture."""
    start = next(image_folder.glob("*.png"))
    more: dict[str, dict[str, Any]] = {
        "model": {"family": "wan22_i2v"},
        "training": {"ema": True},
        "network": FEW,
        "optimizer": {"lr_scheduler": "constant"},
        "sampling": {"prompts": [PROMPT | {"control_image": str(start), "steps": 3}]},
    }
    straight, code = train_here(make(5, **more))
    assert code == 0, events(straight, "error")
    assert_preview_draws_the_same(straight)
    half, code = train_here(make(3, **more))
    assert code == 0, events(half, "error")
    half.config_path.write_text(half.config_path.read_text().replace("max_train_steps = 3", "max_train_steps = 5"))
    _, code = train_here(make(5, **more), half, resume=True)
    assert code == 0, events(half, "error")
    assert [row["loss"] for row in rows(half)] == [row["loss"] for row in rows(straight)]
    for file in FILES.values():
        assert same(lora_of(half, file), lora_of(straight, file))
    then, now = state_of(straight), state_of(half)
    assert then["experts"]["side"] == "high" and then["experts"]["optimizer"]["state"][0]["step"] == 2
    assert same({**then, "rng": None, "scheduler": None}, {**now, "rng": None, "scheduler": None})
    # another turn would give gradients and states to the wrong expert
    text = half.config_path.read_text().replace("switch_boundary_every = 2", "switch_boundary_every = 3")
    half.config_path.write_text(text.replace("max_train_steps = 5", "max_train_steps = 6"))
    _, code = train_here(make(6, **more), half, resume=True)
    assert code != 0 and "train_experts (both, every 2 steps" in events(half, "error")[-1]["text"]


def test_both_share_the_planned_graphs_and_diffusers_loads_both_files(
    make: Callable[..., Config], tiny_wan22: Path
) -> None:
    more: dict[str, dict[str, Any]] = {
        "compile": {"compile": True, "compile_backend": "aot_eager"},
        "memory": {"blocks_to_swap": 2},
        "network": FEW,
        "timesteps": {"switch_boundary_every": 1},
        "sampling": {"sample_every_n_steps": 3},
        "validation": {"validate_every_n_steps": 2},
        "saving": {"save_every_n_steps": 2, "save_last_n": 1, "save_layout": "diffusers"},
    }
    run, code = train_here(make(5, **more))
    assert code == 0, events(run, "error")
    last, (plan,) = rows(run)[-1], events(run, "plan")
    assert (last["graphs"], last["recompiles"], last["breaks"]) == (plan["graphs"]["planned"], 0, 0)
    assert last["graphs"] > 0 and not events(run, "recompile")
    (note,) = [each for each in plan["findings"] if each["kind"] == "experts"]
    assert "3 steps for high noise and 2 for low" in note["text"]
    # trained alone: of the eager run the losses are looked at, and what is between steps changes none
    alone = {"compile": {}, "sampling": {"prompts": []}, "saving": {}}
    quiet = {"validation": {"validate_at_start": False, "validate_at_end": False}}
    eager, code = train_here(make(5, **{**more, **alone, **quiet}))
    assert code == 0, events(eager, "error")
    assert [row["loss"] for row in rows(run)] == pytest.approx([row["loss"] for row in rows(eager)], rel=1e-5)
    assert {path.name for path in run.checkpoints_dir.iterdir()} == {
        *FILES.values(), *(f"tiny-step00000004_{side}_noise.safetensors" for side in SIDES)
    }  # fmt: skip
    pipeline = WanPipeline.from_pretrained(tiny_wan22, local_files_only=True)
    pipeline.load_lora_weights(run.checkpoints_dir / FILES["high"])
    pipeline.load_lora_weights(run.checkpoints_dir / FILES["low"], load_into_transformer_2=True)
    for side, net in (("high", pipeline.transformer), ("low", pipeline.transformer_2)):
        layer = net.blocks[0].attn1.to_q
        (name,) = layer.lora_B
        loaded = layer.lora_B[name].weight * layer.scaling[name]
        key = "transformer.blocks.0.attn1.to_q.lora_B.weight"
        assert torch.equal(loaded, lora_of(run, FILES[side])[key]) and loaded.any()
    # one folder to publish holds both
    published = publish(run, "4", None, Statement(title="Cats"))
    pair = [f"tiny-step00000004_{side}_noise" for side in SIDES]
    assert published.folder.name == "tiny-step00000004" and "It was read back" in published.checked
    assert {f"{name}{ending}" for name in pair for ending in (".safetensors", ".png")} < set(published.files)
    card = (published.folder / "README.md").read_text("utf-8")
    assert " and ".join(f"`{name}.safetensors`" for name in pair) in card and "| Expert | for low noise |" in card
