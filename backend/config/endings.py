"""Lists file endings that more than one part of the program has to know."""

from __future__ import annotations

# Pictures that are trained on (AVIF where Pillow was built with it), and those that are only named in the scan.
PICTURES = frozenset({".png", ".jpg", ".jpeg", ".jfif", ".webp", ".bmp", ".tif", ".tiff", ".avif"})
UNREAD_PICTURES = frozenset({".gif", ".heic", ".heif", ".jxl", ".avif", ".psd", ".svg", ".dng", ".cr2", ".nef", ".arw"})
# Clips, of families that are trained on them; animations may have a picture's ending besides.
CLIPS = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".wmv", ".flv", ".mpg", ".mpeg", ".gif"})
# Files that hold weights: never text, and too dear to be written over.
WEIGHTS = frozenset({".safetensors", ".sft", ".ckpt", ".pt", ".pth", ".bin", ".gguf"})
