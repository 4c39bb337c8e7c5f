"""Clips and control images of the preview: those of a run's own samples, swapped LoRAs, and what can't be drawn."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from backend.base.errors import Refused
from backend.preview.loras import LoraChoice
from backend.preview.pipeline import Pipeline
from tests.tiny.flux import kontext_base
from tests.tiny.previews import PROMPT, settings, write_lora
from tests.tiny.silent_watch import Silent

FIXTURES = {"qwen_image_edit_plus": "tiny_qwen_edit_plus", "flux_kontext": "tiny_flux"}
FAMILIES = ["wan", "wan_i2v", "wan22_5b", "hunyuan_video", "framepack", "flux_kontext", "qwen_image_edit_plus"]
COMPILED = {"wan_i2v", "hunyuan_video", "qwen_image_edit_plus"}
NEED = {"wan_i2v", "framepack", "qwen_image_edit_plus"}
CLIP = PROMPT.model_copy(update={"width": 64, "height": 32, "frames": 5, "steps": 2})


def frames_in(path: Path) -> tuple[list[np.ndarray], dict[str, str]]:
    with av.open(str(path)) as container:
        shown = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        return shown, dict(container.metadata)


def picture(path: Path, seed: int = 1) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 255, (48, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.mark.parametrize("name", FAMILIES)
def test_loras_swap_without_a_recompile_and_control_images_count(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    base: Path = request.getfixturevalue(FIXTURES.get(name, f"tiny_{name}"))
    if name == "flux_kontext":
        base = kontext_base(base, tmp_path / "base")
    path = write_lora(tmp_path / "x.safetensors", base, name, rank=2, alpha=1)
    # where nothing is compiled, the arithmetic is that of the families that are
    compiled = {"compile": name in COMPILED, "compile_backend": "eager", "compile_cache_dir": str(tmp_path / "cache")}
    cfg = settings(base, name, compile=compiled)
    prompt, other = CLIP, CLIP
    if name in NEED or "kontext" in name:
        images = [str(picture(tmp_path / f"{seed}.png", seed)) for seed in (1, 2)]
        prompt, other = (CLIP.model_copy(update={"control_image": image}) for image in images)
    sets = [(LoraChoice(path=path),), (LoraChoice(path=path, strength=0.5),), ()]
    pipeline = Pipeline.open(cfg, sets, [prompt], Silent())
    drawn = [pipeline.draw(prompt, choices, Silent()).numpy() for choices in sets]
    graphs = pipeline.stats().graphs
    again = pipeline.draw(other, sets[0], Silent()).numpy()
    stats = pipeline.stats()
    assert (stats.graphs, stats.recompiles, stats.breaks) == (graphs, 0, 0) and (graphs > 0) is (name in COMPILED)
    video = pipeline.base.video
    assert drawn[0].shape == ((3, 37 if name == "framepack" else 5, 32, 64) if video else (3, 32, 64))
    assert len({each.tobytes() for each in drawn}) == 3
    assert (again.tobytes() == drawn[0].tobytes()) is (other is prompt), "the control image has no effect"
    wrong = CLIP if name in NEED else CLIP.model_copy(update={f"control_image{n}": "x" for n in ("", "_2")})
    with pytest.raises(Refused, match="starts from a control image" if name in NEED else "control images, and 2"):
        pipeline.draw(wrong, (), Silent())
    pipeline.close()
