"""Names that other programs have for model families, and ours for each."""

from __future__ import annotations

import re

# Ours -> theirs, by letters and digits alone. A family that is not offered here has a name too, so that it can be said.
_NAMES: dict[str, str] = {
    "flux": "flux flux1 fluxdev flux1dev fluxdev1 flux1d fluxschnell flux1schnell fluxlora",
    "flux_kontext": "fluxkontext flux1kontext kontext flux1kontextdev",
    "sdxl": "sdxl xl sdxlbase sdxlbasev10 sdxlbasev09 stablediffusionxl stablediffusionxl10base pony illustrious",
    "sd15": "sd15 sd1 sdv1 sd1x stablediffusion15 legacy",
    "sd3": "sd3 sd35 sd3m sd35medium sd35large sd3medium stablediffusion3 stablediffusion35",
    "anima": "anima animapreview",
    "qwen_image": "qwen qwenimage",
    "qwen_image_edit": "qwenimageedit",
    "qwen_image_edit_plus": "qwenimageeditplus qwenimageedit2509 qwenimageedit2511",
    "qwen_image_layered": "qwenimagelayered",
    "sd2": "sd2 sdv2 sd2x stablediffusion20 stablediffusion20base stablediffusion21 stablediffusion21base",
    "wan": "wan wan21 wan2114b wan211b wan2113b wan21t2v wan21t2v14b wan21t2v13b",
    "wan_i2v": "wani2v wan21i2v wan2114bi2v wan21i2v14b wan21i2v480p wan21i2v720p",
    "wan22": "wan22 wan2214b wan22t2v wan22t2va14b",
    "wan22_i2v": "wan2214bi2v wan22i2v wan22i2va14b",
    "wan22_5b": "wan225b wan22ti2v wan22ti2v5b",
    "wan22_5b_i2v": "wan225bi2v wan22ti2v5bi2v wan22ti2vi2v",
    "hunyuan_video": "hunyuanvideo hunyuan",
    "hunyuan_video_1_5": "hunyuanvideo15",
    "framepack": "framepack",
    "framepack_f1": "framepackf1",
    "flux_2": "flux2 flux2dev flux2klein flux2klein4b flux2klein9b",
    "z_image": "zimage zimageturbo zimagebase",
    "chroma": "chroma chroma1 chromaradiance",
    "lumina": "lumina lumina2",
    "hunyuan_image": "hunyuanimage hunyuanimage21",
    "hidream": "hidream hidreamfull hidreami1 hidreamo1 hidreame1",
    "pixart": "pixart pixartalpha pixartsigma",
    "sana": "sana",
    "kolors": "kolors",
    "auraflow": "auraflow",
    "ltx_video": "ltxvideo ltx ltxv ltx2",
    "cosmos": "cosmos cosmos2image cosmospredict2",
    "omnigen": "omnigen omnigen2",
    "kandinsky5": "kandinsky5 kandinsky5image kandinsky5video",
    "krea2": "krea2",
    "ideogram4": "ideogram4 ideogram",
    "ernie": "ernie ernieimage",
}
_OURS = {theirs: ours for ours, names in _NAMES.items() for theirs in names.split()}


def named_family(text: object) -> str:
    """Our name for the family that another program calls `text`; `text` itself where it is none that is known."""
    letters = re.sub(r"[^a-z0-9]", "", str(text).lower())
    return _OURS.get(letters) or str(text).strip()


def family_of_path(path: object) -> str:
    """The family that a base model's name tells: the longest of the names above in it; empty where there is none."""
    name = str(path or "").replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    letters = re.sub(r"[^a-z0-9]", "", name.lower())
    inside = [theirs for theirs in _OURS if len(theirs) > 3 and theirs in letters and theirs != "legacy"]
    return _OURS[max(inside, key=len)] if inside else ""
