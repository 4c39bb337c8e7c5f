"""The runtime of a run comes from its real config and plan, and rules what torch is told."""

from pathlib import Path

import pytest
import torch

from backend.config.load import parse
from backend.dataset.scan import scan_dataset
from backend.models.family_classes import load_family
from backend.plan.make_plan import plan_for
from backend.shapes.shape_runtime import ShapeRuntime


def planned(tiny_flux: Path, images: Path, **compile_settings) -> tuple:
    loaded = parse(
        {
            "model": {"base_model": str(tiny_flux), "text_length": 32},
            "dataset": {"folders": [{"path": str(images)}], "resolution": 64, "min_bucket_size": 32},
            "compile": compile_settings,
            "sampling": {"prompts": [{"prompt": "a cat", "width": 64, "height": 64}]},
        }
    )
    assert loaded.config is not None, loaded.problems
    return loaded.config, plan_for(loaded.config, scan_dataset(loaded.config))


@pytest.mark.parametrize("mode", ["static", "exact_buckets", "dynamic", "off"])
def test_runtime_follows_config_and_plan(tiny_flux: Path, image_folder: Path, mode: str) -> None:
    config, plan = planned(tiny_flux, image_folder, shape_mode=mode)
    shapes = ShapeRuntime.from_plan(config, plan, "cpu", torch.float32)
    assert shapes.mode == mode and shapes.text_length == 32 and shapes.route.name == "sdpa"
    longest = max(fit.bucket.tokens for fit in plan.fits)
    rows = [torch.zeros(longest - 2, 4)], [torch.zeros(32, 4)]
    packed = shapes.pack(*rows)
    assert packed.image_size == (plan.static_token_count if mode == "static" else longest - 2)
    assert (packed.mask is not None) == (mode == "static")
    assert shapes.compile_dynamic("true") == {"dynamic": "auto", "exact_buckets": "false"}.get(mode, "true")
    assert shapes.longest >= longest + 32


def test_static_without_any_padding_needs_no_mask(tiny_flux: Path, tmp_path: Path) -> None:
    """Every picture and sample has 16 tokens: plain attention is legal, and the graph count stays the plan's."""
    from tests.conftest import draw_pictures

    images = draw_pictures(tmp_path / "square", ((64, 64), (64, 64)))
    config, plan = planned(tiny_flux, images)
    shapes = ShapeRuntime.from_plan(config, plan, "cpu", torch.float32)
    assert plan.static_token_count == 16 and shapes.padding is False
    assert shapes.pack([torch.zeros(16, 4)], [torch.zeros(32, 4)]).mask is None
    assert shapes.pack([torch.zeros(12, 4)], [torch.zeros(32, 4)]).mask is not None, "what is padded is always masked"


def test_route_without_kernel_stops_the_run_by_name(tiny_flux: Path, image_folder: Path) -> None:
    config, plan = planned(tiny_flux, image_folder, attention="flash2")
    with pytest.raises(ValueError, match="attention = flash2 cannot be used: flash2 attention needs an NVIDIA GPU"):
        ShapeRuntime.from_plan(config, plan, "cpu", torch.float32)


def test_unknown_mode_and_missing_count_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown shape mode 'fixed'"):
        ShapeRuntime("fixed")
    with pytest.raises(ValueError, match="static needs static_token_count"):
        ShapeRuntime("static")


def test_only_graphs_of_open_sizes_leave_out_what_a_fusion_gains() -> None:
    """Only a card's kernels have that fusion: here it is seen that inductor is told, and untold for fixed sizes."""
    from tests.tiny.shapes import denoiser_with_lora

    model = denoiser_with_lora()
    for shapes in (ShapeRuntime("dynamic"), ShapeRuntime("static", 32), ShapeRuntime("dynamic"), ShapeRuntime("off")):
        shapes.install(model, load_family("flux").install)
        assert torch._inductor.config.triton.mix_order_reduction_non_strict_mode is (shapes.mode == "dynamic")


def test_syncs_are_not_counted_on_a_cpu() -> None:
    from backend.compile.device_syncs import counted_syncs

    with counted_syncs(torch.device("cpu")) as syncs:
        torch.ones(1).item()
    assert syncs.count is None


def test_a_run_on_a_cpu_writes_no_count_of_waits() -> None:
    from backend.compile.device_syncs import SyncSampler

    sampler = SyncSampler(torch.device("cpu"))
    for _ in range(SyncSampler.FIRST):
        sampler.begin()
        assert sampler.end() is None


@pytest.mark.gpu
def test_waits_are_counted_on_some_steps_and_told_for_those_between() -> None:
    from backend.compile.device_syncs import SyncSampler

    sampler = SyncSampler(torch.device("cuda"))
    value, messages = torch.ones(1, device="cuda"), []
    for _ in range(SyncSampler.FIRST + 2):
        sampler.begin()
        value.item()
        messages.append(sampler.end())
    assert messages == [None] * (SyncSampler.FIRST - 1) + [1, 1, 1]
    assert torch.cuda.get_sync_debug_mode() == 0


@pytest.mark.gpu
def test_syncs_of_a_step_are_counted_and_predict_makes_none() -> None:
    from backend.compile.device_syncs import counted_syncs
    from tests.tiny.shapes import denoiser_with_lora, make_batch

    model, predict = denoiser_with_lora().cuda(), load_family("flux").predict
    batch = make_batch([(8, 8), (8, 12)]).to("cuda", torch.float32)
    shapes = ShapeRuntime("static", 32)
    predict(model, batch.noisy, batch.sigma, batch.text, 1.0, shapes)
    with counted_syncs(torch.device("cuda")) as syncs:
        out = predict(model, batch.noisy, batch.sigma, batch.text, 1.0, shapes)
    assert syncs.count == 0
    with counted_syncs(torch.device("cuda")) as syncs:
        out[0].sum().item()
    assert syncs.count == 1
