"""The demo's base model, fine-tuned as a whole without a GPU: it learns the creature."""

from __future__ import annotations

from pathlib import Path

from backend.config.schema import with_values
from backend.demo.__main__ import settings
from tests.tiny.pictures import few
from tests.tiny.training import events, train_here


def test_the_loss_on_held_out_pictures_of_the_concept_halves(tmp_path: Path) -> None:
    cfg = settings()
    (concept,) = (folder for folder in cfg.dataset.folders if folder.path.endswith("/concept"))
    (held_out,) = (folder for folder in cfg.validation.validation_folders if folder.name == "concept")
    values = {
        "training.kind": "full",
        "training.max_train_steps": 68,
        "optimizer.learning_rate": 6e-4,
        "optimizer.lr_warmup": 0.0,
        "dataset.folders": [concept.model_copy(update={"path": few(concept.path, tmp_path / "trained", 4)})],
        "dataset.resolution": 176,
        "dataset.cache_dir": str(tmp_path / "cache"),
        "compile.compile": False,
        "compile.shape_mode": "off",
        "sampling.prompts": [],
        "validation.validation_folders": [
            held_out.model_copy(update={"path": few(held_out.path, tmp_path / "held-out", 4)})
        ],
        "validation.validation_repeats": 1,
        "validation.validation_sigmas": [0.1, 0.35],
        "saving.output_dir": str(tmp_path / "runs"),
        "saving.save_state": False,
    }
    run, code = train_here(with_values(cfg, values))
    assert code == 0, events(run, "error")
    before, after = (event["loss"] for event in events(run, "validation"))
    assert after <= before / 2, (before, after)
    assert (run.checkpoints_dir / "demo.safetensors").stat().st_size > 1_000_000
