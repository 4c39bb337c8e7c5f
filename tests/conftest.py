"""Fixtures that several areas share.

Nothing here imports torch at the top: most tests are about the torch-free part and should start at once.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import shutil
import sys
from collections.abc import Callable, Generator
from pathlib import Path

# Images of containers often forbid bytecode. Each of the many processes would then read our modules' source anew, and
# where the packages have none either, theirs: half a minute for torch and diffusers.
os.environ["PYTHONDONTWRITEBYTECODE"] = ""
# Before torch is imported anywhere: three workers on two cores, no look at any hub, no request of Gradio's.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# lines of generated C++ for a debugger: a sixth of each kernel's compile
os.environ.setdefault("AOT_INDUCTOR_ENABLE_LINE_TABLES", "0")
# Each process with an empty cache would compile three programs to see that the compiler knows this CPU's instructions.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
# A pool of compile processes, each of which imports torch, costs more than it gives where all cores are busy.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# Nor does a search for garbage after each graph, for models that live as long as their test.
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

import pytest
from filelock import FileLock

ROOT = Path(__file__).resolve().parents[1]
sys.dont_write_bytecode = False

# Looking for garbage in what tracing makes, which mostly stays, takes a tenth of each compile.
gc.set_threshold(50_000, 20, 100)
# Nor for what is left when all is tested: two looks through all that a worker holds took it seconds.
atexit.register(gc.freeze)

# (width, height): seven aspect ratios, both orientations, a pair that shares a bucket.
PICTURE_SIZES = ((64, 64), (96, 64), (64, 96), (128, 64), (64, 128), (80, 64), (64, 80), (96, 64))
SUBJECTS = ("a red ring", "two blue squares", "a green cross on a wide field", "a dot")


_searched_file: Path | None = None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Read the test files, and the libraries that they import, without looking for garbage: all of that stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave what earlier files made, and what the libraries hold, out of every later search for garbage.

    A run collects garbage several times; looking through a million objects each time took it longer than its training.
    What compile keeps grows with each test that compiles. What a test makes is found as before.
    """
    global _searched_file
    if item.path != _searched_file:
        gc.collect()
        gc.freeze()
        _searched_file = item.path


def pytest_runtest_logstart() -> None:
    """Keep torch from printing each graph that it makes, which it does where its logger for that has a handler.

    pytest gives several to each logger that does not propagate: some for the session, others for each test.
    """
    trace = logging.getLogger("torch.__trace")
    trace.propagate = True
    trace.handlers[:] = [each for each in trace.handlers if not type(each).__module__.startswith("_pytest.")]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out GPU tests without a GPU, and browser tests without Chromium unless this is CI; long files first.

    Workers end together when what is left at the end is short. A file stays whole: its tests share fixtures.
    """
    browser = ROOT / "tests" / "browser"
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    slow |= {path for path in {item.path for item in items} if browser in path.parents}
    items.sort(key=lambda item: item.path not in slow)
    reasons = {}
    if any(item.get_closest_marker("gpu") for item in items):
        import torch

        if not torch.cuda.is_available():
            reasons["gpu"] = "no NVIDIA GPU"
    if not os.environ.get("CI") and not (shutil.which("chromium") or shutil.which("chromium-browser")):
        reasons["browser"] = "no Chromium on this machine"
    for item in items:
        for mark, reason in reasons.items():
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """`once(name, make)` calls `make(folder)` once for the whole session, whatever the number of workers.

    Returns the folder. The others wait; a `make` that raised is tried again by the next one.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base

    def build(name: str, make: Callable[[Path], object]) -> Path:
        folder = shared / name
        with FileLock(f"{folder}.lock"):
            done = shared / f"{name}.done"
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                make(folder)
                done.touch()
        return folder

    return build


@pytest.fixture(scope="session")
def tiny_flux(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A random FLUX pipeline of real classes in diffusers layout, a few MB. Shared: never write into it."""
    from tests.tiny.flux import make_tiny_flux

    return once("tiny_flux", make_tiny_flux)


@pytest.fixture(scope="session")
def tiny_sdxl(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A random SDXL pipeline of real classes in diffusers layout, a few MB. Shared: never write into it."""
    from tests.tiny.sdxl import make_tiny_sd

    return once("tiny_sdxl", make_tiny_sd)


@pytest.fixture(scope="session")
def tiny_sd15(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A random Stable Diffusion 1.5 pipeline, likewise."""
    from tests.tiny.sdxl import make_tiny_sd

    return once("tiny_sd15", lambda folder: make_tiny_sd(folder, "sd15"))


@pytest.fixture(scope="session")
def tiny_anima(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A random Anima in the layout of diffusers' modular pipelines. Shared: never write into it."""
    from tests.tiny.anima import make_tiny_anima

    return once("tiny_anima", make_tiny_anima)


@pytest.fixture(scope="session")
def tiny_qwen_image(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A random Qwen-Image pipeline of real classes in diffusers layout. Shared: never write into it."""
    from tests.tiny.qwen_image import make_tiny_qwen_image

    return once("tiny_qwen_image", make_tiny_qwen_image)


@pytest.fixture(scope="session")
def tiny_qwen_edit(once: Callable[[str, Callable[[Path], object]], Path], tiny_qwen_image: Path) -> Path:
    """A random Qwen-Image-Edit pipeline, likewise."""
    from tests.tiny.qwen_image import make_tiny_qwen_edit

    return once("tiny_qwen_edit", lambda folder: make_tiny_qwen_edit(tiny_qwen_image, folder))


@pytest.fixture(scope="session")
def tiny_qwen_edit_plus(once: Callable[[str, Callable[[Path], object]], Path], tiny_qwen_edit: Path) -> Path:
    """A random Qwen-Image-Edit-2511 pipeline, likewise."""
    from tests.tiny.qwen_image import make_tiny_qwen_edit_plus

    return once("tiny_qwen_edit_plus", lambda folder: make_tiny_qwen_edit_plus(tiny_qwen_edit, folder))


@pytest.fixture(scope="session")
def tiny_sd3(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A random SD3.5 pipeline of real classes in diffusers layout. Shared: never write into it."""
    from tests.tiny.sd3 import make_tiny_sd3

    return once("tiny_sd3", make_tiny_sd3)


@pytest.fixture(scope="session")
def tiny_wan(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A random Wan 2.1 pipeline of real classes in diffusers layout. Shared: never write into it."""
    from tests.tiny.wan import make_tiny_wan

    return once("tiny_wan", make_tiny_wan)


@pytest.fixture(scope="session")
def tiny_wan_i2v(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A random Wan 2.1 image-to-video pipeline, likewise."""
    from tests.tiny.wan import make_tiny_wan_i2v

    return once("tiny_wan_i2v", make_tiny_wan_i2v)


@pytest.fixture(scope="session")
def tiny_wan22(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A random Wan 2.2 14B pipeline with its two experts, likewise."""
    from tests.tiny.wan import make_tiny_wan22

    return once("tiny_wan22", make_tiny_wan22)


@pytest.fixture(scope="session")
def tiny_wan22_i2v(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """The same of one that starts from a picture."""
    from tests.tiny.wan import make_tiny_wan22_i2v

    return once("tiny_wan22_i2v", make_tiny_wan22_i2v)


@pytest.fixture(scope="session")
def tiny_wan22_5b(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A random Wan 2.2 5B pipeline, likewise."""
    from tests.tiny.wan import make_tiny_wan22_5b

    return once("tiny_wan22_5b", make_tiny_wan22_5b)


def draw_pictures(folder: Path, sizes: tuple[tuple[int, int], ...] = PICTURE_SIZES) -> Path:
    """Write one captioned PNG for each (width, height) into `folder`, each different and the same on every call."""
    from PIL import Image, ImageDraw

    folder.mkdir(parents=True, exist_ok=True)
    for index, (width, height) in enumerate(sizes):
        picture = Image.new("RGB", (width, height), (30 * index, 200 - 20 * index, 90 + 15 * index))
        pen = ImageDraw.Draw(picture)
        pen.ellipse((8, 8, width - 8, height - 8), outline=(255, 255, 255), width=4)
        pen.line((0, 0, width, height), fill=(20, 20, 20), width=2 + index)
        picture.save(folder / f"picture_{index}.png")
        caption = f"{SUBJECTS[index % len(SUBJECTS)]}, drawing {index}"
        (folder / f"picture_{index}.txt").write_text(caption, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def tiny_hunyuan_video(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A random HunyuanVideo pipeline of real classes in diffusers layout. Shared: never write into it."""
    from tests.tiny.hunyuan_video import make_tiny_hunyuan_video

    return once("tiny_hunyuan_video", make_tiny_hunyuan_video)


@pytest.fixture(scope="session")
def tiny_framepack(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A random FramePack pipeline of real classes in diffusers layout. Shared: never write into it."""
    from tests.tiny.framepack import make_tiny_framepack

    return once("tiny_framepack", make_tiny_framepack)


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """Eight captioned pictures over seven aspect ratios, the test's own to change."""
    return draw_pictures(tmp_path / "images")
