"""The command `sample`: what it refuses, and what it leaves on the disk."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from backend.base.errors import Refused
from backend.config.toml_io import dump
from backend.dataset.scan import scan_dataset
from backend.lora.comfyui_keys import LayerNames
from backend.plan.make_plan import plan_for
from backend.preview import __main__ as command
from backend.preview.__main__ import DONE, INTERRUPTED, WRONG_INPUT, main
from backend.preview.loras import LoraChoice, LoraShelf
from backend.preview.pipeline import Pipeline
from backend.runs.folder import Run
from backend.runs.preview.request import (
    PreviewRequest,
    Row,
    find_checkpoint,
    rows_of_strengths,
    settings_of_form,
    settings_of_run,
)
from tests.conftest import draw_pictures
from tests.tiny.previews import PROMPT, settings, write_lora
from tests.tiny.training import config, train_here

FAST = ["--text_length", "16", "--width", "64", "--height", "64", "--steps", "2", "--compile", "false"]


def sample(*arguments: str) -> tuple[int, str]:
    """The exit code, and what is said without line ends."""
    console = Console(file=io.StringIO(), width=500)
    code = main([*arguments, *FAST], console)
    return code, " ".join(console.file.getvalue().split())


@pytest.mark.parametrize(
    ("text", "name", "strength"),
    [("a.safetensors", "a.safetensors", 1.0), ("a.safetensors:0.5", "a.safetensors", 0.5), ("a:b", "a:b", 1.0)],
)
def test_a_lora_is_a_file_and_its_strength(text: str, name: str, strength: float) -> None:
    choice = LoraChoice.read(text)
    assert (choice.path.name, choice.strength) == (name, strength)


def test_what_can_not_be_drawn_is_said_before_anything_loads(tiny_flux: Path, tmp_path: Path) -> None:
    base = ["--base", str(tiny_flux), "--prompt", "a dot"]
    cases = {
        (): "either a base model or a run",
        ("--base", str(tiny_flux)): "no prompt",
        (*base, "--family", "flx"): "flx",
        (*base, "--family", "sdxl"): "chosen family is SDXL",
        (*base, "--lora", str(tmp_path / "x.safetensors")): "x.safetensors can't be read",
        (*base, "--blocks_to_swap", "50"): "50",
        (*base, "--seed", "-1"): "seed",
        ("--run", str(tmp_path)): "no run",
    }
    for arguments, words in cases.items():
        code, output = sample(*arguments)
        assert code == WRONG_INPUT and words.lower() in output.lower(), (arguments, output)


def test_a_plan_says_what_memory_it_needs_and_loads_nothing(
    tiny_flux: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_draw", lambda *_: pytest.fail("it was drawn"))
    line = ["--base", str(tiny_flux), "--prompt", "a dot", "--plan", "--out", str(tmp_path / "out")]
    code, output = sample(*line)
    assert code == DONE and "Drawing samples" in output and "the preview computes in RAM" in output
    code, output = sample(*line, "--vram", "0.5")
    assert code == DONE and "Does not fit" in output and not (tmp_path / "out").exists()


def test_settings_of_full_fine_tuning_draw_with_their_base_model_and_its_runs_are_refused(
    tiny_flux: Path, tmp_path: Path
) -> None:
    full = {"kind": "full", "full_weight_dtype": "bf16"}
    cfg = settings(tiny_flux, training=full, optimizer={"optimizer": "adafactor", "fused_backward": True})
    drawn = settings_of_form(cfg, {"memory.base_quantization": "int8"})
    assert drawn.training.kind == "lora" and drawn.memory.base_quantization == "int8"
    run = Run.create(cfg, root=tmp_path)
    for changes in ({}, {"memory.base_quantization": "int8"}):
        with pytest.raises(Refused, match="trained the whole model"):
            settings_of_run(run, changes)


def test_seeds_and_prompts_give_a_picture_each_and_a_cancelled_one_leaves_none(
    tiny_flux: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lora, out = write_lora(tmp_path / "x.safetensors", tiny_flux), tmp_path / "out"
    line = ["--base", str(tiny_flux), "--lora", f"{lora}:0.5", "--out", str(out)]
    line += ["--prompt", "a dot", "--prompt", "a ring", "--seed", "1", "--seed", "2"]
    code, output = sample(*line)
    assert code == DONE and "first picture" in output
    assert sorted(path.name for path in out.iterdir()) == [f"01-0{number}.png" for number in (1, 2, 3, 4)]
    assert len({path.read_bytes() for path in out.iterdir()}) == 4

    def cancel(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Pipeline, "_predict", cancel)
    assert sample(*line[:-8], "--out", str(tmp_path / "none"), "--prompt", "a dot")[0] == INTERRUPTED
    assert not list((tmp_path / "none").iterdir())


def test_a_followed_run_that_has_ended_gives_its_whole_matrix(
    tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    cfg = config(tiny_flux, image_folder, tmp_path, training={"max_train_steps": 4}, saving={"save_every_n_steps": 2})
    run, code = train_here(cfg)
    out = tmp_path / "out"
    line = ["--run", str(run.path), "--prompt", "a dot", "--out", str(out)]
    code, output = sample(*line, "--follow")
    assert code == WRONG_INPUT and "--matrix checkpoints --follow" in output
    code, output = sample(*line, "--matrix", "checkpoints", "--follow")
    assert code == DONE and {"01-01.png", "02-01.png", "grid.png", "index.html"} == {p.name for p in out.iterdir()}
    empty = Run.create_empty(tmp_path / "runs", "empty")
    shutil.copy(run.config_path, empty.config_path)
    code, output = sample("--run", str(empty.path), "--prompt", "x", "--matrix", "checkpoints", "--follow")
    assert code == WRONG_INPUT and "no LoRA file yet" in output


def test_a_run_at_work_on_the_same_device_is_named(
    tiny_flux: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create_empty(tmp_path / "runs", "x")
    monkeypatch.delenv("MONOTILE_RUN", raising=False)
    line = ["--base", str(tiny_flux), "--prompt", "a dot", "--lora", str(tmp_path / "none.safetensors")]
    monkeypatch.setattr(command, "resolve", lambda _: tmp_path / "runs")
    assert "note:" not in sample(*line)[1]
    # this process stands for the trainer
    run.prepare_start(["x"])
    assert f"note: the run {run.name} is at work on the same device" in sample(*line)[1]
    run.finish("done")


def test_a_checkpoint_is_found_by_step_and_by_name(tmp_path: Path) -> None:
    run = Run.create_empty(tmp_path, "x")
    with pytest.raises(Refused, match="no LoRA file yet"):
        find_checkpoint(run, None)
    (run.checkpoints_dir / "x-step10.safetensors").write_bytes(b"")
    assert find_checkpoint(run, None).path.name == find_checkpoint(run, "x-step10").path.name == "x-step10.safetensors"
    with pytest.raises(Refused, match="There are"):
        find_checkpoint(run, "11")


def test_a_request_comes_back_from_its_file_and_strengths_are_rows(tiny_flux: Path) -> None:
    row = Row(name="x", loras=(), facts={"run": "r"}, step=3)
    request = PreviewRequest(config=settings(tiny_flux), rows=(row,), prompts=(PROMPT,), run=None)
    assert PreviewRequest.from_json(request.to_json()) == request
    assert [each.name for each in rows_of_strengths(row, [0, 0.5])] == ["strength 0", "strength 0.5"]


def test_a_file_that_was_written_again_is_read_again(tiny_flux: Path, tmp_path: Path) -> None:
    from tests.tiny.lora import names

    shelf = LoraShelf(names=LayerNames(names().layers), is_text=lambda path: False)
    path = write_lora(tmp_path / "x.safetensors", tiny_flux, rank=4, form="diffusers")
    assert shelf.room([LoraChoice(path=path)], text=False).rank == 4
    write_lora(path, tiny_flux, rank=9, form="diffusers")
    assert shelf.room([LoraChoice(path=path)], text=False).rank == 12


def test_a_matrix_is_a_grid_and_a_page_of_its_pictures(tiny_flux: Path, tmp_path: Path) -> None:
    lora, out, prompts = write_lora(tmp_path / "x.safetensors", tiny_flux), tmp_path / "out", tmp_path / "prompts.txt"
    prompts.write_text("# words\na dot\n\nan </script> ring\n", encoding="utf-8")
    line = ["--base", str(tiny_flux), "--lora", str(lora), "--out", str(out), "--prompts", str(prompts)]
    code, output = sample(*line, "--matrix", "strengths", "--strengths", "0,0.5,1")
    assert code == DONE and "grid.png" in output and "index.html" in output
    with Image.open(out / "grid.png") as grid:
        # the cell of strength 1 and the second prompt is that picture
        with Image.open(out / "03-02.png") as cell:
            left, top = 170 + 64 + 12, 14 + 24 + 2 * (64 + 12)
            assert grid.convert("RGB").crop((left, top, left + 64, top + 64)).tobytes() == cell.tobytes()
        assert grid.size == (170 + 2 * 76 + 12, 38 + 3 * 76 + 12)
    page = (out / "index.html").read_text(encoding="utf-8")
    assert page.count("</script>") == 1 and "strength 0.5" in page and "http" not in page
    shown = set(re.findall(r"\d\d-\d\d\.png", page))
    assert shown == {path.name for path in out.glob("0*.png")} and len(shown) == 6
    cases = {
        ("--matrix", "strengths", "--strengths", "x"): "--strengths is 'x'",
        ("--matrix", "checkpoints"): "of a whole run",
        ("--prompts", str(tmp_path / "none.txt")): "none.txt can't be read",
    }
    for more, words in cases.items():
        code, output = sample(*line, *more)
        assert code == WRONG_INPUT and words in output, output
    code, output = sample("--base", str(tiny_flux), "--prompt", "x", "--matrix", "strengths")
    assert code == WRONG_INPUT and "needs a LoRA" in output


def test_class_images_that_a_folder_lacks_are_drawn_and_counted(tiny_flux: Path, tmp_path: Path) -> None:
    """Again after one was lost: that one alone, with the same pixels; an image of another name counts as one."""
    draw_pictures(tmp_path / "images", ((64, 64),) * 2)
    rows = [{"path": str(tmp_path / "images")}]
    rows += [{"path": str(tmp_path / "reg"), "is_reg": True, "class_tokens": "a small dog", "class_images": 3}]
    prompt = {"prompt": "a red dot", "steps": 1, "seed": 7}
    cfg = config(tiny_flux, tmp_path, tmp_path, dataset={"folders": rows}, sampling={"prompts": [prompt]})
    dump(cfg, tmp_path / "set.toml")
    missing = scan_dataset(cfg).train.findings[0]
    assert missing.remedy == "Draw its 3 images: launcher.py sample --class-images SETTINGS.toml, or the Preview tab."

    def draw() -> list[str]:
        console = Console(file=io.StringIO(), width=500)
        assert main(["--class-images", str(tmp_path / "set.toml")], console) == DONE, console.file.getvalue()
        return [line for line in console.file.getvalue().splitlines() if "class-" in line]

    assert len(draw()) == 3
    files = sorted((tmp_path / "reg").iterdir())
    assert [path.name for path in files] == ["class-00000.png", "class-00001.png", "class-00002.png"]
    pixels = [Image.open(path).tobytes() for path in files]
    assert len(set(pixels)) == 3 and Image.open(files[0]).size == (64, 64)
    assert "a small dog" in Image.open(files[0]).text["parameters"]
    files[1].unlink()
    (line,) = [finding for finding in plan_for(cfg, scan_dataset(cfg)).findings if finding.kind == "class_images"]
    assert line.text.endswith("reg has 2 of 3 class images")
    message = draw()
    assert (
        len(message) == 1
        and "class-00001.png  base model, seed " in message[0]
        and Image.open(files[1]).tobytes() == pixels[1]
    )
    files[1].rename(files[1].with_name("own.png"))
    assert draw() == []
    reg = [item for item in plan_for(cfg, scan_dataset(cfg)).items if item.is_reg]
    assert [item.caption for item in reg] == ["a small dog"] * 3
