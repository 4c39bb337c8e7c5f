"""Pictures of the preview: those of training's own sampler, and with swapped LoRAs those of a model loaded for each."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from PIL import Image
from rich.console import Console

from backend.base.errors import Refused
from backend.config.layer_patterns import Kind
from backend.config.packages import load_problem
from backend.config.schema import Config, with_values
from backend.families.files.base_model import BaseModelFiles
from backend.families.table import family
from backend.latents.cache import Words
from backend.models.common.load_options import LoadOptions
from backend.models.common.text_layers import encoders_of, text_layers
from backend.models.family_classes import load_family
from backend.preview import loras
from backend.preview.__main__ import main
from backend.preview.loras import LoraChoice
from backend.preview.pipeline import Choices, Pipeline
from backend.training.sampling import to_picture
from tests.tiny.previews import PROMPT, settings, write_lora
from tests.tiny.silent_watch import Silent
from tests.tiny.training import config, train_here

FEW = ["attn2.to_k"]
TRACED = {"sd15": None, "sd3": ["attn.to_v"], "anima": [r".*attn\d\.to_v"], "qwen_image": ["attn.to_v"]}


@pytest.fixture(scope="session")
def files(once: Callable[[str, Callable[[Path], object]], Path], tiny_flux: Path) -> dict[str, Choices]:
    """Sets of LoRAs that differ in rank, alpha, targets and layout, by name."""

    def make(folder: Path) -> None:
        folder.mkdir()
        write_lora(folder / "whole.safetensors", tiny_flux, rank=4, alpha=2)
        write_lora(folder / "wide.safetensors", tiny_flux, rank=8, alpha=8, targets=["attn.to_q"], seed=2)
        write_lora(folder / "odd.safetensors", tiny_flux, rank=3, alpha=1, targets=["proj_mlp", "ff.net.2"], seed=3)
        write_lora(folder / "one.safetensors", tiny_flux, rank=1, alpha=4, form="diffusers", seed=4)

    folder = once("preview_loras", make)

    def chosen(*names: str, strength: float = 1.0) -> Choices:
        return tuple(LoraChoice(path=folder / f"{name}.safetensors", strength=strength) for name in names)

    return {
        "whole": chosen("whole"),
        "wide": chosen("wide"),
        "half": chosen("wide", strength=0.5),
        "odd": chosen("odd"),
        "one": chosen("one"),
        "two": chosen("wide", "odd"),
        "none": (),
    }


def fresh(cfg: Config, choices: Choices, size: tuple[int, int] = (64, 64)) -> Image.Image:
    """The picture of a model that is loaded for these LoRAs alone."""
    pipeline = Pipeline.open(cfg, [choices], [], Silent())
    try:
        return draw(pipeline, choices, size)
    finally:
        pipeline.close()


def draw(pipeline: Pipeline, choices: Choices, size: tuple[int, int] = (64, 64)) -> Image.Image:
    prompt = PROMPT.model_copy(update={"width": size[0], "height": size[1]})
    return to_picture(pipeline.draw(prompt, choices, Silent()))


def test_swapped_loras_draw_the_pictures_of_a_model_loaded_for_each(tiny_flux: Path, files: dict[str, Choices]) -> None:
    cfg = settings(tiny_flux)
    pipeline = Pipeline.open(cfg, list(files.values()), [PROMPT], Silent())
    assert pipeline.slot.room.rank == 8 and pipeline.fits([files["two"]])
    drawn = {name: draw(pipeline, choices) for name, choices in files.items()}
    again = {name: draw(pipeline, files[name]) for name in reversed(files)}
    pipeline.close()
    assert {name: each.tobytes() for name, each in drawn.items()} == {n: each.tobytes() for n, each in again.items()}
    # each file is in one of these, and each way of having less than another
    for name in ("whole", "half", "one", "two", "none"):
        assert drawn[name].tobytes() == fresh(cfg, files[name]).tobytes(), name
    assert len({picture.tobytes() for picture in drawn.values()}) == len(files)


def test_a_file_of_many_is_not_read_again_for_every_prompt(
    tiny_flux: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write_lora(tmp_path / f"{number}.safetensors", tiny_flux, targets=["attn.to_q"]) for number in range(5)]
    reads: list[Path] = []
    read = loras.read_lora
    monkeypatch.setattr(loras, "read_lora", lambda path, names: (reads.append(path), read(path, names))[1])
    prompts = [PROMPT.model_copy(update={"prompt": words}) for words in ("a dot", "a ring", "a line")]
    pipeline = Pipeline.open(settings(tiny_flux), [(LoraChoice(path=path),) for path in paths], prompts, Silent())
    pipeline.close()
    # once for the room that it needs, and once for the prompts
    assert reads == [*paths, *paths]


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_blocks_serve_all_loras_and_sizes_with_the_graphs_of_the_first_picture(
    tiny_flux: Path, files: dict[str, Choices], tmp_path: Path, backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Inductor with the double blocks: test_swap.py has it with single ones, while they train."""
    compiled = {"compile": True, "compile_backend": backend, "compile_cache_dir": str(tmp_path / "cache")}
    if backend == "inductor":
        compiled["compile_blocks"] = [{"blocks": "single", "compile": False}]
    cfg = settings(tiny_flux, compile=compiled)
    some = ["wide", "half", "odd"]
    with caplog.at_level(logging.INFO):
        pipeline = Pipeline.open(cfg, [files[name] for name in some], [PROMPT], Silent())
    assert ("the compiler was readied" in caplog.text) == (backend == "inductor")
    first = draw(pipeline, files["wide"])
    graphs = pipeline.stats().graphs
    assert graphs == (1 if backend == "inductor" else 2) and pipeline.compiled.report.state == "compiled"
    drawn = {(name, size): draw(pipeline, files[name], size) for name in some for size in ((64, 64), (96, 64))}
    stats = pipeline.stats()
    assert (stats.graphs, stats.recompiles, stats.breaks, stats.limit_hits) == (graphs, 0, 0, 0)
    assert drawn["wide", (64, 64)].tobytes() == first.tobytes()
    pipeline.close()
    if backend == "eager":
        assert drawn["odd", (96, 64)].tobytes() == fresh(cfg, files["odd"], (96, 64)).tobytes()


@pytest.mark.parametrize("kind", ["lokr", "loha", "dora"])
def test_other_kinds_are_merged_said_and_taken_back(
    tiny_flux: Path, files: dict[str, Choices], tmp_path: Path, kind: Kind
) -> None:
    path = write_lora(tmp_path / f"{kind}.safetensors", tiny_flux, targets=["attn.to_q", "ff.net.2"], kind=kind)
    cfg, notes = settings(tiny_flux), Notes()
    merged = (LoraChoice(path=path),)
    pipeline = Pipeline.open(cfg, [merged, files["one"]], [PROMPT], notes)
    before = draw(pipeline, files["one"]).tobytes()
    changed = draw(pipeline, merged).tobytes()
    assert draw(pipeline, files["one"]).tobytes() == before != changed
    pipeline.close()
    assert [note for note in notes.said if f"{kind}.safetensors" in note and "merged" in note]
    # as training merges such a file into its base
    base = settings(tiny_flux, network={"base_weights": [str(path)]})
    assert fresh(base, ()).tobytes() == changed


def test_a_merged_kind_is_refused_where_weights_are_quantized(tiny_flux: Path, tmp_path: Path) -> None:
    path = write_lora(tmp_path / "x.safetensors", tiny_flux, targets=["attn.to_q"], kind="loha")
    cfg = settings(tiny_flux, memory={"base_quantization": "int8"})
    with pytest.raises(Refused, match="quantized"):
        fresh(cfg, (LoraChoice(path=path),))


@pytest.mark.parametrize(("kind", "swapped"), [("none", 2), ("int8", 0), ("fp8", 0), ("nf4", 2)])
def test_loras_swap_on_quantized_and_streamed_weights(
    tiny_flux: Path, files: dict[str, Choices], tmp_path: Path, kind: str, swapped: int
) -> None:
    if kind == "nf4" and load_problem("bitsandbytes"):
        pytest.skip(load_problem("bitsandbytes"))
    cfg = settings(tiny_flux, memory={"base_quantization": kind, "blocks_to_swap": swapped})
    # of each way of holding weights one is compiled: those as they are, swapped, in test_clips.py
    traced = kind in ("int8", "nf4")
    compiled = {"compile": traced, "compile_backend": "eager", "compile_cache_dir": str(tmp_path / "cache")}
    pipeline = Pipeline.open(
        with_values(cfg, {f"compile.{name}": value for name, value in compiled.items()}),
        # of few layers, since each is traced
        [files["wide"], files["odd"]],
        [PROMPT],
        Silent(),
    )
    drawn = {name: draw(pipeline, files[name]).tobytes() for name in ("wide", "odd")}
    stats = pipeline.stats()
    pipeline.close()
    # a graph for each block class, whatever its weights are kept in and wherever they wait
    assert (stats.graphs, stats.recompiles, stats.breaks) == (2 * traced, 0, 0)
    assert fresh(cfg, files["odd"]).tobytes() == drawn["odd"] != drawn["wide"]
    plain = fresh(settings(tiny_flux), files["odd"]).tobytes()
    assert (plain == drawn["odd"]) == (kind == "none")


def test_loras_of_text_encoders_change_the_prompt(tiny_sdxl: Path, tmp_path: Path) -> None:
    both, text = (tmp_path / f"{name}.safetensors" for name in ("both", "text"))
    write_lora(both, tiny_sdxl, "sdxl", rank=2, alpha=2, targets=FEW, text=True)
    keys = {key: value for key, value in safetensors.torch.load_file(both).items() if key.startswith("lora_te")}
    safetensors.torch.save_file(keys, text)
    sets = [(LoraChoice(path=path),) for path in (both, text)]
    cfg = settings(tiny_sdxl, "sdxl")
    pipeline = Pipeline.open(cfg, [*sets, ()], [PROMPT], Silent())
    assert pipeline.text_room.rank == 4
    drawn = [draw(pipeline, choices).tobytes() for choices in (*sets, (), sets[0])]
    pipeline.close()
    assert drawn[0] == drawn[3] and len(set(drawn)) == 3
    assert fresh(cfg, sets[0]).tobytes() == drawn[0] and fresh(cfg, sets[1]).tobytes() == drawn[1]


@pytest.mark.parametrize(
    ("name", "file_name"),
    [
        ("flux", "lora_te3_{flat}"),
        ("flux", "text_encoder_2.{path}"),
        ("qwen_image", "lora_te_{flat}"),
        ("qwen_image", "text_encoder.model.language_model.{path}"),
    ],
)
def test_loras_of_t5_and_qwen_act_as_if_merged_and_are_taken_back(
    name: str, file_name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    base: Path = request.getfixturevalue(f"tiny_{name}")
    layers = text_layers(BaseModelFiles.at(base), family(name))
    source, tensors, pairs = torch.Generator().manual_seed(3), {}, {}
    for layer, (inner, outer) in layers.items():
        word, _, path = layer.partition(".")
        if word not in ("te3", "te"):
            continue
        key = file_name.format(path=path, flat=path.replace(".", "_"))
        pairs[layer] = torch.randn(3, inner, generator=source) * 0.3, torch.randn(outer, 3, generator=source) * 0.3
        tensors |= {f"{key}.lora_A.weight": pairs[layer][0], f"{key}.lora_B.weight": pairs[layer][1]}
        tensors[f"{key}.alpha"] = torch.tensor(1.5)
    file = tmp_path / "text.safetensors"
    safetensors.torch.save_file(tensors, file)
    choices, notes = (LoraChoice(path=file, strength=0.5),), Notes()
    cfg = settings(base, name)
    pipeline = Pipeline.open(cfg, [choices, ()], [PROMPT], notes)
    drawn = [draw(pipeline, each).tobytes() for each in (choices, (), choices)]
    encoded = pipeline.prompts.encode(Words(PROMPT.prompt, 16), choices)["prompt_embeds"]
    plain = pipeline.prompts.encode(Words(PROMPT.prompt, 16), ())["prompt_embeds"]
    pipeline.close()
    assert drawn[0] == drawn[2] != drawn[1] and not notes.said and pipeline.text_room.rank == 4
    if file_name.startswith("lora_te"):
        # what the layers are called in the file is nothing to a picture
        assert fresh(cfg, choices).tobytes() == drawn[0] and fresh(cfg, ()).tobytes() == drawn[1]
    # the same numbers as encoders whose weights were changed by hand
    stack = load_family(name).load_text(BaseModelFiles.at(base), LoadOptions(torch.float32, torch.device("cpu")))
    encoders = encoders_of(stack, family(name))
    for layer, (a, b) in pairs.items():
        encoders.get_submodule(layer).weight.data += 0.5 * (1.5 / 3) * (b @ a)
    (merged,) = stack.encode([PROMPT.prompt], 16)
    torch.testing.assert_close(encoded.float(), merged["prompt_embeds"].float(), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(encoded.float(), plain.float(), atol=1e-2)


def test_a_preview_of_a_run_draws_the_samples_that_the_run_drew(
    tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    prompt = {"prompt": "a red circle", "width": 96, "height": 64, "steps": 3, "true_cfg_scale": 2.0}
    sampling = {"prompts": [prompt, {**prompt, "seed": 8, "lora_scale": 0.5}], "sample_at_end": True}
    cfg = config(
        tiny_flux, image_folder, tmp_path, sampling=sampling,
        training={"max_train_steps": 2}, compile={"compile": False, "shape_mode": "off"},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0
    out = tmp_path / "out"
    arguments = ["--run", str(run.path), "--out", str(out), "--shape_mode", "off"]
    assert main(arguments, Console(file=io.StringIO())) == 0
    drawn = [sample.path for sample in run.samples() if sample.step == 2]
    for number, sample in enumerate(drawn, 1):
        with Image.open(sample) as theirs, Image.open(out / f"01-{number:02d}.png") as ours:
            assert ours.tobytes() == theirs.tobytes()
            assert ours.info["parameters"] == theirs.info["parameters"]
            facts = json.loads(ours.info["monotile"])
            assert (facts["run"], facts["step"], facts["loras"][0]["strength"]) == (run.name, 2, 1.0)
            assert str(tmp_path) not in ours.info["monotile"]
    assert len(drawn) == 2


class Notes(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.parametrize("name", TRACED)
def test_every_family_that_needs_a_prompt_alone_draws(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    base: Path = request.getfixturevalue(f"tiny_{name}")
    # of few layers, since each is traced; the graphs of a UNet are counted below
    path = write_lora(tmp_path / "x.safetensors", base, name, targets=TRACED[name])
    compiled = {"compile": name != "sd15", "compile_backend": "eager", "compile_cache_dir": str(tmp_path / "cache")}
    cfg = settings(base, name, compile=compiled)
    pipeline = Pipeline.open(cfg, [(LoraChoice(path=path),), ()], [PROMPT], Silent())
    prompt = PROMPT.model_copy(update={"width": 128, "true_cfg_scale": 2.0, "negative_prompt": "a dot"})
    drawn = [to_picture(pipeline.draw(prompt, choices, Silent())) for choices in ((LoraChoice(path=path),), ())]
    graphs = pipeline.stats().graphs
    # other sizes, standing and square, need no graph more and break none
    for size in ((64, 128), (128, 128)):
        draw(pipeline, (), size)
    stats = pipeline.stats()
    pipeline.close()
    assert (stats.graphs, stats.recompiles, stats.breaks) == (graphs, 0, 0) and (graphs > 0) is (name != "sd15")
    assert drawn[0].size == (128, 64) and drawn[0].tobytes() != drawn[1].tobytes()
    assert all(len(picture.getcolors(128 * 64) or []) > 8 for picture in drawn)


def test_a_unet_has_the_same_graphs_for_all_sizes(tiny_sdxl: Path, tmp_path: Path) -> None:
    sets = [
        (LoraChoice(path=write_lora(tmp_path / f"{rank}.safetensors", tiny_sdxl, "sdxl", rank=rank, targets=FEW)),)
        for rank in (4, 8)
    ]
    compiled = {"compile": True, "compile_backend": "eager", "compile_cache_dir": str(tmp_path / "cache")}
    pipeline = Pipeline.open(settings(tiny_sdxl, "sdxl", compile=compiled), sets, [], Silent())
    for size in ((128, 128), (192, 128), (128, 256)):
        for choices in sets:
            draw(pipeline, choices, size)
    stats = pipeline.stats()
    pipeline.close()
    assert (stats.graphs, stats.recompiles, stats.breaks) == (2, 0, 0)
