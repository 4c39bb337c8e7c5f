"""What lies in assets/demo: small enough, a real pipeline, and pictures that can be trained and measured on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from PIL import Image

from backend.families.flux.facts import FACTS
from tests.tiny.scripts import run_script

DEMO = Path(__file__).resolve().parents[2] / "assets" / "demo"
BASE = DEMO / "base"
MB = 1024 * 1024
TRAINED = ("concept", "world")
HELD_OUT = ("held-out-concept", "held-out-base")


def pictures(folder: str) -> list[Path]:
    return sorted((DEMO / folder).glob("*.png"))


def caption(picture: Path) -> str:
    return picture.with_suffix(".txt").read_text(encoding="utf-8").strip()


def test_it_is_small_enough_for_a_repository() -> None:
    sizes = {
        path: path.stat().st_size for path in DEMO.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }
    assert sum(sizes.values()) <= 25 * MB
    assert {path.name for path, size in sizes.items() if size > 16 * MB} == set()


def test_the_base_is_a_whole_flux_pipeline() -> None:
    assert FACTS.check_base_model(BASE) == []
    assert FACTS.geometry(BASE).pixels_per_token == 16


@pytest.mark.slow
def test_the_base_loads_in_diffusers_from_local_files_and_draws() -> None:
    import torch
    from diffusers import FluxPipeline

    pipeline = FluxPipeline.from_pretrained(BASE, local_files_only=True, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    drawn = pipeline(
        "a red house in the meadow", width=192, height=192, num_inference_steps=8, guidance_scale=1.0,
        max_sequence_length=64, generator=torch.Generator("cpu").manual_seed(1),
    ).images[0]  # fmt: skip
    # A trained model draws a picture: neighbouring pixels belong together, which noise and flat grey don't.
    pixels = torch.frombuffer(bytearray(drawn.tobytes()), dtype=torch.uint8).view(192, 192, 3).float()
    spread, step = float(pixels.std()), float((pixels[:, 1:] - pixels[:, :-1]).abs().mean())
    assert spread > 20
    assert step < 0.5 * spread


def test_the_concept_has_captioned_pictures_of_many_shapes() -> None:
    images = pictures("concept")
    assert 20 <= len(images) <= 40
    assert len({round(w / h, 2) for w, h in (Image.open(path).size for path in images)}) >= 6
    assert all("zorbl" in caption(path) for path in images)


@pytest.mark.parametrize("folder", [*TRAINED, *HELD_OUT])
def test_every_picture_has_a_caption_that_fits_the_text_length(folder: str) -> None:
    images = pictures(folder)
    assert len(images) >= 8
    assert all(caption(path) for path in images)
    assert not [path for path in (DEMO / folder).glob("*.txt") if not path.with_suffix(".png").is_file()]


def test_only_the_concept_names_it() -> None:
    assert all("zorbl" in caption(path) for path in pictures("held-out-concept"))
    assert not [path for folder in ("world", "held-out-base") for path in pictures(folder) if "zorbl" in caption(path)]


def test_nothing_that_is_measured_is_trained() -> None:
    def digests(folders: tuple[str, ...]) -> set[str]:
        return {hashlib.sha256(p.read_bytes()).hexdigest() for folder in folders for p in pictures(folder)}

    assert not digests(TRAINED) & digests(HELD_OUT)


def test_the_record_says_how_the_base_was_made() -> None:
    record = json.loads((DEMO / "demo.json").read_text(encoding="utf-8"))
    assert {"seed", "device", "versions", "licence"} <= set(record)
    base = record["base"]
    assert base["steps"] > 0 and base["loss"] > 0
    # what the base was not made with is harder for it, at every noise level
    assert all(base["loss_concept"][sigma] > loss for sigma, loss in base["loss_held_out"].items())


@pytest.mark.slow
def test_the_script_makes_a_pipeline_that_loads(tmp_path: Path) -> None:
    tiny = ["--tiny", "--steps", "2", "--vae-steps", "2", "--pictures", "24", "--batch", "2", "--vae-batch", "2"]
    run_script(DEMO / "make_demo.py", "--out", str(tmp_path), *tiny)
    assert FACTS.check_base_model(tmp_path / "base") == []

    import torch
    from diffusers import FluxPipeline

    pipeline = FluxPipeline.from_pretrained(tmp_path / "base", local_files_only=True, dtype=torch.float32)
    assert pipeline.transformer.config.num_single_layers > 0
    assert {"concept", "world", "held-out-concept", "held-out-base", "demo.json", "look.png"} <= {
        path.name for path in tmp_path.iterdir()
    }
