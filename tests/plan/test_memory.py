"""The estimate of a run: its stages and parts, verdicts, what auto comes to, and the nearest change that fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.config.schema import Config
from backend.families.files.base_model import BaseModelFiles
from backend.families.flux.facts import FACTS
from backend.families.table import family
from backend.plan.memory.activations import Held
from backend.plan.memory.estimate import RECORDED, RECORDING_WORKSPACES, estimate
from backend.plan.memory.machine import named_gpu
from backend.plan.memory.nearest import Search
from backend.plan.memory.parts import read_parts
from backend.plan.memory.report import against_peak, flags, headline, memory_dict, memory_lines
from backend.plan.memory.work import RunWork
from tests.tiny.memory_plans import WORK, flux_dev, settings

GB = 2**30


def of(cfg: Config, gigabytes: float, work: RunWork = WORK):  # noqa: ANN201 - Estimate
    estimation = estimate(cfg, work, named_gpu(gigabytes), parts=flux_dev())
    assert estimation is not None
    return estimation


def test_flux_dev_by_stage_and_part() -> None:
    estimation = of(settings(), 80)
    by_name = {stage.name: stage.parts for stage in estimation.stages}
    assert list(by_name) == ["encode_text", "encode_pictures", "train", "sample", "decode_samples"]
    assert by_name["train"]["weights"] == pytest.approx(23.8e9, rel=0.01)
    assert by_name["encode_text"]["weights"] == pytest.approx(9.8e9, rel=0.03)
    rank16 = by_name["train"]["lora"]
    assert by_name["train"]["optimizer"] == 2 * rank16 and by_name["train"]["gradients"] == rank16
    assert by_name["train"]["activations"] > by_name["sample"]["activations"] > 0
    assert estimation.peak.name == "train" and estimation.verdict == "fits"


def test_a_mean_of_the_weights_is_counted_with_what_it_takes_the_place_of() -> None:
    with_mean, plain = (of(settings(training={"ema": on}, network={"network_dim": 128}), 80) for on in (True, False))
    lora = plain.stages[-1].parts["lora"]
    assert {stage.name: stage.parts.get("ema", 0) for stage in with_mean.stages} == {
        "encode_text": 0, "encode_pictures": 0, "train": lora, "sample": 2 * lora, "decode_samples": 2 * lora
    }  # fmt: skip
    assert with_mean.peak.total >= plain.peak.total + lora
    assert any("mean of the weights" in line for line in memory_lines(with_mean, None))
    assert not any("mean of the weights" in line for line in memory_lines(plain, None))


def test_recorded_passes_keep_more_than_a_pass_holds_and_two_sets_of_gradients() -> None:
    """In all stages that come after; left to itself a run records only what there is memory for."""
    on, auto = (of(settings(compile={"cuda_graphs": how}), 80) for how in ("on", "auto"))
    training = auto.stage("train").parts
    kept = int(RECORDED * (training["activations"] + training["gradients"])) + 2 * training["gradients"]
    kept += RECORDING_WORKSPACES
    assert {stage.name: stage.parts.get("recordings", 0) for stage in on.stages} == {
        "encode_text": 0, "encode_pictures": 0, "train": kept, "sample": kept, "decode_samples": kept
    }  # fmt: skip
    assert not any("recordings" in stage.parts for stage in auto.stages)
    size = (on.peak.total - 1) / GB
    small = Search(settings(compile={"cuda_graphs": "on"}), WORK, named_gpu(size), flux_dev()).nearest()
    assert small.fits and small.values == {"compile.cuda_graphs": "auto"}


def test_gradients_and_what_is_kept_for_them_are_not_there_at_one_time() -> None:
    assert Held(kept=600, passing=200).beside(340) + 340 == 800
    assert Held(kept=100, passing=200).beside(340) + 340 == 540
    once, summed = (
        of(settings(training={"gradient_checkpointing": True, "gradient_accumulation_steps": steps}), 80)
        .stages[2]
        .parts
        for steps in (1, 2)
    )
    assert summed["activations"] == once["activations"] + once["gradients"]


@pytest.mark.parametrize(("gigabytes", "verdict"), [(80, "fits"), (27, "tight"), (24, "does_not_fit")])
def test_the_verdict_compares_with_the_gpu(gigabytes: float, verdict: str) -> None:
    estimation = of(settings(), gigabytes)
    assert estimation.verdict == verdict
    assert f"{estimation.peak.total / GB:.1f} GB" in headline(estimation) and f"{gigabytes:.1f} GB" in headline(
        estimation
    )


def test_a_limit_makes_the_card_smaller() -> None:
    estimation = of(settings(memory={"vram_limit_gb": 20}), 80)
    assert estimation.room == 20 * GB and estimation.verdict == "does_not_fit" and "limit" in headline(estimation)


def test_without_a_card_nothing_is_claimed() -> None:
    estimation = estimate(settings(), WORK, None, parts=flux_dev())
    assert estimation is not None and estimation.verdict == "unknown" and "no known GPU" in headline(estimation)


def test_every_setting_that_costs_memory_counts() -> None:
    def peak(work: RunWork = WORK, **changes: dict[str, Any]) -> int:
        stage = of(settings(**changes), 80, work).stage("train")
        assert stage is not None
        return stage.allocated

    usual = peak()
    whole = {"gradient_checkpointing": False}
    assert peak(training=whole) > usual + 10e9
    assert peak(training=whole, compile={"compile": False}) > peak(training=whole)
    assert peak(network={"network_dim": 128}) > usual + 1e9
    assert peak(optimizer={"optimizer": "adamw8bit"}) < usual
    assert peak(model={"weight_dtype": "fp32"}) > usual * 1.8
    assert peak(WORK.at_batch(4)) > usual and peak(WORK.at_resolution(1024, 512)) < usual


def test_swapped_blocks_leave_a_ring_on_the_card_and_themselves_in_ram() -> None:
    from backend.plan.memory.swap import device_bytes, swapped_blocks

    before, after = of(settings(), 80), of(settings(memory={"blocks_to_swap": 28, "swap_ring": 3}), 80)
    picked = swapped_blocks({"double": 19, "single": 38}, 28)
    sizes = [339_738_624 * 2] * len(picked["double"]) + [141_557_760 * 2] * len(picked["single"])
    was, now = before.stage("train"), after.stage("train")
    assert was is not None and now is not None
    assert was.parts["weights"] - now.parts["weights"] == sum(sizes) == after.ram["swapped_weights"]
    assert now.parts["swap_ring"] == device_bytes(sizes, 3) == 3 * 339_738_624 * 2
    assert after.ram["loading"] == max(sizes), "a block is in RAM twice while its weights are gathered"


def test_auto_takes_turns_and_tiles_only_where_it_has_to() -> None:
    whole = of(settings(), 80)
    assert whole.settings is not None and not whole.settings.turns and not whole.settings.tiled_decode
    decode = whole.stage("decode_samples")
    assert decode is not None and decode.parts["weights"] > 20e9
    huge = RunWork(WORK.training, 1024**2, sampling=WORK.sampling, sample_pixels=2048**2)
    turns = of(settings(), 28, huge)
    assert turns.settings is not None and turns.settings.turns and not turns.settings.tiled_decode
    assert "denoiser_while_decoding" in turns.ram and turns.stage("decode_samples").parts.get("weights") is None
    tiled = of(settings(), 6, huge)
    assert tiled.settings is not None and tiled.settings.tiled_decode
    never = of(settings(memory={"offload_by_turns": "off", "vae_tiling": "off"}), 6, huge)
    assert never.settings is not None and not never.settings.turns and not never.settings.tiled_decode


def test_copies_of_8_bit_weights_are_counted_and_made_only_where_they_fit() -> None:
    def weights(gigabytes: float, **memory: Any) -> Any:
        return of(settings(memory={"base_compute": "fp8", **memory}), gigabytes).stage("train").parts

    small, fast = weights(80, base_products="small"), weights(80, base_products="fast")
    # modulation, a quarter of FLUX's weights, is not multiplied in 8 bits
    assert small["weights"] == fast["weights"] and 8e9 < fast["weight_copies"] < 0.8 * small["weights"]
    assert "weight_copies" not in small and weights(80) == fast, "auto"
    tight = of(settings(memory={"base_compute": "fp8"}), 18)
    assert tight.settings is not None and not tight.settings.copies and tight.verdict == "fits"
    assert "weight_copies" not in weights(80, blocks_to_swap=20) and "weight_copies" not in weights(
        80, base_compute="int8"
    )
    swapped = weights(80, blocks_to_swap=20, base_products="fast")
    assert swapped["swap_ring"] > 1.5 * weights(80, blocks_to_swap=20)["swap_ring"]
    nearest = Search(settings(memory={"base_compute": "fp8", "base_products": "fast"}), WORK, named_gpu(18), flux_dev())
    assert nearest.nearest().values == {"memory.base_products": "small"}


def test_the_nearest_change_is_the_cheapest_that_fits() -> None:
    cfg = settings(training={"gradient_checkpointing": False})
    nearest = Search(cfg, WORK, named_gpu(32), flux_dev()).nearest()
    assert nearest is not None and nearest.fits and nearest.after.verdict == "fits"
    assert nearest.values == {"training.gradient_checkpointing": True}
    assert flags(nearest.values) == "--gradient_checkpointing true"
    assert "checkpointing" in nearest.words


def test_changes_add_up_over_stages_and_none_is_stronger_than_needed() -> None:
    nearest = Search(settings(), WORK, named_gpu(8), flux_dev()).nearest()
    assert nearest is not None and nearest.fits
    changed = nearest.values
    assert changed["memory.text_encoder_quantization"] == "int8", "NF4 would be more than it takes"
    assert changed["memory.base_quantization"] in ("int8", "nf4") and changed["memory.blocks_to_swap"] < 57
    assert "dataset.resolution" not in changed and "network.network_dim" not in changed
    fewer = {path: value for path, value in changed.items() if path != "memory.blocks_to_swap"}
    after = Search(settings(), WORK, named_gpu(8), flux_dev()).after(fewer)
    assert after is not None and after.verdict != "fits"


def test_what_does_not_fit_the_ram_is_no_way_out() -> None:
    search = Search(settings(), WORK, named_gpu(12), flux_dev(), ram_room=8 * GB)
    nearest = search.nearest()
    assert nearest is None or nearest.after.ram_verdict != "does_not_fit"


def test_ram_that_does_not_suffice_is_reported_with_a_fix() -> None:
    cfg = settings(memory={"blocks_to_swap": 40, "checkpointing_kind": "offload"}, compile={"disable_linear": "off"})
    search = Search(cfg, WORK, named_gpu(24), flux_dev(), ram_room=16 * GB)
    estimation, nearest = search.after({}), search.nearest()
    assert estimation is not None and estimation.gpu_verdict == "fits" and estimation.verdict == "does_not_fit"
    needs = f"the run needs {estimation.ram_total / GB:.1f} GB of RAM, and this machine has 16.0 GB"
    assert headline(estimation) == f"Does not fit: {needs}."
    assert nearest is not None and nearest.fits and nearest.values["memory.blocks_to_swap"] < 40
    assert " GB of video memory and " in (line := memory_lines(estimation, nearest)[-1]) and "of RAM are needed" in line


def test_no_change_is_offered_that_the_rules_refuse_or_a_later_one_undoes() -> None:
    whole = {"compile_scope": "model", "compile": True, "shape_mode": "off"}
    cfg = settings(training={"gradient_checkpointing": False}, compile=whole)
    nearest = Search(cfg, WORK, named_gpu(16), flux_dev()).nearest()
    assert nearest is not None and nearest.values.keys() & {"memory.base_quantization"}
    assert not nearest.values.keys() & {"training.gradient_checkpointing", "memory.blocks_to_swap"}
    hopeless = Search(settings(), WORK, named_gpu(2), flux_dev()).nearest()
    assert hopeless is not None and hopeless.words.count("keep the base model in") == 1


def test_what_fits_needs_no_change_and_what_can_not_fit_is_told() -> None:
    assert Search(settings(), WORK, named_gpu(80), flux_dev()).nearest() is None
    hopeless = Search(settings(), WORK, named_gpu(2), flux_dev()).nearest()
    assert hopeless is not None and not hopeless.fits
    estimation = of(settings(), 2)
    assert "Nothing makes it fit" in memory_lines(estimation, hopeless)[-1]


def test_three_settings_in_order_of_cost_with_what_they_save() -> None:
    cfg = settings(training={"gradient_checkpointing": False}, dataset={"batch_size": 4}, network={"network_dim": 64})
    work = WORK.at_batch(4)
    changes = Search(cfg, work, named_gpu(24), flux_dev()).cheapest()
    assert len(changes) == 3 and all(saved > 0 for _, saved in changes)
    assert len({path for change, _ in changes for path in change.values}) >= 3, "three settings, not one three times"
    before = estimate(cfg, work, None, parts=flux_dev())
    for change, saved in changes:
        after = Search(cfg, work, None, flux_dev()).after(change.values)
        assert before is not None and after is not None and before.peak.total - after.peak.total == saved


@pytest.mark.parametrize(
    ("stage", "first"),
    [("encode_text", "memory.text_encoder_quantization"), ("encode_pictures", "memory.vae_tiling")],
)
def test_settings_are_those_of_the_stage_that_ran_out(stage: str, first: str) -> None:
    work = RunWork(WORK.training, 2048 * 2048)
    (change, saved), *others = Search(settings(), work, named_gpu(24), flux_dev()).cheapest(stages=(stage,))
    assert list(change.values) == [first] and saved > GB
    assert {path for other, _ in others for path in other.values} <= {"dataset.resolution"}, "no encoder has a LoRA"


def test_of_a_setting_the_value_that_is_enough_is_offered() -> None:
    least = {"base_quantization": "nf4", "checkpointing_kind": "offload"}
    cfg = settings(memory=least, optimizer={"optimizer": "adamw8bit"})
    search = Search(cfg, WORK, named_gpu(8), flux_dev())
    few, many = (search.cheapest(stages=("train",), need=need)[0] for need in (GB // 2, 3 * GB))
    assert few[0].values["memory.blocks_to_swap"] < many[0].values["memory.blocks_to_swap"]
    assert many[1] >= 3 * GB > few[1]


def test_a_run_on_the_cpu_needs_ram() -> None:
    estimation = estimate(settings(), WORK, None, parts=flux_dev(), on_gpu=False)
    assert estimation is not None and estimation.ram_total > 4 * flux_dev().denoiser.count
    swapping = settings(memory={"blocks_to_swap": 28}, compile={"disable_linear": "off"})
    swapped = estimate(swapping, WORK, None, parts=flux_dev(), on_gpu=False)
    assert swapped is not None and swapped.ram_total > estimation.ram_total, "what is swapped is in RAM all the same"


def test_parts_are_read_from_the_files_of_a_model(tiny_flux: Path) -> None:
    from backend.lora.inject import find_targets
    from backend.plan.memory.parts import trained_layers
    from tests.tiny.flux import make_tiny_denoiser

    parts = read_parts(family("flux"), BaseModelFiles(tiny_flux))
    assert parts is not None
    model = make_tiny_denoiser()
    assert parts.denoiser.count == sum(p.numel() for p in model.parameters())
    assert [block.kind for block in parts.denoiser.blocks] == ["double"] * 2 + ["single"] * 2
    targets = [*FACTS.default_targets, "proj_out"]
    assert set(trained_layers(parts.denoiser, targets, ["to_k"])) == set(find_targets(model, targets, ["to_k"]))
    assert parts.vae > 0 and parts.vae_width == 8 and set(parts.texts) == {"text_encoder", "text_encoder_2"}
    assert read_parts(family("flux"), BaseModelFiles(tiny_flux / "nowhere")) is None


def test_the_estimate_as_data_and_beside_a_peak() -> None:
    cfg = settings()
    document = memory_dict(of(cfg, 24), Search(cfg, WORK, named_gpu(24), flux_dev()).nearest())
    assert (
        document["verdict"] == "does_not_fit" and document["nearest"]["values"] and document["card"]["total"] == 24 * GB
    )
    train = next(stage for stage in document["stages"] if stage["name"] == "train")
    assert sum(part["bytes"] for part in train["parts"]) == train["allocated"] < train["total"]
    assert against_peak(int(14.2 * GB), int(13.8 * GB)) == "estimated 14.2 GB, peak 13.8 GB (+3 %)"
