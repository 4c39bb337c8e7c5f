"""A folder to publish, asked for on the page."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import save_file

from tests.gui.conftest import Page, make_run


def test_a_folder_is_made_in_the_run_and_an_earlier_one_stays(page: Page) -> None:
    run = make_run(page.runs)
    stem = "lora_unet_double_blocks_0_img_attn_proj"
    halves = {f"{stem}.lora_down.weight": torch.ones(2, 8), f"{stem}.lora_up.weight": torch.ones(8, 2)}
    save_file(halves, run.checkpoints_dir / "fox.safetensors", {"ss_sd_model_name": "/home/jane/flux.safetensors"})
    Image.new("RGB", (32, 16), "red").save(run.samples_dir / "step_000030_0.png")
    (run.path / "publish" / "fox").mkdir(parents=True)
    assert page.client.get("/publish").json() == {"state": "idle"}
    wish = {"run": run.name, "file": "fox.safetensors", "license": "--mit", "title": "My fox"}
    assert page.client.post("/publish", json={**wish, "run": "gone"}).status_code == 404
    assert page.client.post("/publish", json={**wish, "file": "../run.json"}).status_code == 404
    assert page.client.post("/publish", json=wish).status_code == 200
    assert page.client.post("/publish", json=wish).status_code == 409
    end = time.monotonic() + 120
    while (state := page.client.get("/publish").json())["state"] == "running" and time.monotonic() < end:
        time.sleep(0.1)
    assert state["state"] == "done", state
    folder = Path(state["folder"])
    assert folder == run.path / "publish" / "fox-2" and (run.path / "publish" / "fox").is_dir()
    assert state["files"] == ["README.md", "fox.png", "fox.safetensors", "samples.png"]
    assert "finite" in state["checked"] and any("base model" in note for note in state["notes"])
    assert 'license_name: "--mit"' in (folder / "README.md").read_text("utf-8")
    assert b"jane" not in (folder / "fox.safetensors").read_bytes()
