"""The running mean of what is trained: diffusers' own numbers, in every file, and through a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from accelerate import Accelerator
from diffusers.training_utils import EMAModel
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from backend.config.schema import Config
from backend.config.toml_io import dump
from backend.lora.inject import Lora, find_targets, inject
from backend.optimizers.ema import Ema
from backend.runs.folder import Run
from backend.training import prepare
from tests.tiny.flux import make_tiny_denoiser
from tests.tiny.training import config, events, lora_of, rows, same, state_of, train_here

DECAY = 0.6


def made(weight_dtype: torch.dtype = torch.float32, kind: str = "lora", device: torch.device | None = None) -> Lora:
    model = make_tiny_denoiser(1, 1)
    targets = find_targets(model, ["attn.to_q"])
    return inject(
        model, targets, rank=4, alpha=4, dropout=0.0, seed=1, weight_dtype=weight_dtype, kind=kind, device=device
    )


def move(lora: Lora, number: int) -> None:
    source = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for parameter in lora.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=source) * 0.1)
    lora.publish()


@pytest.mark.parametrize("decay", [DECAY, 0.999])
@pytest.mark.parametrize(
    ("dtype", "kind"), [(torch.float32, "lora"), (torch.bfloat16, "lora"), (torch.float32, "loha")]
)
def test_the_mean_is_that_of_diffusers(decay: float, dtype: torch.dtype, kind: str) -> None:
    lora = made(dtype, kind)
    ours, theirs = Ema(lora, decay), EMAModel(lora.parameters(), decay=decay)
    assert same(ours.tensors(), lora.tensors()), "before the first step it is what is trained"
    for number in range(30):
        move(lora, number)
        ours.update()
        theirs.step(lora.parameters())
        for mean, shadow in zip(ours.mean, theirs.shadow_params, strict=True):
            assert mean.dtype == torch.float32
            torch.testing.assert_close(mean, shadow, atol=1e-6, rtol=1e-6)
    assert not same(ours.tensors(), lora.tensors())


@pytest.mark.gpu
def test_on_a_card_a_step_waits_for_nothing() -> None:
    lora, wide = made(device=torch.device("cuda")), made()
    ours, cpu = Ema(lora, DECAY), Ema(wide, DECAY)
    steps = [{name: torch.randn(value.shape) for name, value in wide.tensors().items()} for _ in range(4)]
    for values in steps:
        lora.restore(values)
        wide.restore(values)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            ours.update()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        cpu.update()
    for mean, wanted in zip(ours.mean, cpu.mean, strict=True):
        assert mean.is_cuda
        torch.testing.assert_close(mean.cpu(), wanted)


def test_past_its_warm_up_the_mean_is_that_of_torch() -> None:
    lora, decay = made(), 0.2
    move(lora, 99)
    ours = Ema(lora, decay)
    ours.update()
    theirs = AveragedModel(torch.nn.ParameterList(lora.parameters()), multi_avg_fn=get_ema_multi_avg_fn(decay))
    theirs.update_parameters(torch.nn.ParameterList(lora.parameters()))
    # at steps 1 and 2 the warm-up is below 0.2 still: 2 / 11 and 3 / 12 = 0.25
    ours.steps = 2
    for number in range(9):
        move(lora, number)
        ours.update()
        theirs.update_parameters(torch.nn.ParameterList(lora.parameters()))
    for mean, shadow in zip(ours.mean, theirs.module.parameters(), strict=True):
        torch.testing.assert_close(mean, shadow)


def settings(base: Path, images: Path, where: Path, **changes: Any) -> Config:
    """Accumulation, dropout, and a look at the weights after every second step."""
    training = {"max_train_steps": 6, "gradient_accumulation_steps": 2, "ema": True, "ema_decay": DECAY}
    data: dict[str, Any] = {
        "network": {"network_dim": 4, "network_alpha": 2.0, "network_dropout": 0.2, "targets_include": ["ff.net.2"]},
        "optimizer": {"learning_rate": 0.02, "lr_scheduler": "constant", "lr_warmup": 0.0},
        "training": training,
        "saving": {"save_every_n_steps": 1},
    }
    for section, values in changes.items():
        data[section] = {**data.get(section, {}), **values}
    return config(base, images, where, **data)


def newest(run: Run) -> str:
    return max(run.checkpoints_dir.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns).name


def numbers(tensors: dict[str, torch.Tensor]) -> list[bytes]:
    """The values of all matrices, whatever they are called."""
    return sorted(value.numpy().tobytes() for name, value in tensors.items() if not name.endswith("alpha"))


def test_a_run_that_was_looked_at_and_resumed_ends_as_the_straight_one(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "backend.training.trainable")
    straight, code = train_here(settings(tiny_flux, image_folder, tmp_path, saving={"save_every_n_steps": 5}))
    assert code == 0, events(straight, "error")
    plain, code = train_here(settings(tiny_flux, image_folder, tmp_path, training={"ema": False}))
    assert [row["loss"] for row in rows(plain)] == [row["loss"] for row in rows(straight)], "training is the same"
    assert same(state_of(plain)["lora"], state_of(straight)["lora"])
    assert not same(lora_of(plain), lora_of(straight)) and "ema" not in state_of(plain)

    looks = {
        "sampling": {
            "prompts": [{"prompt": "a dog", "width": 32, "height": 32, "steps": 2}], "sample_every_n_steps": 2
        },
        "validation": {
            "validation_folders": [{"path": str(image_folder), "name": "same"}], "validate_every_n_steps": 2
        },
    }  # fmt: skip
    run, code = train_here(settings(tiny_flux, image_folder, tmp_path, **looks, training={"max_train_steps": 3}))
    assert code == 0, events(run, "error")
    dump(later := settings(tiny_flux, image_folder, tmp_path, **looks), run.config_path, whole=True)
    _, code = train_here(later, run, resume=True)
    assert code == 0, events(run, "error")
    assert [row["loss"] for row in rows(run)] == [row["loss"] for row in rows(straight)]
    assert same(lora_of(run), lora_of(straight))
    for part in ("lora", "optimizer", "ema"):
        assert same(state_of(run)[part], state_of(straight)[part]), part
    assert not [event for event in events(run, "warning") if "ema" in event["text"]]
    assert numbers(lora_of(straight)) == numbers(state_of(straight)["ema"]["mean"])
    with safetensors.safe_open(straight.checkpoints_dir / "tiny.safetensors", "pt") as file:
        assert file.metadata()["ss_ema_decay"] == str(DECAY)
    assert [each.message for each in caplog.records if "mean of the weights" in each.message]

    # what was measured and drawn is the file's LoRA
    network = {"network_weights": str(straight.checkpoints_dir / "tiny.safetensors"), "network_dropout": 0.0}
    looks["validation"]["validate_at_start"] = True
    after, code = train_here(
        settings(
            tiny_flux, image_folder, tmp_path, **looks, network=network, training={"max_train_steps": 1, "ema": False}
        )
    )
    assert code == 0, events(after, "error")
    assert events(after, "validation")[0]["loss"] == pytest.approx(events(run, "validation")[-1]["loss"], rel=1e-6)


@pytest.mark.parametrize(
    "network",
    [{"lora_weight_dtype": "bf16"}, {"network_type": "lokr", "lokr_factor": 2}, {"network_type": "loha"},
     {"network_type": "dora"}, {"scale_weight_norms": 0.05}],
    ids=lambda network: str(next(iter(network.values()))),
)  # fmt: skip
def test_a_run_averages_what_each_of_its_steps_made(
    network: dict[str, Any], tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of masters, of other kinds, and of what was held to a norm."""
    made_by_steps: list[list[nn.Parameter]] = []

    def watched(self: Ema) -> None:
        update(self)
        made_by_steps.append([nn.Parameter(weight.detach().clone()) for weight in self._weights])

    update = Ema.update
    monkeypatch.setattr(Ema, "update", watched)
    run, code = train_here(settings(tiny_flux, image_folder, tmp_path, network=network))
    assert code == 0 and len(made_by_steps) == 6, events(run, "error")
    theirs = EMAModel(made_by_steps[0], decay=DECAY)
    for weights in made_by_steps:
        theirs.step(weights)
    state = state_of(run)
    assert state["ema"]["steps"] == 6 and state["ema"]["mean"].keys() == state["lora"].keys()
    for mean, shadow in zip(state["ema"]["mean"].values(), theirs.shadow_params, strict=True):
        torch.testing.assert_close(mean, shadow, atol=1e-6, rtol=1e-6)
    last = dict(zip(state["ema"]["mean"], (weight.detach() for weight in made_by_steps[-1]), strict=True))
    assert same({name: state["lora"][name] for name in last}, last)
    assert numbers(lora_of(run)) == numbers(state["ema"]["mean"]) != numbers(state["lora"])


def test_switched_on_off_or_changed_before_a_resume_is_told(
    tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    def go_on(run: Run, steps: int, **training: Any) -> str:
        cfg = settings(tiny_flux, image_folder, tmp_path, training={"max_train_steps": steps, **training})
        dump(cfg, run.config_path, whole=True)
        before = len(events(run, "warning"))
        _, code = train_here(cfg, run, resume=True)
        assert code == 0, events(run, "error")
        return " ".join(event["text"] for event in events(run, "warning")[before:])

    run, _ = train_here(settings(tiny_flux, image_folder, tmp_path, training={"max_train_steps": 2, "ema": False}))
    # no step was done since it was switched on: the weights are all that there is
    assert "begins with the next step" in go_on(run, 2)
    assert not list(run.checkpoints_dir.glob("*-final*")) and not list(run.checkpoints_dir.glob("tiny-2*"))
    assert "ema" not in go_on(run, 4) and state_of(run)["ema"]["steps"] == 2
    before = state_of(run)["ema"]["mean"]
    assert "was 0.6 when the run stopped, and is 0.9" in go_on(run, 5, ema_decay=0.9)
    kept, weights = state_of(run)["ema"], state_of(run)["lora"]
    assert kept["decay"] == 0.9 and kept["steps"] == 3
    for name, value in kept["mean"].items():
        torch.testing.assert_close(value, 0.25 * before[name] + 0.75 * weights[name])
    assert "ends here" in go_on(run, 6, ema=False) and "ema" not in state_of(run)
    assert numbers(lora_of(run, newest(run))) == numbers(state_of(run)["lora"])


def test_an_optimizer_that_averages_by_itself_is_refused_whatever_it_is_called(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytorch_optimizer import ScheduleFreeAdamW

    class Averaging(ScheduleFreeAdamW):
        pass

    monkeypatch.setattr("torch.optim.Averaging", Averaging, raising=False)
    run, code = train_here(
        settings(tiny_flux, image_folder, tmp_path, optimizer={"optimizer": "torch.optim.Averaging"})
    )
    assert code == 2 and "averages its weights itself" in events(run, "error")[0]["text"]


def test_a_step_that_a_loss_scale_left_out_is_not_in_the_mean(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As fp16 has it on a card, with torch's scaler for the CPU; the first loss is beyond float32 at its scale."""
    make = prepare.make_accelerator

    def with_scale(*arguments: object) -> Accelerator:
        accelerator = make(*arguments)
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=3e38, backoff_factor=1e-36)
        accelerator.native_amp, accelerator.state._mixed_precision = True, "fp16"
        return accelerator

    monkeypatch.setattr(prepare, "make_accelerator", with_scale)
    few = {"max_train_steps": 3, "gradient_accumulation_steps": 1}
    run, code = train_here(settings(tiny_flux, image_folder, tmp_path, training=few))
    assert code == 0, events(run, "error")
    assert len(rows(run)) == 3 and state_of(run)["ema"]["steps"] == 2


def test_what_is_rescued_is_the_mean_of_the_last_good_step(tiny_flux: Path, image_folder: Path, tmp_path: Path) -> None:
    few = {"max_train_steps": 4, "gradient_accumulation_steps": 1}
    good, _ = train_here(settings(tiny_flux, image_folder, tmp_path, training=few))
    poisoned = {"optimizer": "tests.tiny.poison.Poison"}
    once = {"save_every_n_steps": 9}
    run, code = train_here(settings(tiny_flux, image_folder, tmp_path, training=few, optimizer=poisoned, saving=once))
    assert code == 1
    rescued = lora_of(run, "tiny-step00000002-last-good.safetensors")
    assert same(rescued, lora_of(good, "tiny-step00000002.safetensors"))
