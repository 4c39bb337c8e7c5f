"""What each kind of model says, compared with transformers' own processor and `generate`; folders that are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

from backend.base.errors import Refused
from backend.captioning.captioner import Captioner
from backend.captioning.work import caption_images
from backend.runs.captioning.folder import ResultFolder
from backend.runs.captioning.model_folder import LAYOUTS, read_model
from backend.runs.captioning.request import CaptionOptions, identity
from tests.tiny.captioners import INSTRUCTION, copy, picture

TOKENS = 10
PICTURES = (picture(60, 40), picture(40, 60, 1))


def options(folder: Path, **more: Any) -> CaptionOptions:
    return CaptionOptions(model=str(folder), device="cpu", **{"max_tokens": TOKENS, **more})


def captions(folder: Path, **more: Any) -> list[str]:
    return Captioner(read_model(folder), options(folder, **more)).describe(PICTURES)


def generate(folder: Path, beams: int, **inputs: Any) -> Tensor:
    network = AutoModelForImageTextToText.from_pretrained(folder, local_files_only=True)
    return network.generate(**inputs, num_beams=beams, do_sample=False, max_new_tokens=TOKENS)


def blip_says(folder: Path, image: Image.Image) -> str:
    """As the model's card has it; "[DEC]" is a token that its own tokenizer has no word for."""
    processor = AutoProcessor.from_pretrained(folder)
    tokens = generate(folder, 3, **processor(image, "a photo of", return_tensors="pt"))
    return processor.decode(tokens[0], skip_special_tokens=True).removeprefix("[DEC] ").strip()


def blip2_says(folder: Path, image: Image.Image) -> str:
    """Of the image alone: the prompt of places and a start token is made by the model itself."""
    pixels = AutoImageProcessor.from_pretrained(folder)(image, return_tensors="pt")["pixel_values"]
    tokens = generate(folder, 3, pixel_values=pixels)
    return AutoTokenizer.from_pretrained(folder).decode(tokens[0], skip_special_tokens=True).strip()


def florence_says(folder: Path, image: Image.Image) -> str:
    processor = AutoProcessor.from_pretrained(folder)
    tokens = generate(folder, 3, **processor(images=image, text="<MORE_DETAILED_CAPTION>", return_tensors="pt"))
    text = processor.batch_decode(tokens, skip_special_tokens=False)[0]
    return re.sub("</?s>|<pad>", "", text).strip()


def qwen_says(folder: Path, image: Image.Image) -> str:
    """Without a processor, whose part for videos needs torchvision: the prompt is put together by hand."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    seen = AutoImageProcessor.from_pretrained(folder)(image, return_tensors="pt")
    places = "<|image_pad|>" * (int(seen["image_grid_thw"].prod()) // 4)
    text = f"<|im_start|>user\n<|vision_start|>{places}<|vision_end|>{INSTRUCTION}<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    kinds = (ids == tokenizer.convert_tokens_to_ids("<|image_pad|>")).long()
    tokens = generate(folder, 1, input_ids=ids, mm_token_type_ids=kinds, **seen)
    return tokenizer.decode(tokens[0, ids.shape[1] :], skip_special_tokens=True).strip()


SAYS: dict[str, tuple[Callable[[Path, Image.Image], str], dict[str, Any]]] = {
    "blip": (blip_says, {"prompt": "a photo of"}),
    "blip-2": (blip2_says, {}),
    "florence2": (florence_says, {"task": "more_detailed"}),
    "qwen2_vl": (qwen_says, {"prompt": INSTRUCTION}),
    "qwen2_5_vl": (qwen_says, {"prompt": INSTRUCTION}),
    "qwen3_vl": (qwen_says, {"prompt": INSTRUCTION}),
}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_batch_says_what_transformers_says_of_each_image_alone(kind: str, model_of: Callable[[str], Path]) -> None:
    says, choices = SAYS[kind]
    folder = model_of(kind)
    made = captions(folder, **choices)
    assert made == [says(folder, image) for image in PICTURES]
    assert len({*made}) == 2 and all(made)


def test_a_long_caption_ends_where_the_model_has_no_place_left(model_of: Callable[[str], Path]) -> None:
    long = captions(model_of("blip"), max_tokens=4000, beams=1)
    assert max(len(text.split()) for text in long) > TOKENS


def test_images_of_any_size_are_reduced_and_one_that_is_too_long_is_named(
    model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copy(model_of("qwen2_vl"), tmp_path / "model")
    # as the first Qwen2-VL folders say it
    sizes = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "min_pixels": 256, "max_pixels": 10**6}
    (folder / "preprocessor_config.json").write_text(json.dumps(sizes), "utf-8")
    captioner = Captioner(read_model(folder), options(folder, megapixels=0.05))
    seen = captioner.reader.inputs([picture(1200, 900)], captioner.network)
    height, width = (4 * int(side) for side in seen["image_grid_thw"][0, 1:])
    assert 40_000 < height * width <= 50_000 and width > height
    paths = [tmp_path / "a.png", tmp_path / "line.png"]
    for path, (width, height) in zip(paths, [(60, 40), (900, 4)], strict=True):
        picture(width, height).save(path)
    list(caption_images(paths, captioner, ResultFolder(tmp_path), batch=2))
    rows = [ResultFolder(tmp_path).results()[str(path)] for path in paths]
    assert rows[0].text and not rows[0].error and "the model can't take it" in rows[1].error


def test_weights_that_are_missing_are_not_filled_with_random_numbers(
    model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copy(model_of("blip"), tmp_path / "broken")
    tensors = load_file(folder / "model.safetensors")
    lost = "vision_model.encoder.layers.1.mlp.fc1.weight"
    assert tensors.pop(lost) is not None
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(Refused, match=lost):
        captions(folder)


def test_a_gpu_that_is_not_there_and_weights_that_need_one_are_refused(model_of: Callable[[str], Path]) -> None:
    folder = model_of("blip")
    with pytest.raises(Refused, match="nf4 weights need an NVIDIA GPU"):
        captions(folder, precision="nf4")
    wanted = CaptionOptions(model=str(folder), device=f"cuda:{torch.cuda.device_count() + 7}")
    with pytest.raises(Refused, match="no GPU"):
        Captioner(read_model(folder), wanted)


def test_the_memory_is_told_from_the_files(model_of: Callable[[str], Path]) -> None:
    model = read_model(model_of("blip"))
    network = AutoModelForImageTextToText.from_pretrained(model.folder)
    weights = sum(each.numel() for each in network.parameters())
    assert model.weights == weights and model.device_bytes("auto", gpu=True) == 2 * weights
    assert "in fp32" in model.sentence("auto", gpu=False)


def test_results_are_shared_where_the_words_of_a_caption_would_be_the_same(model_of: Callable[[str], Path]) -> None:
    folder, model = model_of("blip"), read_model(model_of("blip"))
    plain = identity(options(folder), model)
    assert plain == identity(options(folder, prefix="art, ", batch=8, existing="replace", task="caption"), model)
    others = [options(folder, **{name: value}) for name, value in {"prompt": "a", "beams": 1, "max_tokens": 9}.items()]
    assert len({plain, *(identity(each, model) for each in others)}) == 4
    with pytest.raises(Refused, match="no prompt of one's own"):
        options(model_of("florence2"), prompt="a").asked(read_model(model_of("florence2")))


def config(**content: Any) -> Callable[[Path], None]:
    """A change of config.json."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **content}), "utf-8")

    return change


def without(name: str, *others: str, then: str | None = None) -> Callable[[Path], None]:
    """Files that are gone, and one that is there instead."""

    def change(folder: Path) -> None:
        for each in (name, *others):
            (folder / each).unlink()
        if then is not None:
            (folder / then).write_bytes(b"{}")

    return change


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "another model": (config(model_type="llama"), "type llama"),
    "code of its own": (
        config(model_type="moondream", auto_map={"AutoModel": "a.B"}),
        "moondream, which needs program",
    ),
    "first Florence-2": (config(model_type="florence2", vision_config={"dim_embed": [1]}), "florence-community"),
    "another work": (config(architectures=["BlipForQuestionAnswering"]), "BlipForQuestionAnswering"),
    "quantized": (config(quantization_config={"quant_method": "awq"}), "awq"),
    "a tagger of timm": (config(model_type=None, pretrained_cfg={}), "WD14"),
    "a tagger for ONNX": (without("config.json", then="model.onnx"), "WD14"),
    "a pipeline": (without("config.json", then="model_index.json"), "draws images"),
    "pickled weights": (without("model.safetensors", then="pytorch_model.bin"), "can hide program code"),
    "no weights": (without("model.safetensors"), "no weights"),
    "cut weights": (cut, "cut short"),
    "no tokenizer": (without("tokenizer.json"), "no tokenizer"),
    "no processor": (without("processor_config.json"), "no image processor"),
}


def test_folders_that_can_not_be_used_are_named_with_the_reason(
    model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    messages = {}
    for name, (spoil, _) in BROKEN.items():
        folder = copy(model_of("blip"), tmp_path / name.replace(" ", "-"))
        spoil(folder)
        with pytest.raises(Refused) as refused:
            read_model(folder)
        assert refused.value.remedy, name
        messages[name] = str(refused.value)
    assert {name: words for name, (_, words) in BROKEN.items() if words not in messages[name]} == {}
    assert all(name.replace(" ", "-") in text for name, text in messages.items())
    with pytest.raises(Refused, match="is not there"):
        read_model(tmp_path / "nowhere")
