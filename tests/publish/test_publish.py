"""A folder to publish: what it holds, that it loads, and that nothing of this machine is in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
from diffusers import FluxPipeline
from PIL import Image

from backend.base.errors import Refused
from backend.publish.__main__ import main
from backend.publish.card import Statement
from backend.publish.cleaner import Cleaner
from backend.publish.folder import publish
from backend.runs.folder import Run
from tests.conftest import draw_pictures
from tests.tiny.training import config, events, same, train_here

TOKEN = "hf_" + "AbCdEfGhIjKlMnOp1234"
PROMPT = {"prompt": "a red | circle", "width": 64, "height": 32, "steps": 1}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A person's home, whose name has a space."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("homes") / "jane doe"
        folder.mkdir()
        patch.setenv("HOME", str(folder))
        patch.setenv("USERPROFILE", str(folder))
        patch.setenv("LOGNAME", "jane-login")
        yield folder


@pytest.fixture(scope="module")
def run(home: Path, tiny_flux: Path) -> Run:
    """A run below the home, whose captions and description name places of it."""
    images = draw_pictures(home / "pictures" / "cats", ((64, 64), (64, 64)))
    (images / "picture_0.txt").write_text(f"a ring, {home}/scans/1.png, and/or, /home/jane/x.png")
    cfg = config(
        tiny_flux, images, home / "work",
        training={"max_train_steps": 2},
        sampling={"prompts": [PROMPT, {**PROMPT, "prompt": "a dot"}], "sample_at_start": True},
        saving={
            "output_dir": str(home / "runs"), "save_every_n_steps": 1, "save_layout": "diffusers",
            "metadata_description": f"made in {home / 'pictures'} with {TOKEN}, see https://example.org/a/b",
            "metadata_tags": "rings, dots",
        },
    )  # fmt: skip
    trained, code = train_here(cfg)
    assert code == 0, events(trained, "error")
    return trained


def test_the_folder_loads_in_diffusers_and_names_no_place_of_this_machine(
    run: Run, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    line = [str(run.path), "--out", str(out), "--license", "apache-2.0", "--base-model", "someone/tiny-flux"]
    assert main([*line, "--trigger", "sks ring", "--title", "Rings"]) == 0
    output = capsys.readouterr().out
    assert "load check: It was read back: 34 layers of the base model" in output and "to be stated" not in output
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "samples.png", "tiny.png", "tiny.safetensors"]
    for path in out.iterdir():
        data = path.read_bytes()
        for private in (str(home), home.name, str(run.path), run.name, "jane", TOKEN, str(tmp_path.parent.parent)):
            assert private.encode() not in data, (path.name, private)
    source, written = run.checkpoints()[-1].path, out / "tiny.safetensors"
    assert same(safetensors.torch.load_file(written), safetensors.torch.load_file(source))
    with safetensors.safe_open(written, "pt") as file:
        metadata = file.metadata()
    assert metadata["modelspec.license"] == "apache-2.0" and metadata["modelspec.trigger_phrase"] == "sks ring"
    assert metadata["modelspec.description"] == "made in pictures with [hidden], see https://example.org/a/b"
    assert {"a ring", "1.png", "x.png", "and/or"} <= json.loads(metadata["ss_tag_frequency"])["cats"].keys()
    state = FluxPipeline.lora_state_dict(str(out), weight_name=written.name)
    assert len(state) == 2 * 34
    card = (out / "README.md").read_text("utf-8")
    assert card.startswith('---\nbase_model: "someone/tiny-flux"\nlicense: apache-2.0\npipeline_tag: text-to-image\n')
    parts = ['- "rings"', 'instance_prompt: "sks ring"', "# Rings", "| Rank | 4 |", "| Alpha | 2 |", "| Steps | 2 |"]
    for part in (*parts, "1. a red \\| circle (seed 42, steps 1", "2. a dot"):
        assert part in card, part
    preview, sheet = (Image.open(out / name) for name in ("tiny.png", "samples.png"))
    newest = run.samples()[-2]
    assert (newest.step, newest.prompt_index) == (2, 0)
    assert preview.tobytes() == Image.open(newest.path).convert("RGB").tobytes() and preview.info == {}
    assert sheet.size == (2 * (64 + 8) + 8, 32 + 16) and sheet.crop((8, 8, 72, 40)).tobytes() == preview.tobytes()
    # what is there stays
    assert main(line) == 2 and "is there already" in capsys.readouterr().err
    assert (out / "README.md").read_text("utf-8") == card


def test_what_nobody_stated_is_left_open_and_said(run: Run) -> None:
    published = publish(run, "1", None, Statement())
    assert published.folder == run.path / "publish" / "tiny-step00000001"
    assert [note.partition(" is")[0] for note in published.notes[:2]] == ["The license", "The base model"]
    assert published.notes[2] == "No trigger words are stated."
    card = (published.folder / "README.md").read_text("utf-8")
    assert "# base_model: to be stated\n# license: to be stated\n" in card and "*license to be stated*" in card
    assert "instance_prompt" not in card and "| Steps | 1 |" in card
    # of the start, before that step
    assert Image.open(published.folder / "tiny-step00000001.png").size == (64, 32)


def test_a_file_that_does_not_load_leaves_no_folder(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = run.checkpoints()[-1].path
    whole, tensors = source.read_bytes(), safetensors.torch.load_file(source)
    first = next(iter(tensors))
    out = tmp_path / "out"
    for broken, words in (
        ({**tensors, first: tensors[first] * float("nan")}, "NaN or infinity"),
        ({**tensors, first: tensors[first][:, :1].contiguous()}, "in this model"),
        ({f"other.{key}": value for key, value in tensors.items()}, "has no layer other"),
    ):
        safetensors.torch.save_file(broken, source)
        with pytest.raises(Refused, match=words):
            publish(run, None, out, Statement())
        assert [*tmp_path.iterdir()] == []
    source.write_bytes(whole[:-10])
    with pytest.raises(Refused, match="can't be read|cut short"):
        publish(run, None, out, Statement())
    source.write_bytes(whole)
    settings = run.config_path.read_text("utf-8")
    monkeypatch.setattr(Cleaner, "text", lambda self, text: text)
    with pytest.raises(Refused, match="would hold the path"):
        publish(run, None, out, Statement())
    assert [*tmp_path.iterdir()] == []
    monkeypatch.undo()
    run.config_path.write_text(settings.replace('\nkind = "lora"', '\nkind = "full"'), "utf-8")
    with pytest.raises(Refused, match="trained a whole model"):
        publish(run, None, out, Statement())
    # without the base model less can be checked, which is said
    base = next(line for line in settings.splitlines() if line.startswith("base_model"))
    run.config_path.write_text(settings.replace(base, 'base_model = "/gone"'), "utf-8")
    published = publish(run, None, out, Statement(license="My own terms"))
    run.config_path.write_text(settings, "utf-8")
    assert "base model was not found" in published.checked
    assert 'license: other\nlicense_name: "My own terms"\n' in (out / "README.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("/home/ann/a.png", "a.png"),
        ("see C:\\Users\\ann\\a.png or D:/data/b.png.", "see a.png or b.png."),
        (r"\\server\share\c.png", "c.png"),
        ("~/lora/d.safetensors", "d.safetensors"),
        ("and/or, 1/2/2024, https://a.org/b/c, w/ hat, a:b/c, black-forest-labs/FLUX.1-dev", ""),
        ("/data/sets/cats", "cats"),
        ("/data/sets/cats-2", "cats-2"),
        ("file=/mnt/x/y", "file=y"),
        ("file:///home/ann/a.png", "a.png"),
    ],
)
def test_paths_of_any_system_become_their_last_part(text: str, clean: str) -> None:
    assert Cleaner([Path("/data/sets/cats")]).text(text) == (clean or text)
