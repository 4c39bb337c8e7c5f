"""Compiled runs: the loss of an eager one, the planned graphs and no more, and a word when nothing is compiled."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors

from backend.config.schema import Config
from backend.runs.control import Control
from backend.runs.folder import Run
from tests.tiny.training import config, events, lora_of, rows, same, train_here


@pytest.fixture(scope="session")
def compile_cache(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """One compile cache for all tests here."""
    return once("compile_cache", lambda folder: folder.mkdir(parents=True))


# A LoRA on one or two layers a block class: as many graphs, compiled in half the time. The demo's run traces all.
FEW = {"targets_include": ["attn.to_q", "proj_mlp"]}


def settings(base: Path, images: Path, where: Path, compile: dict, between: bool = True, **network: object) -> Config:
    """Three things between steps that run without gradient, at other steps each, on the mean of the weights.

    between: whether these are there.
    """
    prompt = {"prompt": "a red circle", "width": 64, "height": 64, "steps": 2}
    more: dict[str, dict] = {
        "dataset": {"validation_split": 0.25},
        "sampling": {"prompts": [prompt], "sample_every_n_steps": 3},
        "validation": {"validate_every_n_steps": 4},
    }
    return config(
        base, images, where, compile=compile,
        network={"network_dim": 4, "network_alpha": 2.0, **FEW, **network},
        training={"max_train_steps": 5, "gradient_accumulation_steps": 2, "ema": True},
        **(more if between else {}),
    )  # fmt: skip


def assert_as_planned(run: Run, graphs: int = 4) -> None:
    planned = events(run, "plan")[0]["graphs"]["planned"]
    last = rows(run)[-1]
    assert (last["graphs"], last["recompiles"], last["breaks"]) == (planned, 0, 0) and planned == graphs
    assert last["compile_seconds"] > 0 and last["limit_hits"] == 0
    assert not events(run, "recompile") and not events(run, "graph_break")
    assert not [event for event in events(run, "warning") if "graph" in event["text"]]


@pytest.mark.slow
def test_inductor_gives_the_eager_loss_the_planned_graphs_and_a_warm_second_start(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, compile_cache: Path
) -> None:
    """The double blocks' graphs that train.

    test_swap.py has the single blocks', and test_pipeline.py of the preview those without gradients.
    """
    eager, code = train_here(settings(tiny_flux, image_folder, tmp_path, {"compile": False}, between=False))
    assert code == 0
    compiled = {"compile": True, "compile_cache_dir": str(compile_cache)}
    compiled["compile_blocks"] = [{"blocks": "single", "compile": False}]
    for start in ("cold", "warm"):
        run, code = train_here(settings(tiny_flux, image_folder, tmp_path, compiled, between=False))
        assert code == 0, events(run, "error")
        assert [row["loss"] for row in rows(run)] == pytest.approx([row["loss"] for row in rows(eager)], rel=1e-4)
        assert_as_planned(run, graphs=1)
        hits, misses = rows(run)[-1]["cache_hits"], rows(run)[-1]["cache_misses"]
        assert hits + misses > 0 and (start == "cold" or misses == 0)
        phases = [event["phase"] for event in events(run, "phase")]
        assert phases.index("compile") < phases.index("train")
        # compile time is in no step's time
        first = rows(run)[0]
        assert first["s_per_step"] is None and first["compile_seconds"] > 0
        assert all("_orig_mod" not in key for key in lora_of(run))


@pytest.mark.parametrize(
    ("kind", "names"), [("lora", ("network_dropout", "rank_dropout", "module_dropout")), ("lokr", ("module_dropout",))]
)
def test_dropout_under_compile_costs_no_graph_and_draws_as_eager(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, kind: str, names: tuple[str, ...]
) -> None:
    """aot_eager traces as inductor does and draws dropout as eager mode does, so the losses can be compared.

    Each dropout changes the loss by itself; together they are those of the eager run. One block class is traced, whose
    blocks have two of the layers; test_graphs.py counts the graphs of both classes with dropout.
    """

    def trained(compile: dict, *dropped: str) -> Run:
        options = {"network_type": kind, **dict.fromkeys(dropped, 0.3)}
        # what runs between steps is another reason for graphs: one of the kinds is enough for it
        between = kind == "lora" and dropped == names
        cfg = settings(tiny_flux, image_folder, tmp_path, compile, between, **options)
        run, code = train_here(cfg)
        assert code == 0, events(run, "error")
        return run

    eager = trained({"compile": False}, *names)
    traced = {"compile": True, "compile_backend": "aot_eager"}
    run = trained({**traced, "compile_blocks": [{"blocks": "double", "compile": False}]}, *names)
    assert [row["loss"] for row in rows(run)] == pytest.approx([row["loss"] for row in rows(eager)], rel=1e-5)
    assert_as_planned(run, graphs=2 if kind == "lora" else 1)
    without = trained({"compile": False})
    for each in names:
        alone = eager if names == (each,) else trained({"compile": False}, each)
        assert rows(without)[0]["loss"] == pytest.approx(rows(alone)[0]["loss"])
        assert rows(without)[-1]["loss"] != pytest.approx(rows(alone)[-1]["loss"], rel=1e-6)
    with safetensors.safe_open(run.checkpoints_dir / "tiny.safetensors", "pt") as file:
        metadata = file.metadata()
    dropouts = {"network_dropout": float(metadata["ss_network_dropout"]), **json.loads(metadata["ss_network_args"])}
    assert {name: dropouts.get(name) for name in names} == dict.fromkeys(names, 0.3)


def test_without_a_compiler_the_run_says_so_and_trains_eagerly(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager, _ = train_here(settings(tiny_flux, image_folder, tmp_path, {"compile": False}))
    monkeypatch.setenv("CXX", "no-such-compiler")
    run, code = train_here(settings(tiny_flux, image_folder, tmp_path, {"compile": True}))
    assert code == 0 and same(lora_of(run), lora_of(eager))
    (warning,) = [event for event in events(run, "warning") if "compile" in event["text"]]
    assert "eager" in warning["text"] and warning["remedy"]
    assert events(run, "compile")[0]["state"] == "fallback"
    assert rows(run)[-1]["graphs"] == 0


def test_shapes_that_a_short_run_never_meets_are_no_warning(
    tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    fixed = {"compile": True, "compile_backend": "eager", "compile_dynamic": "false", "shape_mode": "off"}
    run, code = train_here(config(tiny_flux, image_folder, tmp_path, compile=fixed, training={"max_train_steps": 1}))
    assert code == 0, events(run, "error")
    assert 0 < rows(run)[-1]["graphs"] < events(run, "plan")[0]["graphs"]["planned"]
    assert not [event for event in events(run, "warning") if "graph" in event["text"]]


def test_incomplete_batches_swap_and_offload_make_the_planned_graphs(
    tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    """An epoch of 8 pictures in batches of 3, 3 and 2; one double block is eager.

    Graphs, guards and recompiles are dynamo's, whatever the backend: test_swap.py and test_checkpointing.py have
    aot_eager's under swap and under offload, and test_graphs.py a block with a backend of its own.
    """
    cfg = config(
        tiny_flux, image_folder, tmp_path, network=FEW,
        compile={"compile": True, "compile_backend": "eager",
                 "compile_blocks": [{"blocks": "double:0", "compile": False}]},
        dataset={"batch_size": 3, "sample_ratio": 0.99}, training={"max_train_steps": None, "max_train_epochs": 1},
        memory={"checkpointing_kind": "offload", "blocks_to_swap": 2},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    planned, last = events(run, "plan")[0]["graphs"]["planned"], rows(run)[-1]
    assert (last["graphs"], last["recompiles"], last["breaks"]) == (planned, 0, 0) and planned > 0
    assert not events(run, "recompile")


def test_blocks_that_train_other_layers_or_ranks_have_planned_graphs_of_their_own(
    tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    """Blocks with and without a LoRA; with another rank, and with another strength: a rate of its own costs nothing.

    Each of the three is seen in one block class.
    """
    double, single = "transformer_blocks.1.attn.to_q", "single_transformer_blocks.1.proj_mlp"
    ranks = [{"layers": single, "dim": 2, "alpha": 2.0}, {"layers": double, "learning_rate": 0.02}]
    strengths = [{"layers": single, "alpha": 1.0}, {"layers": single.replace("1", "0"), "learning_rate": 0.02}]
    for network, eager, graphs in (
        ({"targets_include": [double, "proj_mlp"], "layer_settings": ranks}, [], 4),
        ({**FEW, "layer_settings": strengths}, [{"blocks": "double", "compile": False}], 2),
    ):
        compile = {"compile": True, "compile_backend": "eager", "compile_blocks": eager or None}
        network = {"network_dim": 4, "network_alpha": 2.0, **network}
        run, code = train_here(
            config(tiny_flux, image_folder, tmp_path, compile=compile, network=network, training={"max_train_steps": 2})
        )
        assert code == 0, events(run, "error")
        (plan,), last = events(run, "plan"), rows(run)[-1]
        assert (plan["graphs"]["planned"], last["graphs"], last["recompiles"]) == (graphs, graphs, 0), network
        assert not events(run, "recompile") and not [e for e in events(run, "warning") if "graph" in e["text"]]


def test_a_sample_that_is_asked_for_is_no_alarm(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run draws nothing by itself, so that the plan before the start has no graphs for it."""
    prompt = {"prompt": "a red circle", "width": 64, "height": 64, "steps": 1}
    cfg = config(
        tiny_flux, image_folder, tmp_path, compile={"compile": True, "compile_backend": "eager"},
        dataset={"batch_size": 2}, sampling={"prompts": [prompt], "sample_at_end": False},
        training={"max_train_steps": 3}, network=FEW,
    )  # fmt: skip
    begin = Run.begin_generation

    def asking(self: Run, step: int = 0) -> int:
        generation = begin(self, step)
        Control(self).request("sample")
        return generation

    monkeypatch.setattr(Run, "begin_generation", asking)
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    assert events(run, "plan")[0]["graphs"]["planned"] == 2 and len(events(run, "sample")) == 1
    assert not events(run, "recompile")
    assert [event["planned"] for event in events(run, "compile") if "planned" in event] == [2, 4]
    assert (rows(run)[-1]["graphs"], rows(run)[-1]["recompiles"]) == (4, 0)


def test_compile_that_silently_does_nothing_is_an_error(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    run, code = train_here(
        settings(tiny_flux, image_folder, tmp_path, {"compile": True, "compile_backend": "aot_eager"})
    )
    assert code == 1
    assert "no graph was made" in events(run, "error")[0]["text"]


def test_a_recompile_after_the_warm_up_is_an_alarm_with_its_true_cause(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the third step on, rows are padded further than planned: exact as ever, but another shape."""
    from backend.shapes.shape_runtime import ShapeRuntime
    from gui.run_view import RunView

    planned, calls = ShapeRuntime.image_size, []

    def grown(self: ShapeRuntime, lengths: list[int]) -> int:
        calls.append(lengths)
        return planned(self, lengths) + (16 if len(calls) > 2 else 0)

    monkeypatch.setattr(ShapeRuntime, "image_size", grown)
    traced = {"compile": True, "compile_backend": "eager", "compile_blocks": [{"blocks": "double", "compile": False}]}
    cfg = config(tiny_flux, image_folder, tmp_path, compile=traced, network=FEW, training={"max_train_steps": 4})
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    assert [(row["graphs"], row["recompiles"]) for row in rows(run)] == [(1, 0), (1, 0), (2, 1), (2, 1)]
    assert rows(run)[2]["s_per_step"] is None
    facts, _ = RunView(run).facts()
    size = (
        facts["plan"]["graphs"]["shapes"]["training"][0]["image_tokens"] if "shapes" in facts["plan"]["graphs"] else 16
    )
    (recompile,) = facts["recompiles"]
    assert recompile["reason"] == f"image tokens went from {size} to {size + 16}" and recompile["block"] == "single"
    assert recompile["setting"] == f"static_token_count = {size + 16} or more" and recompile["planned"] == 1
    (warning,) = [event["text"] for event in events(run, "warning") if "planned" in event["text"]]
    assert "1 graphs were planned, 2 were made" in warning and f"from {size} to {size + 16}" in warning
