"""The compile cache: a short folder of our own, only hits at a second start, size, clear, export and import."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from backend.base import compile_cache
from backend.compile import cache_key

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_second_start_has_only_hits_and_an_import_brings_them(tmp_path: Path) -> None:
    """Of a quantised base; that of another is proven by a whole run.

    Forward and backward come as one entry, from AOTAutograd's cache: nothing is traced again.
    """
    first, second = (_start(tmp_path / "a") for _ in range(2))
    assert (first["graphs"], first["hits"], first["misses"], first["cached"]) == (1, 0, 1, [False])
    assert (second["graphs"], second["hits"], second["misses"], second["cached"]) == (1, 1, 0, [True])
    took = json.loads((Path(first["folder"]) / "durations.json").read_text())["first"]
    assert took["compiled"] > 0 and took["cached"] > 0

    archive = tmp_path / "cache.zip"
    assert compile_cache.export(Path(first["folder"]), archive).files > 3
    other = tmp_path / "b" / Path(first["folder"]).name
    other.mkdir(parents=True)
    (other / "key.json").write_text((Path(first["folder"]) / "key.json").read_text())
    assert compile_cache.import_archive(archive, other) > 3
    for name in ("aotautograd", "fxgraph"):
        files = {
            p.relative_to(first["folder"]): p.read_bytes()
            for p in Path(first["folder"], "inductor").rglob(f"*{name}*/**/*")
            if p.is_file()
        }
        assert files and all((other / inner).read_bytes() == data for inner, data in files.items()), name


def _start(root: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.tiny.cold_start", str(root)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_prepare_points_torch_at_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, "/elsewhere")
    folder = cache_key.use_cache_folder(tmp_path)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder / "inductor") and (folder / "inductor").is_dir()
    assert os.environ["TRITON_CACHE_DIR"] == str(folder / "triton")
    assert set(json.loads((folder / "key.json").read_text())) >= {"torch", "gpu", "triton", "python"}


def test_key_changes_with_torch_and_signature_with_code_and_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    made_of = cache_key.machine_facts()
    other = made_of | {"torch": "9.9"}
    assert cache_key._hash(made_of, 8) != cache_key._hash(other, 8)
    same = cache_key.signature(made_of, [(4096, 512, 1)])
    assert same == cache_key.signature(made_of, [(4096, 512, 1)])
    assert same != cache_key.signature(made_of, [(4096, 256, 1)]) and same != cache_key.signature(
        other, [(4096, 512, 1)]
    )
    monkeypatch.setattr(cache_key, "code_version", lambda: "changed")
    assert same != cache_key.signature(made_of, [(4096, 512, 1)])


def test_a_user_name_with_a_space_is_avoided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """K10: the first candidate has a space in it, the second an umlaut; the third is taken."""
    places = [tmp_path / "Jane Doe", tmp_path / "Jürgen", tmp_path / "m"]
    monkeypatch.setattr(compile_cache, "candidate_folders", lambda: places)
    monkeypatch.setattr(compile_cache, "MOST_PATH", len(str(tmp_path)) + 12)
    assert compile_cache.cache_root() == tmp_path / "m" / "compile"
    assert "has a space" in compile_cache.path_problem(places[0]) and "beyond ASCII" in compile_cache.path_problem(
        places[1]
    )
    assert "characters long" in compile_cache.path_problem(tmp_path / ("x" * 300))
    assert compile_cache.cache_root(tmp_path / "Jane Doe") == tmp_path / "Jane Doe", "a chosen folder is taken as it is"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("x")
    with pytest.raises(OSError, match="cannot be written; choose another in compile_cache_dir"):
        compile_cache.cache_root(blocked / "below")
    monkeypatch.setattr(compile_cache, "candidate_folders", lambda: [blocked])
    monkeypatch.setattr(compile_cache, "MOST_PATH", 4000)
    with pytest.raises(OSError, match="set compile_cache_dir"):
        compile_cache.cache_root()


def test_size_and_clear_touch_only_our_folders(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "abcd1234", tmp_path / "photos"
    (ours / "inductor").mkdir(parents=True)
    (ours / "key.json").write_text("{}")
    (ours / "inductor" / "kernel.so").write_bytes(b"x" * 1000)
    theirs.mkdir()
    (theirs / "dear.jpg").write_bytes(b"y")
    assert compile_cache.size(ours) == compile_cache.CacheSize(2, 1002)
    assert compile_cache.clear(tmp_path) == compile_cache.CacheSize(2, 1002)
    assert not ours.exists() and (theirs / "dear.jpg").exists()
    assert (
        compile_cache.clear(tmp_path / "nowhere")
        == compile_cache.CacheSize(0, 0)
        == compile_cache.size(tmp_path / "nowhere")
    )


def test_archives_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "key"
    folder.mkdir()
    (folder / "key.json").write_text(json.dumps({"torch": "2.13", "gpu": "cpu"}))

    def archive(name: str, manifest: dict | None, *files: str) -> Path:
        path = tmp_path / name
        with zipfile.ZipFile(path, "w") as made:
            if manifest is not None:
                made.writestr("monotile-cache.json", json.dumps(manifest))
            for file in files:
                made.writestr(file, "x")
        return path

    with pytest.raises(ValueError, match="torch: 2.12 there, 2.13 here"):
        compile_cache.import_archive(archive("old.zip", {"torch": "2.12", "gpu": "cpu"}), folder)
    for evil in ("../../evil", "C:/evil", "/evil"):
        with pytest.raises(ValueError, match="names files outside"):
            compile_cache.import_archive(archive("evil.zip", {"torch": "2.13", "gpu": "cpu"}, evil), folder)
    whole = archive("cut.zip", {"torch": "2.13", "gpu": "cpu"}, "kernel")
    content = whole.read_bytes()
    at = content.index(b"kernel") + len(b"kernel")
    whole.write_bytes(content[:at] + b"y" + content[at + 1 :])
    with pytest.raises(ValueError, match="is damaged: kernel in it can't be read"):
        compile_cache.import_archive(whole, folder)
    with pytest.raises(ValueError, match="holds no monotile-cache.json"):
        compile_cache.import_archive(archive("other.zip", None, "a"), folder)
    (tmp_path / "text.zip").write_text("no zip")
    with pytest.raises(ValueError, match="is no compile cache archive"):
        compile_cache.import_archive(tmp_path / "text.zip", folder)
    assert sorted(p.name for p in folder.iterdir()) == ["key.json"]


def test_the_cache_folder_module_is_torch_free() -> None:
    code = "import sys, backend.base.compile_cache as c; c.candidate_folders(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
