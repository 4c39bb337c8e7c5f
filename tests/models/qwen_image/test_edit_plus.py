"""Qwen-Image-Edit-2509 and -2511 (qwen_image_edit_plus): several control pictures, as diffusers' pipeline has them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import QwenImageEditPlusPipeline
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus
from PIL import Image

from backend.config.schema import Config
from backend.config.sections.model import ModelSection
from backend.dataset.items import DatasetScan, Item, Scan
from backend.dataset.references import References
from backend.dataset.scan import scan
from backend.dataset.scan_state import FolderSpec
from backend.families.files.base_model import BaseModelFiles
from backend.families.qwen_image.edit_facts import ASKED, TEMPLATE_TOKENS
from backend.families.qwen_image.edit_facts import EDIT_PLUS as FACTS
from backend.families.table import PIPELINES, family
from backend.latents.identity import text_identity
from backend.lora.comfyui_keys import split_key
from backend.memory import checkpointing
from backend.models.family_classes import load_family
from backend.plan.graphs import Shape
from backend.plan.make_plan import make_plan, plan_for
from backend.plan.memory.work import work_of
from backend.plan.texts import token_counter
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny import comfy_maps, originals
from tests.tiny.block_graphs import planned_graphs_are_observed
from tests.tiny.forward import Batch
from tests.tiny.graph_subjects import SUBJECTS
from tests.tiny.plan_items import TEN_SIZES, items_of
from tests.tiny.qwen_edit import CAPTIONS, CPU, picture, pipeline_of, theirs
from tests.tiny.qwen_edit import settings as edit_settings
from tests.tiny.qwen_forward import EVERY_LAYER, GARBAGE, LENGTHS, SIZES, make_batch, model_with_lora, ours
from tests.tiny.qwen_image import LATENT_CHANNELS, make_tiny_denoiser
from tests.tiny.qwen_runs import PROMPT, TRACED, single_files
from tests.tiny.shapes import assert_equal_runs
from tests.tiny.training import events, lora_of, rows, straight_run_that_a_resumed_one_repeats, train_here

ROW = family("qwen_image_edit_plus")
CODE = load_family(ROW.name)
# latents of the control pictures of each row
CONTROLS = [[(8, 8)], [(6, 10), (4, 4)], [(12, 4), (4, 6), (8, 8)]]
AREA = 64


def shown(count: int) -> list[Image.Image]:
    return [picture(*size, seed) for seed, size in enumerate([(64, 64), (448, 320), (96, 300)][:count])]


def test_captions_with_pictures_are_what_the_pipeline_tells_its_denoiser(tiny_qwen_edit_plus: Path) -> None:
    pipeline = pipeline_of(tiny_qwen_edit_plus, QwenImageEditPlusPipeline)
    assert (pipeline.prompt_template_encode, pipeline.prompt_template_encode_start_idx) == (ASKED, TEMPLATE_TOKENS)
    stack, counted = (
        CODE.load_text(tiny_qwen_edit_plus, CPU),
        token_counter(tiny_qwen_edit_plus, FACTS),
    )
    seen = ROW.picture_tokens(tiny_qwen_edit_plus)
    for count, caption in enumerate(CAPTIONS, 1):
        pictures = shown(count)
        encoding = stack.encode_with_pictures(caption, pictures, 512)["prompt_embeds"]
        with torch.no_grad():
            wanted, mask = pipeline.encode_prompt(caption, pictures, device="cpu")
        before = sum(seen(*each.size) for each in pictures)
        assert mask is None and encoding.shape[0] == before + counted(caption)
        torch.testing.assert_close(encoding, wanted[0], atol=1e-6, rtol=1e-5)
        assert stack.encode_with_pictures(caption, pictures, 3)["prompt_embeds"].shape[0] == before + 3


def test_pictures_come_to_the_pipelines_sizes() -> None:
    module = pipeline_qwenimage_edit_plus
    references = References.of(Config(), FACTS, FACTS.default_geometry)
    sizes = [(16 * w, 16 * h) for w in range(1, 96, 7) for h in range(1, 96, 9) if max(w, h) / min(w, h) < 30]
    for area, read in ((module.VAE_IMAGE_SIZE, False), (module.CONDITION_IMAGE_SIZE, True)):
        wanted = [module.calculate_dimensions(area, w / h) for w, h in sizes]
        assert references.sizes(sizes, (64, 64), read=read) == wanted
    item = Item("k", Path("a.png"), 999, 333, "")
    ((_, fit),) = references.cuts([item], (64, 64))
    assert (fit.bucket.size, fit.box) == ((1760, 576), (0.0, 0.0, 999.0, 333.0))


@pytest.mark.parametrize("still", [False, True], ids=["2509", "2511"])
@pytest.mark.parametrize("mode", ["off", "static"])
def test_equals_the_pipelines_call_in_output_and_gradients(mode: str, still: bool) -> None:
    batch, draw = make_batch(SIZES, LENGTHS), torch.Generator().manual_seed(9)
    for text, sizes in zip(batch.text, CONTROLS, strict=True):
        for name, size in zip(("control", "control_2", "control_3"), sizes, strict=False):
            text[name] = torch.randn(LATENT_CHANNELS, *size, generator=draw)
    wanted = theirs(model_with_lora(EVERY_LAYER, zero_cond_t=still), batch)
    shapes = ShapeRuntime(mode, 80, None, 24)
    shapes.pad_fill = GARBAGE
    for kind in ("off", "block"):
        model = model_with_lora(EVERY_LAYER, zero_cond_t=still)
        checkpointing.apply(model, kind)
        assert_equal_runs(ours(model, batch, shapes), wanted)
    other = ours(model_with_lora(EVERY_LAYER, zero_cond_t=not still), batch, shapes)
    assert not torch.allclose(other[0][0], wanted[0][0], atol=1e-3)


def test_one_dynamic_graph_marks_which_tokens_are_still() -> None:
    """2511's, over 8 sizes and captions with a control picture each."""

    def batch_of(sizes: list[tuple[int, int]], lengths: list[int]) -> Batch:
        batch = make_batch(sizes, lengths)
        for text in batch.text:
            text["control"] = torch.randn(LATENT_CHANNELS, 4, 6, generator=torch.Generator().manual_seed(1))
        return batch

    torch._dynamo.reset()
    subject = replace(SUBJECTS["qwen_image"], model=partial(model_with_lora, zero_cond_t=True), make_batch=batch_of)
    planned_graphs_are_observed(subject, "dynamic", "auto", None, "mask")


def test_the_plan_counts_the_tokens_of_every_control_picture() -> None:
    """Three pictures of ten sizes: static is the longest row, and native sizes are rows of their very own lengths."""
    square, wide = Item("s", Path("s.png"), 500, 500, ""), Item("w", Path("w.png"), 300, 100, "")
    controls = [(), (square,), (square, wide), (wide, wide, wide)]
    items = tuple(replace(item, controls=controls[1 + n % 3]) for n, item in enumerate(items_of(TEN_SIZES)))
    # 1760 x 576 and 672 x 224 px
    tokens, read = {(): 0, "s": 4096, "w": 110 * 36}, {"s": 14 * 14 + 7, "w": 24 * 8 + 7}
    cfg = Config.model_validate({"model": {"family": "qwen_image_edit_plus"}})
    plan = plan_for(cfg, DatasetScan(Scan(items)))
    before = max(sum(read[control.key] for control in item.controls) for item in items)
    longest = max(
        fit.bucket.tokens + sum(tokens[control.key] for control in item.controls)
        for item, fit in zip(items, plan.fits, strict=True)
    )
    assert plan.graphs.training == (Shape(longest, before + 512, 1),) and plan.text.before == before == 3 * 199
    work = work_of(cfg, plan)
    assert (work.training.image, work.training.text, work.fixed) == (longest, before + 512, 3 * 110 * 36)
    assert work.at_resolution(1024, 512).training.image == work.fixed + round((longest - work.fixed) / 4)
    off = plan.modes["off"]
    native = {
        fit.bucket.tokens + sum(tokens[control.key] for control in item.controls)
        for item, fit in zip(items, off.fits, strict=True)
    }
    assert {shape.image_tokens for shape in off.graphs.training} == native
    smaller = Config.model_validate({"model": {"family": FACTS.name}, "dataset": {"control_resolution": 512}})
    assert plan_for(smaller, DatasetScan(Scan(items))).graphs.training[0].image_tokens < longest


def test_control_pictures_are_found_by_number_and_too_many_are_an_error(tmp_path: Path) -> None:
    images, before = tmp_path / "images", tmp_path / "before"
    for name in ("images/cat", "images/cat_1", "images/dog", "before/cat_0", "before/CAT_2", "before/cat_10"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        picture(64, 64, len(name)).save(tmp_path / f"{name}.png")
    for name in ("cat_1", "dog"):
        picture(32, 32).save(before / f"{name}.png")
    result = scan([FolderSpec(images, 1, "dataset.folders[0].path", before, 3)])
    names = {item.path.stem: [control.path.stem for control in item.controls] for item in result.items}
    assert names == {"cat": ["cat_0", "CAT_2", "cat_10"], "cat_1": ["cat_1"], "dog": ["dog"]}
    assert not any("control" in problem.text for problem in result.problems)
    fewer = scan([FolderSpec(images, 1, "dataset.folders[0].path", before, 2)]).findings
    (notice,) = [finding for finding in fewer if finding.severity == "error"]
    assert "cat.png" in notice.text and notice.setting == "dataset.folders[0].control_path"
    assert Scan.from_dict(result.to_dict()).items == result.items
    # a family that takes one takes that of the very name
    picture(64, 64, 9).save(before / "cat.png")
    one = scan([FolderSpec(images, 1, "dataset.folders[0].path", before, 1)])
    assert [[each.path.stem for each in item.controls] for item in one.items] == [["cat"], ["cat_1"], ["dog"]]


def several(images: Path, where: Path) -> Path:
    """One to three control pictures for each of `images`, of other sizes than it."""
    where.mkdir()
    for number, path in enumerate(sorted(images.glob("*.png"))):
        for control in range(1 + number % 3):
            picture(40 + 8 * number, 64 + 24 * control, 10 * number + control).save(
                where / f"{path.stem}_{control}.png"
            )
    return where


def settings(base: Path, images: Path, control: Path, where: Path, **changes: dict) -> Config:
    sections = {section: dict(values) for section, values in changes.items()}
    sections["model"] = {"family": "qwen_image_edit_plus"} | sections.get("model", {})
    sections["dataset"] = {"control_resolution": AREA} | sections.get("dataset", {})
    return edit_settings(base, images, control, where, **sections)


def drawn_by(pipeline: QwenImageEditPlusPipeline, controls: list[str], monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """The pipeline's picture of 64 x 96 px; as latents it sees control pictures at the area of the run."""
    monkeypatch.setattr(pipeline_qwenimage_edit_plus, "VAE_IMAGE_SIZE", AREA * AREA)
    drawn = pipeline(
        [Image.open(path).convert("RGB") for path in controls], "a red circle", "a dog", true_cfg_scale=4.0,
        width=64, height=96, num_inference_steps=3, generator=torch.Generator("cpu").manual_seed(5),
    )  # fmt: skip
    return np.asarray(drawn.images[0]).astype(int)


@pytest.mark.slow
def test_a_run_makes_the_planned_graphs_and_draws_diffusers_sample(
    tiny_qwen_edit_plus: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """2511, on 8 sizes and captions with one to three control pictures; with validation and samples of two and one."""
    control = several(image_folder, tmp_path / "before")
    two = [str(control / f"picture_1_{number}.png") for number in (0, 1)]
    sample = PROMPT | {"control_image": two[0]}
    cfg = settings(
        tiny_qwen_edit_plus, image_folder, control, tmp_path,
        compile={"compile": True, "compile_backend": "eager", "shape_mode": "static"},
        dataset={"caption_dropout_rate": 0.3}, training={"max_train_steps": 4},
        sampling={"prompts": [sample | {"control_image_2": two[1]}, sample | {"steps": 1}], "sample_at_start": True},
        validation={"validate_at_start": True}, network={"targets_include": TRACED},
    )  # fmt: skip
    caplog.set_level("INFO")
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    last, plan = rows(run)[-1], events(run, "plan")[0]
    assert (last["graphs"], last["recompiles"], last["breaks"]) == (plan["graphs"]["planned"], 0, 0)
    assert last["graphs"] > 0 and [event["step"] for event in events(run, "validation")] == [0, 4]
    assert "Qwen-Image-Edit-2511" in caplog.text
    drawn = {(s.step, s.prompt_index): np.asarray(Image.open(s.path)).astype(int) for s in run.samples()}
    pipeline = pipeline_of(tiny_qwen_edit_plus, QwenImageEditPlusPipeline)
    without, fewer = (drawn_by(pipeline, paths, monkeypatch) for paths in (two, two[:1]))
    pipeline.load_lora_weights(run.checkpoints_dir / "tiny.safetensors")
    theirs = drawn_by(pipeline, two, monkeypatch)
    assert np.abs(drawn[4, 0] - theirs).max() <= 1 and np.abs(without - theirs).max() > 3
    assert np.abs(drawn[0, 0] - without).max() <= 1 and np.abs(fewer - without).max() > 1


def test_from_single_files_a_resumed_run_is_the_straight_one_and_swap_changes_nothing(
    tiny_qwen_edit_plus: Path, image_folder: Path, tmp_path: Path
) -> None:
    """As ComfyUI's users have 2509: transformer, text encoder with its eyes and VAE in a file each, and a tokenizer."""
    files = single_files(tiny_qwen_edit_plus / "tokenizer", tmp_path / "files", eyes=16)
    control = several(image_folder, tmp_path / "before")

    make = partial(
        settings, tiny_qwen_edit_plus, image_folder, control, tmp_path, model=files, compile={"shape_mode": "static"},
        network={"targets_include": ["attn.to_q", "txt_mlp.net.2"]}, validation={"validate_at_end": False},
    )  # fmt: skip
    straight = straight_run_that_a_resumed_one_repeats(make, steps=2)
    # ComfyUI's is its Qwen-Image
    stems = {split_key(key)[0] for key in lora_of(straight)}
    assert len(stems) == 3 * 2 and stems <= comfy_maps.published(make_tiny_denoiser().state_dict())


def test_which_of_the_two_it_is_comes_from_folder_file_or_setting(
    tiny_qwen_edit: Path, tiny_qwen_edit_plus: Path, tmp_path: Path
) -> None:
    part = FACTS.part("transformer")
    assert ROW.check_base_model(tiny_qwen_edit_plus) == []
    (problem,) = ROW.check_base_model(tiny_qwen_edit, families=PIPELINES)
    assert "the family qwen_image_edit." in problem.sentence()
    stored = make_tiny_denoiser().state_dict()
    plain = originals.write(tmp_path / "2509.safetensors", stored)
    marked = originals.write(tmp_path / "2511.safetensors", stored | {"__index_timestep_zero__": torch.zeros(1)})
    files = BaseModelFiles.of(ModelSection(base_model=str(plain), zero_cond_t="on"))
    assert [base.config(part)["zero_cond_t"] for base in (BaseModelFiles(plain), BaseModelFiles(marked), files)] == [
        False,
        True,
        True,
    ]
    assert all(CODE.empty_denoiser(base).config.zero_cond_t for base in (marked, files))
    # modelspec.architecture, as musubi-tuner has it
    named = [ROW.lora_architecture(base) for base in (BaseModelFiles(plain), BaseModelFiles(marked))]
    assert named == ["Qwen-Image-Edit-Plus/lora", "Qwen-Image-Edit-2511/lora"]
    (warning,) = ROW.check_base_model(BaseModelFiles(tiny_qwen_edit_plus, switches={"zero_cond_t": False}))
    assert (warning.path, warning.severity) == ("model.zero_cond_t", "warning")


def test_a_caption_is_another_text_with_each_of_its_pictures_and_their_order(tiny_qwen_edit_plus: Path) -> None:
    from backend.latents.store import TextCache

    cfg = Config.model_validate({"model": {"family": FACTS.name, "base_model": str(tiny_qwen_edit_plus)}})
    one, two = Item("1", Path("1.png"), 64, 64, ""), Item("2", Path("2.png"), 64, 64, "")
    plan = make_plan(cfg, DatasetScan(Scan()), FACTS.default_geometry, FACTS)
    cache = TextCache(Path("c"), text_identity(cfg), torch.float32)
    shown = [(), (one,), (two,), (one, two), (two, one), (one, two, two)]
    paths = {cache.path("a cat", 512, plan.references.cuts(items, (64, 64), read=True)) for items in shown}
    assert len(paths) == len(shown)
    # asked in other words than the family's with the same files
    edit = cfg.model_copy(update={"model": cfg.model.model_copy(update={"family": "qwen_image_edit"})})
    assert text_identity(edit) != text_identity(cfg)
