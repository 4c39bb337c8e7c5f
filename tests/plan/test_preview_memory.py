"""The estimate of a preview: its stages, the slot of its LoRAs, what makes it fit, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from backend.base.errors import Refused
from backend.plan.memory.machine import Gpu, named_gpu
from backend.plan.memory.preview import PreviewSearch, PreviewWork, preview_estimate
from backend.preview import carry_out
from backend.preview.loras import LoraChoice
from backend.preview.pipeline import Pipeline
from backend.runs.preview.request import LoraUse, PreviewRequest, Row
from tests.tiny.memory_plans import flux_dev, settings
from tests.tiny.previews import PROMPT, write_lora
from tests.tiny.previews import settings as preview_settings
from tests.tiny.silent_watch import Silent

WORK = PreviewWork(image=4096, text=512, pixels=1024 * 1024)


def test_parts_follow_the_settings_and_the_size() -> None:
    def stages(work: PreviewWork = WORK, **memory: object) -> dict[str, dict[str, int]]:
        made = preview_estimate(settings(memory=memory), work, named_gpu(80), parts=flux_dev())
        return {stage.name: dict(stage.parts) for stage in made.stages}

    plain, nf4 = stages(), stages(base_quantization="nf4", text_encoder_quantization="nf4")
    assert list(plain) == ["encode_text", "sample", "decode_samples"]
    assert plain["sample"]["weights"] == pytest.approx(23.8e9, rel=0.01)
    assert nf4["sample"]["weights"] < 0.35 * plain["sample"]["weights"]
    assert nf4["encode_text"]["weights"] < 0.45 * plain["encode_text"]["weights"]
    swapped = stages(base_quantization="nf4", blocks_to_swap=40)["sample"]
    assert swapped["weights"] + swapped["swap_ring"] < 0.6 * nf4["sample"]["weights"]
    large = stages(replace(WORK, image=4 * WORK.image, pixels=4 * WORK.pixels, lora=1000))
    assert large["sample"]["activations"] > 3 * plain["sample"]["activations"]
    assert large["decode_samples"]["pictures"] == pytest.approx(4 * plain["decode_samples"]["pictures"], rel=0.01)
    assert large["decode_samples"]["lora"] == 1000


def test_what_makes_it_fit_is_a_setting_of_memory() -> None:
    search = PreviewSearch(settings(), WORK, named_gpu(16))
    search.parts = flux_dev()
    nearest = search.nearest()
    assert search.after({}).verdict == "does_not_fit" and nearest is not None and nearest.fits
    assert nearest.values and all(path.startswith("memory.") for path in nearest.values), nearest.values
    assert search.after(nearest.values).verdict == "fits"


def test_the_slot_is_as_large_as_estimated(tiny_flux: Path, tmp_path: Path) -> None:
    files = [
        write_lora(tmp_path / "a.safetensors", tiny_flux, rank=4, form="diffusers"),
        write_lora(tmp_path / "b.safetensors", tiny_flux, rank=8, targets=["attn.to_q"], form="diffusers"),
        write_lora(tmp_path / "c.safetensors", tiny_flux, targets=["attn.to_q"], kind="dora", form="diffusers"),
    ]
    rows = tuple(Row(name=file.stem, loras=(LoraUse(path=str(file)),)) for file in files)
    rows += (Row(name="both", loras=rows[0].loras + rows[1].loras),)
    cfg = preview_settings(tiny_flux)
    work = PreviewWork.of(PreviewRequest(config=cfg, rows=rows, prompts=(PROMPT,)))
    sets = [tuple(LoraChoice(path=Path(use.path)) for use in row.loras) for row in rows]
    pipeline = Pipeline.open(cfg, sets, [], Silent())
    assert pipeline.slot.lora is not None and pipeline.slot.room.rank == 12
    assert work.lora == sum(part.numel() * 4 for part in pipeline.slot.lora.parameters())
    pipeline.close()


def test_weights_that_can_not_fit_are_refused_before_they_load(
    tiny_flux: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = PreviewRequest(config=preview_settings(tiny_flux), rows=(Row(name="x"),), prompts=(PROMPT,))
    monkeypatch.setattr(carry_out, "gpu_of", lambda _: Gpu("GPU", 10**9, 10**8))
    expect = carry_out.expected_memory
    monkeypatch.setattr(carry_out, "expected_memory", lambda asked, _: expect(asked, torch.device("cuda")))
    monkeypatch.setattr("backend.preview.base.PreviewBase.load_text", lambda _: pytest.fail("it was loaded"))
    with pytest.raises(Refused, match="does not fit the GPU"):
        carry_out.carry_out(request, tmp_path / "out", carry_out.Studio(), Silent())
    assert not (tmp_path / "out").exists()
