"""Makes the demo: draws its pictures, trains its small FLUX pipeline on them, and draws the concept to be learned.

    python assets/demo/make_demo.py --out build/demo --minutes 8.5

runs on a GPU if there is one, else on the CPU (slowly: the default counts are meant for a GPU). `--stage pictures`
draws only the folders of pictures, in seconds. The record of a run is `demo.json`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from maker.pictures import CONCEPT_SIZES, TOKENS, draw_sets, write_folder

HERE = Path(__file__).resolve().parent
RESERVE = 45.0  # seconds kept for validation, saving and looking
VAE_SHARE = 0.25
HELD_OUT_SEED = 1_000_003
log = logging.getLogger("make_demo")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, default=HERE, help="folder for base/, concept/, world/, held-out-*/, demo.json, look.png")
    add("--stage", choices=("all", "pictures", "warm", "look"), default="all", help="warm is for the script's own use")
    add("--minutes", type=float, help="whole time to take; without it, --steps decides")
    add("--steps", type=int, default=24000, help="steps of the base")
    add("--vae-steps", type=int, default=8000, help="steps of the autoencoder")
    add("--pictures", type=int, default=36000, help="pictures drawn to train on")
    add("--batch", type=int, default=128, help="pictures a step of the base")
    add("--vae-batch", type=int, default=24, help="crops a step of the autoencoder")
    add("--seed", type=int, default=20)
    add("--compile", choices=("auto", "on", "off"), default="auto", help="auto: on a GPU")
    add("--tiny", action="store_true", help="the smallest models and few pictures, to try the script itself")
    add("--pack", type=Path, help="also pack the result into this folder, as tars below 16 MiB")
    return parser.parse_args()


def draw_folders(out: Path, seed: int, tiny: bool = False) -> None:
    """The concept to train on, and what is kept to measure by. Their seeds are their own: the base never sees them.

    tiny: a tenth of the pictures.
    """
    share = 10 if tiny else 1
    write_folder(out / "concept", "concept", 30 // share, HELD_OUT_SEED + seed, CONCEPT_SIZES)
    write_folder(out / "held-out-concept", "concept", 10 // share, HELD_OUT_SEED + seed + 1, CONCEPT_SIZES)
    write_folder(out / "held-out-base", "world", 12 // share, HELD_OUT_SEED + seed + 2)
    # Trained beside the concept, these keep the base from forgetting its world.
    write_folder(out / "world", "world", 180 // share, HELD_OUT_SEED + seed + 3)


def make_tokenizers(args: argparse.Namespace, texts: list[str]):  # noqa: ANN201 (types need transformers)
    from maker.base import TEXT_LENGTH
    from maker.tokenizing import make_clip, make_t5

    t5 = make_t5(texts, TEXT_LENGTH)
    t5.save_pretrained(args.out / "base" / "tokenizer_2")
    return t5, make_clip(texts, 1200, args.out / "base" / "tokenizer")


def make_base_models(args: argparse.Namespace, t5, clip):  # noqa: ANN001, ANN201
    import torch
    from maker.base import Width, make_models

    torch.manual_seed(args.seed)
    tiny = Width(heads=2, head_dim=16, rope=(4, 6, 6), double=1, single=1, text=32, text_layers=1)
    return make_models(tiny if args.tiny else Width(), t5, clip)


def device_of(args: argparse.Namespace):  # noqa: ANN201
    import torch

    # The cuDNN route of attention crashed in backward on the machine that this was first trained on.
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if args.compile == "auto":
        args.compile = "on" if device.type == "cuda" else "off"
    return device


def warm(args: argparse.Namespace) -> None:
    """Compile the base into the compiler's cache, beside the autoencoder's training."""
    from maker.base import warm_base
    from transformers import CLIPTokenizer, T5TokenizerFast

    device = device_of(args)
    t5 = T5TokenizerFast.from_pretrained(args.out / "base" / "tokenizer_2")
    clip = CLIPTokenizer.from_pretrained(args.out / "base" / "tokenizer")
    warm_base(make_base_models(args, t5, clip), TOKENS, args.batch, device, True)


def draw_all(args: argparse.Namespace):  # noqa: ANN201
    """What is trained on (world, and patterns for the autoencoder alone), and what is measured by."""
    begun = time.monotonic()
    few = max(6, min(144, args.pictures // 16))
    sets = draw_sets({
        "world": ("world", args.pictures, args.seed), "pattern": ("pattern", max(8, args.pictures // 12), args.seed),
        "held_out": ("world", few, HELD_OUT_SEED), "concept": ("concept", max(6, few // 4), HELD_OUT_SEED),
    }, max(1, (os.cpu_count() or 1) - 3))  # fmt: skip
    draw_folders(args.out, args.seed, args.tiny)
    log.info("drew %d pictures in %.0f s", args.pictures, time.monotonic() - begun)
    return sets


def make(args: argparse.Namespace) -> None:
    begun = time.monotonic()
    end = begun + 60 * args.minutes - RESERVE if args.minutes else 0.0
    with ThreadPoolExecutor(2) as beside:
        drawing = beside.submit(draw_all, args)
        # Drawn by other processes, while this one imports torch and compiles.
        import torch
        from maker import base, finish, vae
        from maker.pace import Pace

        device, record = device_of(args), {}
        compiled = args.compile == "on"
        torch.manual_seed(args.seed)
        coder = vae.make_vae((8, 8, 16, 16), 4) if args.tiny else vae.make_vae()
        fast = vae.warm_vae(coder, args.vae_batch, device, compiled)
        sets = drawing.result()
        world = sets["world"]
        t5, clip = make_tokenizers(args, [c for b in world for texts in b.captions for c in texts])
        tokenising = beside.submit(lambda: [base.tokenise_bucket(b, t5, clip) for b in world])
        helper = None
        if compiled and device.type == "cuda":
            helper = subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--stage", "warm"])
        pace = Pace(None if args.minutes else args.vae_steps, time.monotonic() + VAE_SHARE * (end - time.monotonic()))
        record["vae"] = vae.train_vae(coder, fast, world, sets["pattern"][0], pace, args.vae_batch, args.seed, device)
        record["vae"] |= {f"psnr_{n}": round(vae.psnr(coder, sets[n], device), 2) for n in ("held_out", "concept")}
        log.info("autoencoder: %s", record["vae"])
        if helper:
            try:
                helper.wait(60)
            except subprocess.TimeoutExpired:
                helper.kill()
        ids = tokenising.result()

    latents = [vae.encode(coder, b, device) for b in world]
    scaling = vae.measure_scaling(coder, latents)
    record["vae"] |= scaling
    factors = (scaling["shift_factor"], scaling["scaling_factor"])
    data = [base.prepare(z, *factors, i) for z, i in zip(latents, ids, strict=True)]
    del latents
    log.info("encoded; %s", scaling)
    models = make_base_models(args, t5, clip)
    parts = {type(m).__name__: sum(p.numel() for p in m.parameters()) for m in [*models.modules(), coder]}
    record["parameters"] = parts
    fast = base.warm_base(models, TOKENS, args.batch, device, compiled)
    draws = base.Draws(data, base.tokenise([""], t5, clip), args.batch, args.seed)
    pace = Pace(None if args.minutes else args.steps, end)
    record["base"] = base.train_base(models, fast, draws, pace, device)

    finish.save_pipeline(args.out / "base", models, coder, t5, clip)
    saved = finish.load_pipeline(args.out / "base", device)
    again = base.Models(saved.transformer, saved.text_encoder_2, saved.text_encoder)
    for name in ("held_out", "concept"):
        ready = [base.prepare(vae.encode(saved.vae, b, device), *factors, base.tokenise_bucket(b, t5, clip))
                 for b in sets[name]]  # fmt: skip
        record["base"][f"loss_{name}"] = base.validation_losses(again, ready, device)
    write_record(args, record, device, time.monotonic() - begun)


def write_record(args: argparse.Namespace, record: dict, device, seconds: float) -> None:  # noqa: ANN001
    import diffusers
    import torch
    import transformers

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    record |= {
        "seed": args.seed, "pictures": args.pictures, "batch": args.batch, "vae_batch": args.vae_batch,
        "minutes": args.minutes, "seconds": round(seconds, 1), "device": name, "licence": "CC0-1.0",
        "versions": {"python": platform.python_version(), "torch": torch.__version__,
                     "diffusers": diffusers.__version__, "transformers": transformers.__version__},
    }  # fmt: skip
    (args.out / "demo.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def table(out: Path) -> str:
    """The record as a table."""
    record = json.loads((out / "demo.json").read_text(encoding="utf-8"))
    coder, base = record["vae"], record["base"]
    lines = [
        f"device {record['device']}, {record['seconds']} s, versions {record['versions']}",
        f"parameters {record['parameters']}",
        f"autoencoder: {coder['steps']} steps, PSNR held-out {coder['psnr_held_out']} dB, concept "
        f"{coder['psnr_concept']} dB, shift {coder['shift_factor']}, scale {coder['scaling_factor']}, "
        f"channel std {coder['channel_std_least']} to {coder['channel_std_most']}",
        f"base: {base['steps']} steps, {base['pictures_seen']} pictures, loss {base['loss']}",
        f"{'sigma':>10}" + "".join(f"{s:>9}" for s in base["loss_held_out"]),
        f"{'held-out':>10}" + "".join(f"{v:9.4f}" for v in base["loss_held_out"].values()),
        f"{'concept':>10}" + "".join(f"{v:9.4f}" for v in base["loss_concept"].values()),
    ]
    size = sum(p.stat().st_size for p in (out / "base").rglob("*") if p.is_file())
    return "\n".join([*lines, f"base: {size / 2**20:.1f} MiB"])


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.stage == "pictures":
        draw_folders(args.out, args.seed, args.tiny)
    elif args.stage == "warm":
        warm(args)
    elif args.stage == "look":
        look(args)
    else:
        make(args)
        packed = _pack(args)  # before the look, which can fail and costs little to repeat
        look(args)
        sys.stdout.write("\n".join([table(args.out), *packed]) + "\n")


def look(args: argparse.Namespace) -> None:
    """Write look.png: pictures, their reconstructions, and what the saved pipeline draws."""
    from maker import finish

    sets = draw_sets({"held": ("world", 24, HELD_OUT_SEED), "concept": ("concept", 24, HELD_OUT_SEED)})
    held, concept = sets["held"], sets["concept"]
    device, sheet = device_of(args), args.out / "look.png"
    shown, prompts = [held[0], concept[0], concept[2]], finish.PROMPTS[:1] if args.tiny else finish.PROMPTS
    finish.look(args.out / "base", sheet, shown, device, 2 if args.tiny else 28, prompts)
    if args.pack:
        shutil.copy(sheet, args.pack / sheet.name)


def _pack(args: argparse.Namespace) -> list[str]:
    from maker import finish

    return finish.pack(args.out, args.pack) if args.pack else []


if __name__ == "__main__":
    main()
