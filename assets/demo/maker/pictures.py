"""Draws sets of pictures, in as many processes as there are cores, and writes captioned folders."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .captions import caption
from .world import draw_pattern, draw_story

# Sizes of about 256 x 256 px: 252, 256 or 240 tokens of 16 x 16 px, so that the base trains on three token counts.
SQUARE = (256, 256)
BUCKETS = (SQUARE, (288, 224), (224, 288), (336, 192), (192, 336), (320, 192), (192, 320), (384, 160), (160, 384))
CAPTIONS_A_PICTURE = 4
CHUNK = 64


@dataclass
class Bucket:
    """Pictures of one size: (N, H, W, 3) uint8, and CAPTIONS_A_PICTURE captions for each (none for patterns)."""

    width: int
    height: int
    pixels: np.ndarray
    captions: list[list[str]]


def _draw_chunk(job: tuple[str, int, int, int, int, int]) -> tuple[np.ndarray, list[list[str]]]:
    kind, seed, width, height, first, count = job
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
    return pixels, texts


def draw_buckets(kind: str, total: int, seed: int, sizes: tuple[tuple[int, int], ...] = BUCKETS,
                 workers: int | None = None) -> list[Bucket]:  # fmt: skip
    """Draw `total` pictures of a kind (world, concept or pattern); a quarter are square, the rest share the sizes."""
    squares = max(1, total // 4) if len(sizes) > 1 else total
    each = max(1, (total - squares) // max(1, len(sizes) - 1))
    jobs = []
    for size in sizes:
        count = squares if size == sizes[0] else each
        jobs += [(kind, seed, *size, k, min(CHUNK, count - k)) for k in range(0, count, CHUNK)]
    workers = workers or min(len(jobs), os.cpu_count() or 1)
    results: Iterator[tuple[np.ndarray, list[list[str]]]]
    if workers > 1:
        # Spawned, so that no child inherits the threads of a process that may have loaded torch.
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
            results = iter(list(pool.map(_draw_chunk, jobs)))
    else:
        results = map(_draw_chunk, jobs)
    made: dict[tuple[int, int], list[tuple[np.ndarray, list[list[str]]]]] = {}
    for job, result in zip(jobs, results, strict=True):
        made.setdefault((job[2], job[3]), []).append(result)
    return [
        Bucket(w, h, np.concatenate([p for p, _ in parts]), [t for _, texts in parts for t in texts])
        for (w, h), parts in made.items()
    ]


def write_folder(folder: Path, kind: str, count: int, seed: int, sizes: tuple[tuple[int, int], ...] = BUCKETS) -> None:
    """Draw `count` pictures a quarter larger than the base's sizes, as PNG with a .txt caption beside each."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        width, height = (side * 5 // 4 for side in sizes[i % len(sizes)])
        rng = np.random.default_rng([seed, i])
        image, story = draw_story(width, height, rng, concept=kind == "concept")
        detail = float(rng.permutation(np.linspace(0, 1, count))[i % count] * 0.3 + 0.7 * i / max(1, count - 1))
        image.quantize(192).save(folder / f"{kind}-{i + 1:02}.png", optimize=True)
        (folder / f"{kind}-{i + 1:02}.txt").write_text(caption(story, rng, detail) + "\n", encoding="utf-8")
