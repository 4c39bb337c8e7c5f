"""Extracts, merges, averages, resizes, inspects and checks LoRA files: ``python -m backend.lora_tools COMMAND``."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence

from rich.console import Console

from backend.base.errors import Refused, WriteFailed
from backend.base.library_imports import library_imports
from backend.base.paths import resolve

DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> int:
    """Do what the command line says; returns 0, 1 where a program ignores keys, 2 for bad input, 130 after Ctrl+C."""
    console = console or Console(highlight=False)
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")
    os.environ["HF_HUB_OFFLINE"] = "1"
    options = _parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    try:
        return _command(options.command)(options, console)
    except (Refused, WriteFailed) as error:
        if getattr(options, "json", False):
            sys.stdout.write(json.dumps({"error": str(error)}) + "\n")
        else:
            console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        return WRONG_INPUT
    except KeyboardInterrupt:
        console.print("Cancelled. Nothing was written.")
        return INTERRUPTED


def _command(name: str) -> Callable[[argparse.Namespace, Console], int]:
    # within: the help needs none of torch and diffusers
    with library_imports():
        from backend.lora_tools import commands

    return {
        "extract": commands.extract,
        "merge": commands.merge,
        "average": commands.average,
        "resize": commands.resize,
        "inspect": commands.inspect,
        "check": commands.check,
    }[name]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="launcher.py lora", description=__doc__.partition(":")[0], allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_extract(commands)
    _add_merge(commands)
    _add_average(commands)
    _add_resize(commands)
    for name, text in (
        ("inspect", "show what a LoRA file holds: kind, ranks, alphas, strength of each layer, what is wrong"),
        ("check", "show which keys diffusers, ComfyUI and sd-scripts or musubi-tuner load, and which they ignore"),
    ):
        one = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        one.add_argument("file", metavar="FILE", help="a LoRA file")
        one.add_argument("--base", metavar="PATH", help="the base model that it is for")
        _add_model(one)
        one.add_argument("--json", action="store_true", help="print JSON")
        if name == "inspect":
            one.add_argument("--layers", type=int, default=10, metavar="N", help="strongest layers to list (10)")
    return parser


def _add_extract(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "make a LoRA of what a fine-tuned model changed of its base model"
    one = commands.add_parser("extract", help=text, description=text, allow_abbrev=False)
    one.add_argument("--base", metavar="PATH", required=True, help="the base model: a folder or a single file")
    one.add_argument("--tuned", metavar="PATH", required=True, help="the model that was trained from it")
    _add_ranks(one, required=True)
    one.add_argument(
        "--layout",
        choices=["kohya", "comfyui", "diffusers"],
        default="kohya",
        help="names of the keys (kohya)",
    )
    one.add_argument(
        "--targets",
        metavar="PATTERN",
        nargs="+",
        default=[],
        help="layers to take, as in targets_include",
    )
    _add_model(one)
    _add_output(one)


def _add_merge(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "merge LoRA files into a base model (with --base), or into one LoRA file"
    one = commands.add_parser("merge", help=text, description=text, allow_abbrev=False)
    one.add_argument("--base", metavar="PATH", help="merge into this base model: a folder or a single file")
    one.add_argument(
        "--lora", metavar="FILE[:STRENGTH]", action="append", required=True, help="a LoRA file; repeatable"
    )
    text = "names of the keys of one LoRA file (as in the first); also to convert a single file"
    one.add_argument("--layout", choices=["kohya", "comfyui", "diffusers"], help=text)
    _add_ranks(one, required=False)
    _add_model(one)
    _add_output(one)


def _add_average(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "write the average of LoRA files of one run, such as its last three"
    one = commands.add_parser("average", help=text, description=text, allow_abbrev=False)
    one.add_argument("files", metavar="FILE", nargs="+", help="a LoRA file; two or more")
    _add_output(one, precision=False)


def _add_resize(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "write a LoRA file with smaller ranks"
    one = commands.add_parser("resize", help=text, description=text, allow_abbrev=False)
    one.add_argument("file", metavar="FILE", help="a LoRA file")
    _add_ranks(one, required=True)
    _add_output(one, precision=False)


def _add_ranks(parser: argparse.ArgumentParser, required: bool) -> None:
    rest = "one of the two is needed" if required else "default: the sum of the ranks, which is exact"
    parser.add_argument("--rank", type=_rank, metavar="R", help=f"rank of each layer, at most ({rest})")
    parser.add_argument("--keep", type=_share, metavar="X", help="smallest rank that keeps this share of the norm")
    parser.set_defaults(needs_rank=required)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--family", metavar="NAME", help="family of the base model (default: found by its files)")
    parser.add_argument("--variant", metavar="NAME", help="variant of the base model's weight files, such as fp16")
    text = "the expert of a folder of Wan 2.2 14B that is read or changed (default: high)"
    parser.add_argument("--expert", choices=["high", "low"], help=text)


def _add_output(parser: argparse.ArgumentParser, precision: bool = True) -> None:
    parser.add_argument("--out", metavar="PATH", required=True, type=_path, help="what to write")
    if precision:
        parser.add_argument(
            "--precision", choices=["bf16", "fp16", "fp32"], default="bf16", help="of a LoRA file (default: bf16)"
        )
    parser.add_argument("--overwrite", action="store_true", help="replace the file that is there")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="where to compute")


def _rank(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("a rank is 1 or more")
    return number


def _share(text: str) -> float:
    number = float(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError("a share is above 0 and at most 1, such as 0.95")
    return number


def _path(text: str) -> str:
    try:
        return str(resolve(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(main())
