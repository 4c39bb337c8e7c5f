"""scale_weight_norms: sd-scripts' own formula, in layers of all kinds, from the settings to the file and the row."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors
import torch
from torch import Tensor, nn

from backend.config.layer_patterns import Size
from backend.config.schema import Config
from backend.config.toml_io import dump
from backend.lora.inject import Lora, find_targets, inject
from backend.lora.max_norm import NormLimit
from tests.tiny.lora import trained
from tests.tiny.sdxl import make_tiny_unet
from tests.tiny.training import config, events, rows, same, state_of, train_here

LIMIT = 0.05


def change(down: Tensor, up: Tensor, scale: float) -> Tensor:
    """alpha / rank B A, as `apply_max_norm_regularization` of sd-scripts' networks/lora.py makes it."""
    if down.ndim == 2:
        return up @ down * scale
    if down.shape[2:] == (1, 1):
        return (up[:, :, 0, 0] @ down[:, :, 0, 0])[..., None, None] * scale
    return nn.functional.conv2d(down.permute(1, 0, 2, 3), up).permute(1, 0, 2, 3) * scale


def regularised(down: Tensor, up: Tensor, scale: float, most: float) -> tuple[Tensor, Tensor, float, bool]:
    """Its A and B of a layer, the norm that it logs, and whether it counts the layer."""
    whole = change(down, up, scale)
    norm = whole.norm().clamp(min=most / 2)
    ratio = norm.clamp(max=most) / norm
    return down * ratio**0.5, up * ratio**0.5, float(whole.norm() * ratio), bool(ratio != 1)


def convolved() -> Lora:
    """Linear layers and convolutions of both sizes, each with its own rank and alpha, B of many sizes."""
    model = make_tiny_unet("sd15")
    targets = find_targets(model, ["conv1", "conv_shortcut", "attn2.to_k"])
    own = {path: Size(2 + number % 3, 1.0 + number % 4) for number, path in enumerate(targets)}
    lora = inject(model, targets, rank=4, alpha=4.0, dropout=0.0, seed=1, sizes=own)
    source = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for number, path in enumerate(targets):
            lora.pair(path)[1].normal_(std=10.0 ** -(number % 4), generator=source)
    return lora


def filled() -> Lora:
    return trained(uneven=True)[1]


@pytest.mark.parametrize(("make", "limit"), [(convolved, 0.3), (filled, 1.0), (filled, 100.0)])
def test_layers_above_the_limit_are_scaled_back_as_in_sd_scripts(make, limit: float) -> None:
    lora = make()
    before = {path: tuple(half.detach().clone() for half in lora.pair(path)) for path in lora.layers}
    norms = NormLimit(lora, limit)
    norms.apply()
    logged, counted = [], 0
    for path, pair in before.items():
        *wanted, norm, scaled = regularised(*pair, lora.scale_of(path), limit)
        for actual, half, old in zip(lora.pair(path), wanted, pair, strict=True):
            torch.testing.assert_close(actual.detach(), half, rtol=1e-5, atol=1e-7)
            assert scaled or torch.equal(actual, old)
        logged.append(norm)
        counted += scaled
    figures = {name: value.item() for name, value in norms.figures.items()}
    mean = sum(logged) / len(logged)
    assert figures == {
        "layers_scaled": counted,
        "norm_mean": pytest.approx(mean),
        "norm_max": pytest.approx(max(logged)),
    }
    assert (0 < counted < len(logged)) == (make is convolved) and max(logged) <= limit * (1 + 1e-5)


def test_a_lora_that_has_not_begun_is_left_as_it_is() -> None:
    lora = inject(make_tiny_unet("sd15"), ["conv_in"], rank=2, alpha=2.0, dropout=0.0, seed=1)
    before = lora.pair("conv_in")[0].detach().clone()
    NormLimit(lora, 1.0).apply()
    assert torch.equal(lora.pair("conv_in")[0], before) and not lora.pair("conv_in")[1].any()


@pytest.mark.gpu
def test_nothing_waits_for_the_device() -> None:
    model, lora = trained()
    model.cuda()
    norms = NormLimit(lora, 1e-3)
    torch.cuda.set_sync_debug_mode("error")
    try:
        norms.apply()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert norms.figures["norm_max"].is_cuda


def cfg(base: Path, images: Path, where: Path, steps: int, dtype: str = "fp32", limit: float | None = LIMIT) -> Config:
    return config(
        base, images, where,
        network={"lora_weight_dtype": dtype, "targets_include": ["attn.to_q", "ff.net.2"],
                 **({"scale_weight_norms": limit} if limit else {})},
        training={"max_train_steps": steps},
        optimizer={"lr_scheduler": "constant", "lr_warmup": 0.0, "learning_rate": 0.01},
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_run_keeps_to_the_limit_tells_so_and_resumes_exactly(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, dtype: str
) -> None:
    """float32 beside a run without limit; bf16, whose state has all of float32's and the masters, resumed."""
    whole = cfg(tiny_flux, image_folder, tmp_path, 4, dtype)
    straight, code = train_here(whole)
    assert code == 0, events(straight, "error")
    left = {path: norm_of(straight, path) for path in layers(straight)}
    assert max(left.values()) == pytest.approx(LIMIT, rel=1e-4)
    last = rows(straight)[-1]
    assert last["norm_max"] == pytest.approx(max(left.values()), rel=1e-5)
    assert last["norm_mean"] == pytest.approx(sum(left.values()) / len(left), rel=1e-4)
    assert 0 < last["layers_scaled"] <= len(left)
    with safetensors.safe_open(straight.checkpoints_dir / "tiny.safetensors", "pt") as file:
        assert file.metadata()["ss_scale_weight_norms"] == str(LIMIT)
    if dtype == "fp32":
        free, _ = train_here(cfg(tiny_flux, image_folder, tmp_path, 4, dtype, None))
        assert max(norm_of(free, path) for path in layers(free)) > 1.2 * LIMIT
        assert rows(free)[-1]["layers_scaled"] is None
        return
    half, _ = train_here(cfg(tiny_flux, image_folder, tmp_path, 2, dtype))
    dump(whole, half.config_path, whole=True)
    _, code = train_here(whole, half, resume=True)
    assert code == 0, events(half, "error")
    assert [row["loss"] for row in rows(half)] == [row["loss"] for row in rows(straight)]
    assert same(state_of(half)["lora"], state_of(straight)["lora"])
    assert same(state_of(half)["optimizer"], state_of(straight)["optimizer"])


def layers(run) -> list[str]:
    return [name.removesuffix(".lora_A.weight") for name in state_of(run)["lora"] if name.endswith("lora_A.weight")]


def norm_of(run, path: str) -> float:
    """Of a layer's change in the state; alpha / rank is 2 / 4."""
    lora = state_of(run)["lora"]
    return float(change(lora[f"{path}.lora_A.weight"], lora[f"{path}.lora_B.weight"], 0.5).norm())
