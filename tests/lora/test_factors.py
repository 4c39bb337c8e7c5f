"""LoKr and LoHa: their numbers, their files, runs that compile and resume."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from backend.config.layer_patterns import factor_shapes
from backend.config.load import parse
from backend.families.flux.facts import FACTS
from backend.lora.comfyui_keys import linear_layers, names_of
from backend.lora.inject import find_targets, inject
from backend.lora.lokr_loha import FactoredLayer
from backend.lora.save import file_tensors
from tests.tiny import comfy_maps
from tests.tiny.flux import make_tiny_denoiser
from tests.tiny.lora import inputs
from tests.tiny.lora_values import change
from tests.tiny.sdxl import make_tiny_unet
from tests.tiny.training import config, events, lora_of, rows, same, state_of, train_here


@pytest.mark.parametrize(
    ("kind", "rank", "factor"), [("lokr", 2, 2), ("lokr", 2, None), ("lokr", 64, 4), ("loha", 3, None)]
)
def test_a_file_changes_weights_as_training_changed_them(kind: str, rank: int, factor: int | None) -> None:
    model, plain = make_tiny_denoiser(), make_tiny_denoiser()
    names = names_of(linear_layers(model), FACTS)
    targets = find_targets(model, [*FACTS.default_targets, "proj_out", "norm_out.linear"])
    lora = inject(model, targets, rank=rank, alpha=5.0, dropout=0.0, seed=1, kind=kind, factor=factor)
    with torch.no_grad():
        assert torch.equal(model(**inputs()).sample, plain(**inputs()).sample)
        for value in lora.parameters():
            value.normal_(std=0.3, generator=torch.Generator().manual_seed(value.numel()))
    tensors = file_tensors(lora, "fp32", names)
    assert {key.rpartition(".")[0] for key in tensors} <= comfy_maps.flux(2, 2)
    with torch.no_grad():
        for path in targets:
            plain.get_submodule(path).weight += change(tensors, names.factored_name(path))
        wanted = plain(**inputs()).sample
        torch.testing.assert_close(model(**inputs()).sample, wanted, atol=2e-4, rtol=1e-4)
        with lora.scaled(0.0):
            assert torch.equal(model(**inputs()).sample, make_tiny_denoiser()(**inputs()).sample)
        torch.testing.assert_close(model(**inputs()).sample, wanted, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(("kind", "rank", "factor"), [("lokr", 2, None), ("lokr", 64, 4), ("loha", 3, None)])
def test_lycoris_own_loader_adds_what_was_trained(kind: str, rank: int, factor: int | None, tmp_path: Path) -> None:
    """The file as LyCORIS reads it, over the plain model: the same output as that of the trained layers."""
    from lycoris import create_lycoris_from_weights

    model, plain = make_tiny_denoiser(), make_tiny_denoiser()
    names = names_of(linear_layers(model), FACTS)
    targets = find_targets(model, FACTS.default_targets)
    lora = inject(model, targets, rank=rank, alpha=5.0, dropout=0.0, seed=1, kind=kind, factor=factor)
    with torch.no_grad():
        for value in lora.parameters():
            value.normal_(std=0.3, generator=torch.Generator().manual_seed(value.numel()))
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file(file_tensors(lora, "fp32", names), path)
    network, _ = create_lycoris_from_weights(1.0, str(path), plain)
    assert len(network.loras) == len(targets)
    network.apply_to()
    with torch.no_grad():
        wanted, before = model(**inputs()).sample, make_tiny_denoiser()(**inputs()).sample
        torch.testing.assert_close(plain(**inputs()).sample, wanted, atol=2e-4, rtol=1e-4)
        assert (wanted - before).abs().max() > 0.01


def test_sizes_are_lycoris_own() -> None:
    """Of a 3072 x 12288 layer at rank 16: factor 8, and as square as can be; whole where rank saves nothing."""
    assert factor_shapes("lokr", 3072, 12288, 16, 8) == {
        "lokr_w1": (8, 8), "lokr_w2_a": (1536, 16), "lokr_w2_b": (16, 384),
    }  # fmt: skip
    assert factor_shapes("lokr", 3072, 3072, 16)["lokr_w1"] == (48, 48)
    assert factor_shapes("lokr", 64, 64, 4) == {"lokr_w1": (8, 8), "lokr_w2": (8, 8)}
    assert factor_shapes("loha", 10, 20, 4)["hada_w2_b"] == (4, 10)


@pytest.mark.parametrize("kind", ["lokr", "loha"])
def test_convolutions_of_one_pixel(kind: str) -> None:
    model = make_tiny_unet("sd15")
    path = find_targets(model, ["attentions.0.proj_in"])[0]
    frozen = model.get_submodule(path)
    lora = inject(model, [path], rank=2, alpha=2.0, dropout=0.0, seed=1, kind=kind, weight_dtype=torch.bfloat16)
    layer = model.get_submodule(path)
    assert isinstance(layer, FactoredLayer) and all(p.dtype == torch.bfloat16 for p in layer.factors.values())
    x = torch.randn(2, frozen.in_channels, 3, 5)
    assert layer(x).shape == frozen(x).shape
    nn.functional.mse_loss(layer(x), torch.zeros(())).backward()
    lora.collect_gradients()
    assert any(p.grad is not None and p.grad.dtype == torch.float32 and p.grad.any() for p in lora.parameters())


@pytest.mark.parametrize("kind", ["lokr", "loha"])
def test_a_run_makes_the_planned_graphs_and_resumes_exactly(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, kind: str
) -> None:
    """One class of blocks is compiled; training/test_compiled.py has a run of a LoKr with both."""

    def cfg(steps: int, compiled: bool = False):
        return config(
            tiny_flux, image_folder, tmp_path,
            network={"network_type": kind, "network_dim": 2, "targets_include": ["attn.to_q", "attn.to_k"],
                     "layer_settings": [{"layers": "attn.to_k", "learning_rate": 0.02}]},
            compile={"compile": compiled, "compile_backend": "aot_eager", "shape_mode": "static",
                     "compile_blocks": [{"blocks": "double", "compile": False}]},
            optimizer={"lr_scheduler": "constant", "lr_warmup": 0.0},
            training={"max_train_steps": steps},
        )  # fmt: skip

    straight, code = train_here(cfg(4))
    assert code == 0, events(straight, "error")
    graphs, code = train_here(cfg(2, compiled=True))
    assert code == 0, events(graphs, "error")
    last, planned = rows(graphs)[-1], events(graphs, "plan")[0]["graphs"]["planned"]
    assert (last["graphs"], last["recompiles"], last["breaks"]) == (planned, 0, 0) and planned > 0
    assert [row["loss"] for row in rows(graphs)] == pytest.approx([row["loss"] for row in rows(straight)[:2]], rel=1e-4)
    first = {"lokr": "lokr_w2", "loha": "hada_w2_a"}[kind]
    tensors = lora_of(straight)
    assert all(key.startswith("lycoris_") for key in tensors)
    assert any(value.abs().max() > 1e-3 for key, value in tensors.items() if f".{first}" in key)
    if kind == "loha":
        return
    half, _ = train_here(cfg(2))
    half.config_path.write_text(half.config_path.read_text().replace("max_train_steps = 2", "max_train_steps = 4"))
    _, code = train_here(cfg(4), half, resume=True)
    assert code == 0, events(half, "error")
    assert [row["loss"] for row in rows(half)] == [row["loss"] for row in rows(straight)]
    assert same(state_of(half)["lora"], state_of(straight)["lora"])


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"network": {"network_type": "loha"}, "saving": {"save_layout": "diffusers"}}, "saving.save_layout"),
        ({"network": {"network_type": "lokr", "lora_fused": True}}, "network.lora_fused"),
        ({"network": {"lokr_factor": 4}}, "network.lokr_factor"),
    ],
)
def test_what_does_not_go_together_is_said(changes: dict, path: str) -> None:
    assert path in [problem.path for problem in parse(changes).problems]
