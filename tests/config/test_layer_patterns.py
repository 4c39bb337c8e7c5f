"""Rank, alpha and learning rate of single layers, from the settings to the file and the resume state."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors

from backend.base.errors import Refused
from backend.config.layer_patterns import Size, by_rate, sizes
from backend.config.load import parse
from backend.config.schema import Config
from backend.families.flux.facts import FACTS
from backend.lora.inject import find_targets, inject
from backend.plan.memory.estimate import _lora_shapes, _ranks
from tests.tiny.flux import make_tiny_denoiser
from tests.tiny.training import config, events, lora_of, rows, same, state_of, train_here

ROWS = [
    {"layers": r"transformer_blocks\..*", "dim": 2},
    {"layers": "attn.to_k", "alpha": 3.0, "learning_rate": 0.02},
    {"layers": "transformer_blocks.1.attn.to_k", "learning_rate": 0.03, "dim": 6},
]


def network(**values: object) -> Config:
    loaded = parse({"network": {"network_dim": 4, "network_alpha": 2.0, **values}})
    assert loaded.config is not None, [problem.sentence() for problem in loaded.problems]
    return loaded.config


def test_later_rows_win_and_alpha_follows_the_rank() -> None:
    cfg = network(layer_settings=ROWS)
    targets = find_targets(make_tiny_denoiser(), ["attn.to_q", "attn.to_k"])
    layer_sizes = sizes(targets, cfg.network)
    assert layer_sizes["transformer_blocks.0.attn.to_q"] == Size(2, 1.0)
    assert layer_sizes["transformer_blocks.0.attn.to_k"] == Size(2, 3.0, 0.02)
    assert layer_sizes["transformer_blocks.1.attn.to_k"] == Size(6, 9.0, 0.03)
    assert layer_sizes["single_transformer_blocks.0.attn.to_q"] == Size(4, 2.0)
    assert layer_sizes["single_transformer_blocks.0.attn.to_k"] == Size(4, 3.0, 0.02)
    assert [(rate, len(paths)) for rate, paths in by_rate(layer_sizes).items()] == [(None, 4), (0.02, 3), (0.03, 1)]


def test_each_layer_has_its_rank_and_the_estimate_counts_it() -> None:
    cfg = network(layer_settings=ROWS)
    model = make_tiny_denoiser()
    targets = find_targets(model, [*FACTS.default_targets, "proj_out"])
    linear = {path: (model.get_submodule(path).in_features, model.get_submodule(path).out_features) for path in targets}
    layer_sizes = sizes(targets, cfg.network)
    lora = inject(model, targets, rank=4, alpha=2.0, dropout=0.0, seed=1, sizes=layer_sizes)
    for path, size in layer_sizes.items():
        a, b = lora.pair(path)
        assert (a.shape[0], b.shape[1], lora.alpha_of(path)) == (size.rank, size.rank, size.alpha)
        assert lora.layers[path].scaling["default"] == size.alpha / size.rank
    assert sorted(tuple(p.shape) for p in lora.parameters()) == sorted(
        _lora_shapes(linear, _ranks(linear, (), cfg), cfg)
    )


def test_a_pattern_that_fits_no_trained_layer_is_an_error_with_what_is_near() -> None:
    cfg = network(layer_settings=[{"layers": "attn.to_kk", "dim": 2}])
    with pytest.raises(Refused, match=r"attn\.to_k\b"):
        sizes(find_targets(make_tiny_denoiser(), ["attn.to_q", "attn.to_k"]), cfg.network)


def test_a_run_trains_saves_and_resumes_them_exactly(tiny_flux: Path, image_folder: Path, tmp_path: Path) -> None:
    def cfg(steps: int, rows: list[dict] = ROWS) -> Config:
        return config(
            tiny_flux, image_folder, tmp_path,
            network={"layer_settings": rows, "targets_include": ["attn.to_q", "attn.to_k"]},
            training={"max_train_steps": steps},
            optimizer={"lr_scheduler": "constant", "lr_warmup": 0.0},
            saving={"save_layout": "diffusers"},
        )  # fmt: skip

    straight, code = train_here(cfg(4))
    assert code == 0, events(straight, "error")
    half, _ = train_here(cfg(2))
    half.config_path.write_text(half.config_path.read_text().replace("max_train_steps = 2", "max_train_steps = 4"))
    _, code = train_here(cfg(4), half, resume=True)
    assert code == 0, events(half, "error")
    assert [row["loss"] for row in rows(half)] == [row["loss"] for row in rows(straight)]
    assert same(state_of(half)["lora"], state_of(straight)["lora"])
    groups = state_of(straight)["optimizer"]["param_groups"]
    assert [group["initial_lr"] for group in groups] == [0.01, 0.02, 0.03]
    tensors = lora_of(straight)
    assert tensors["transformer.transformer_blocks.1.attn.to_k.lora_A.weight"].shape[0] == 6
    assert tensors["transformer.transformer_blocks.0.attn.to_q.lora_A.weight"].shape[0] == 2
    with safetensors.safe_open(straight.checkpoints_dir / "tiny.safetensors", "pt") as file:
        assert '"dim": 6' in file.metadata()["ss_network_args"]
        # alpha / rank is in B here, and who reads alpha must not scale again
        assert (file.metadata()["ss_network_dim"], file.metadata()["ss_network_alpha"]) == ("4", "4.0")
    other = [{**ROWS[0], "dim": 3}, *ROWS[1:]]
    half.config_path.write_text(half.config_path.read_text().replace("dim = 2", "dim = 3", 1))
    _, code = train_here(cfg(6, other), half, resume=True)
    assert code != 0 and "layer_settings" in str(events(half, "error")[-1])
