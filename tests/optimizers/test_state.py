"""State of every optimizer by name: its size as stated, and back bit by bit; weights to use and weights to train."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from backend.config.layer_patterns import factor_shapes
from backend.optimizers import build
from backend.optimizers.state import ExactState, rate, weights_to_use
from backend.plan.memory.optimizer_bytes import KINDS, StateBytes, state_bytes, trained_bytes
from backend.training.requests import Requests
from tests.tiny.training import config, events, lora_of, same, state_of, train_here

# Large enough for 8-bit states; the small one stays below bitsandbytes' limit.
SHAPES = [(16, 512), (512, 16), (4, 8)]
pytestmark = pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")


def parameters(device: str = "cpu") -> list[nn.Parameter]:
    source = torch.Generator().manual_seed(0)
    return [nn.Parameter((torch.randn(shape, generator=source) * 0.1).to(device)) for shape in SHAPES]


def made(name: str, params: list[nn.Parameter]) -> torch.optim.Optimizer:
    speed = 1.0 if name == "prodigy" else 1e-3
    return build.make_optimizer(name, params, learning_rate=speed, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8)


def step(params: list[nn.Parameter], optimizer: torch.optim.Optimizer, number: int) -> None:
    source = torch.Generator().manual_seed(number)
    for parameter in params:
        parameter.grad = (torch.randn(parameter.shape, generator=source) * 0.01).to(parameter.device)
    optimizer.step()
    optimizer.zero_grad()


def check_resume(name: str, device: str) -> None:
    straight, optimizer = (params := parameters(device)), made(name, params)
    for number in range(3):
        step(straight, optimizer, number)
    buffer = io.BytesIO()
    torch.save(ExactState(optimizer).state_dict(), buffer)
    buffer.seek(0)
    resumed = [nn.Parameter(parameter.detach().clone()) for parameter in straight]
    other = made(name, resumed)
    ExactState(other).load_state_dict(torch.load(buffer, map_location="cpu", weights_only=True))
    for number in range(3, 6):
        step(straight, optimizer, number)
        step(resumed, other, number)
    assert same(straight, resumed)
    assert same(optimizer.state_dict()["state"], other.state_dict()["state"])


@pytest.mark.parametrize("name", sorted(build.OPTIMIZERS))
def test_every_optimizer_goes_on_bit_by_bit(name: str) -> None:
    check_resume(name, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(build.OPTIMIZERS))
def test_every_optimizer_goes_on_bit_by_bit_on_the_card(name: str) -> None:
    pytest.importorskip(build.OPTIMIZERS[name].partition(".")[0])
    check_resume(name, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.paged])
def test_paged_state_is_paged_again_after_a_resume(name: str) -> None:
    pytest.importorskip("bitsandbytes")
    params = [nn.Parameter(torch.ones(512, 256, device="cuda"))]
    optimizer = made(name, params)
    step(params, optimizer, 0)
    assert optimizer.state[params[0]]["state1"].is_paged
    resumed = [nn.Parameter(params[0].detach().clone())]
    other = made(name, resumed)
    saved = io.BytesIO()
    torch.save(optimizer.state_dict(), saved)
    saved.seek(0)
    ExactState(other).load_state_dict(torch.load(saved, map_location="cpu", weights_only=True))
    assert other.state[resumed[0]]["state1"].is_paged
    step(params, optimizer, 1)
    step(resumed, other, 1)
    assert same(params, resumed)


@pytest.mark.parametrize("name", sorted(build.OPTIMIZERS))
def test_stated_bytes_are_what_the_optimizer_keeps(name: str) -> None:
    params = parameters()
    optimizer = made(name, params)
    step(params, optimizer, 0)
    # single numbers and the 8-bit code books, which all tensors share, are not counted
    kept = {
        tensor.data_ptr(): tensor.nbytes
        for state in optimizer.state.values()
        for key, tensor in state.items()
        if isinstance(tensor, torch.Tensor) and tensor.ndim and not key.startswith("qmap")
    }
    assert state_bytes(name, SHAPES).total == sum(kept.values())


def test_bytes_of_paged_states_and_of_masters() -> None:
    assert set(KINDS) == set(build.OPTIMIZERS)
    shapes = list(factor_shapes("lora", 3072, 12288, 16).values())
    assert shapes == [(16, 3072), (12288, 16)]
    # A is below the 100,000 elements from which bitsandbytes pages
    large = 12288 * 16
    assert state_bytes("paged_adamw", shapes) == StateBytes(8 * (large + 49152), 8 * large)
    assert state_bytes("adamw", shapes, {"amsgrad": True}).total == 12 * (large + 49152)
    bare = {"weights": 36, "gradients": 36, "optimizer": 0, "ema": 0}
    assert trained_bytes("sgd", [(2, 3)], weight_dtype="bf16") == bare
    assert trained_bytes("sgd", [(2, 3)], weight_dtype="bf16", ema=True) == bare | {"ema": 24}


def test_what_a_class_path_keeps_in_bf16_comes_back_in_bf16() -> None:
    class Halved(torch.optim.SGD):
        def step(self, closure: object = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                held = self.state[parameter].setdefault("held", torch.zeros_like(parameter, dtype=torch.bfloat16))
                held.add_(parameter.grad.bfloat16())
                parameter.data.sub_(held, alpha=0.1)

    params = parameters()
    optimizer = Halved(params, lr=0.1)
    step(params, optimizer, 0)
    other = Halved(params, lr=0.1)
    ExactState(other).load_state_dict(optimizer.state_dict())
    assert other.state[params[0]]["held"].dtype == torch.bfloat16
    assert same(other.state_dict()["state"], optimizer.state_dict()["state"])


@pytest.mark.parametrize("name", ["adamw_schedulefree", "radam_schedulefree", "adamw"])
def test_weights_to_use_leave_no_trace_in_training(name: str) -> None:
    watched, plain = parameters(), parameters()
    one, other = made(name, watched), made(name, plain)
    for number in range(8):
        step(watched, one, number)
        step(plain, other, number)
        calls: list[int] = []
        with weights_to_use(one, watched, lambda counted=calls: counted.append(1)):
            apart = not torch.equal(watched[0], plain[0])
        assert len(calls) == (0 if name == "adamw" else 2) and same(watched, plain)
    assert apart == (name != "adamw")
    assert same(one.state_dict(), other.state_dict())


def test_the_rate_of_prodigy_is_its_own() -> None:
    params = parameters()
    optimizer = made("prodigy", params)
    before = rate(optimizer)
    for _ in range(8):
        step(params, optimizer, 1)
    assert 1e-6 == before < rate(optimizer) == optimizer.param_groups[0]["d"] * optimizer.param_groups[0]["lr"]
    assert rate(made("adamw", params)) == 1e-3


def test_schedule_free_run_goes_on_and_saves_the_averaged_weights(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validated and sampled on the way, stopped and resumed: the bytes of a run that did none of this."""

    def cfg(**more: object) -> object:
        return config(
            tiny_flux, image_folder, tmp_path,
            optimizer={"optimizer": "AdamWScheduleFree", "lr_scheduler": "constant", "learning_rate": 0.02},
            training={"max_train_steps": 6},
            **more,
        )  # fmt: skip

    straight, code = train_here(cfg())
    assert code == 0, events(straight, "error")
    looks: list[int] = []

    def stop(self: Requests) -> bool:
        looks.append(1)
        return len(looks) > 4

    monkeypatch.setattr(Requests, "stop", property(stop))
    monkeypatch.setattr(Requests, "check", lambda self: None)
    seen = {
        "sampling": {"prompts": [{"prompt": "a dog", "width": 32, "height": 32, "steps": 2}]},
        "validation": {"validation_folders": [{"path": str(image_folder), "name": "same"}]},
    }
    looked = cfg(
        saving={"save_every_n_steps": 1},
        sampling={**seen["sampling"], "sample_every_n_steps": 2},
        validation={**seen["validation"], "validate_every_n_steps": 2},
    )  # fmt: skip
    run, code = train_here(looked)
    monkeypatch.undo()
    assert code == 0 and run.status().state == "stopped", events(run, "error")
    _, code = train_here(looked, run, resume=True)
    assert code == 0, events(run, "error")
    assert same(lora_of(run), lora_of(straight)) and same(state_of(run)["lora"], state_of(straight)["lora"])
    assert same(state_of(run)["optimizer"], state_of(straight)["optimizer"])
    trained = state_of(run)["lora"]
    name = next(key for key in trained if "ff.net.2.lora_A" in key)
    saved = lora_of(run)["lora_unet_double_blocks_0_img_mlp_2.lora_down.weight"]
    assert saved.shape == trained[name].shape and not torch.equal(saved, trained[name])

    # what was measured and drawn is the file's LoRA, and no other
    seen["sampling"]["sample_at_start"] = seen["validation"]["validate_at_start"] = True
    file = {"network_dim": 4, "network_alpha": 2.0, "network_weights": str(run.checkpoints_dir / "tiny.safetensors")}
    once = {"network": file, "training": {"max_train_steps": 1}, **seen}
    after, code = train_here(config(tiny_flux, image_folder, tmp_path, **once))
    assert code == 0, events(after, "error")
    measured = events(run, "validation")
    assert events(after, "validation")[0]["loss"] == pytest.approx(measured[-1]["loss"], rel=1e-6)
    # that of step 2 was ended by the stop
    assert [event["step"] for event in measured] == [4, 6] and measured[-1]["loss"] != measured[0]["loss"]
    first, last = (np.asarray(Image.open(one.path)).astype(int) for one in (after.samples()[0], run.samples()[-1]))
    assert np.abs(first - last).max() <= 1
