"""Draws sets of pictures, in as many processes as there are cores, and writes captioned folders."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .captions import caption
from .world import draw_pattern, draw_story

# All of 240 tokens of 16 x 16 px, so that one compiled graph serves all of the training.
TOKENS = 240
BUCKETS = ((256, 240), (240, 256), (320, 192), (192, 320), (384, 160), (160, 384))
# The concept comes in ten, four of them of 238 and 234 tokens, as photographs would: work for the shape plan.
CONCEPT_SIZES = (*BUCKETS, (272, 224), (224, 272), (288, 208), (208, 288))
CAPTIONS_A_PICTURE = 3
CHUNK = 64


@dataclass
class Bucket:
    """Pictures of one size: (N, H, W, 3) uint8, and CAPTIONS_A_PICTURE captions for each (none for patterns)."""

    width: int
    height: int
    pixels: np.ndarray
    captions: list[list[str]]


def _draw_chunk(job: tuple[str, int, int, int, int, int, str]) -> list[list[str]]:
    """Draw some pictures into a .npy file; returns their captions. (Files, because pickling gigabytes of pixels would
    hold up the process that waits.)"""
    kind, seed, width, height, first, count, path = job
    pixels = np.empty((count, height, width, 3), np.uint8)
    texts = []
    for i in range(count):
        rng = np.random.default_rng([seed, width, height, first + i])
        if kind == "pattern":
            pixels[i] = np.asarray(draw_pattern(width, height, rng))
            continue
        image, story = draw_story(width, height, rng, concept=kind == "concept")
        pixels[i] = np.asarray(image)
        texts.append([caption(story, rng, float(d)) for d in rng.uniform(0, 1, CAPTIONS_A_PICTURE)])
    np.save(path, pixels)
    return texts


def draw_sets(wanted: dict[str, tuple[str, int, int]], workers: int | None = None) -> dict[str, list[Bucket]]:
    """Draw several sets at once: name to (kind, pictures, seed), where the kind is world, concept or pattern. Every set
    has the same number of each of BUCKETS, but patterns have one size."""
    jobs: dict[tuple[str, int, int], list[tuple[str, int, int, int, int, int, str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (kind, total, seed) in wanted.items():
            sizes = BUCKETS[:1] if kind == "pattern" else BUCKETS
            each = max(1, total // len(sizes))
            for w, h in sizes:
                jobs[name, w, h] = [
                    (kind, seed, w, h, k, min(CHUNK, each - k), f"{folder}/{name}-{w}-{h}-{k}.npy")
                    for k in range(0, each, CHUNK)
                ]
        everything = [job for some in jobs.values() for job in some]
        # Spawned, so that no child inherits the threads of a process that may have loaded torch.
        workers = workers or os.cpu_count() or 1
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
            texts = dict(zip((job[-1] for job in everything), pool.map(_draw_chunk, everything), strict=True))
        made: dict[str, list[Bucket]] = {name: [] for name in wanted}
        for (name, w, h), some in jobs.items():
            captions = [caption for job in some for caption in texts[job[-1]]]
            made[name].append(Bucket(w, h, np.concatenate([np.load(job[-1]) for job in some]), captions))
    return made


def write_folder(folder: Path, kind: str, count: int, seed: int, sizes: tuple[tuple[int, int], ...] = BUCKETS) -> None:
    """Draw `count` pictures a quarter larger than the base's sizes, as PNG with a .txt caption beside each, the longer
    the further."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{kind}-*"):
        old.unlink()
    for i in range(count):
        width, height = (side * 5 // 4 for side in sizes[i % len(sizes)])
        rng = np.random.default_rng([seed, i])
        image, story = draw_story(width, height, rng, concept=kind == "concept")
        image.quantize(192).save(folder / f"{kind}-{i + 1:02}.png", optimize=True)
        text = caption(story, rng, i / max(1, count - 1))
        (folder / f"{kind}-{i + 1:02}.txt").write_text(text + "\n", encoding="utf-8")
