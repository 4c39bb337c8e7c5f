"""Lists the known failures of a trainer as data: what happened, why, and what to change.

The wordings come from torch 2.11 to 2.13, Triton, safetensors, Pillow, sqlite, CPython and Windows, and from public
reports about trainers of this kind. Order matters: the first rule that fits is taken, so the particular comes first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from re import Pattern


@dataclass(frozen=True)
class Rule:
    """One known failure. In the sentences ``{name}`` is the pattern's group of that name."""

    kind: str
    """A short word that stays the same."""
    pattern: Pattern[str]
    """Searched in the last exception, which is "Type: message"."""
    text: str
    cause: str
    remedy: str


def _rule(kind: str, pattern: str, text: str, cause: str, remedy: str) -> Rule:
    return Rule(kind, re.compile(pattern, re.IGNORECASE | re.DOTALL), text, cause, remedy)


_LESS_VRAM = (
    "Turn gradient_checkpointing on, lower batch_size (raise gradient_accumulation_steps to make up for it), then "
    "lower resolution or network_dim; close other programs that use the GPU."
)
LESS_RAM = (
    "Close other programs, set loader_workers to 0, or let the system use more swap space (Windows: page file). The "
    "Memory tab shows how much RAM a run needs; fewer blocks_to_swap and base_quantization lower it."
)
_SET_UP = "Start launcher.py again: it installs what requirements.txt names."
_COPY_AGAIN = "Copy or download the file again and compare its size with the original's."
_NO_COMPILE = "Set compile to false to train without it; launcher.py doctor shows what is missing."

RULES: tuple[Rule, ...] = (
    # Memory of the GPU
    _rule(
        "cuda_oom",
        r"out of memory.*?tried to allocate (?P<wanted>[\d.]+ \w+).*?total capac\w* of (?P<total>[\d.]+ \w+) of which "
        r"(?P<free>[\d.]+ \w+) is free",
        "The GPU ran out of memory: {wanted} more were needed, {free} of {total} were free.",
        "Model, pictures and settings together need more VRAM than is free on this GPU.",
        _LESS_VRAM,
    ),
    _rule(
        "cuda_oom",
        r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|"
        r"CUDNN_STATUS_ALLOC_FAILED|HIP out of memory|MPS backend out of memory|cudaErrorMemoryAllocation|"
        r"CUDA driver error: out of memory|Triton Error \[CUDA\]: out of memory",
        "The GPU ran out of memory.",
        "Model, pictures and settings together need more VRAM than is free on this GPU.",
        _LESS_VRAM,
    ),
    # Memory of the machine
    _rule(
        "page_file",
        r"WinError 1455|paging file is too small",
        "Windows has no more memory to give: the page file is too small.",
        "Loading a model needs more memory than RAM and page file hold together.",
        "Make the page file larger (Advanced system settings, Performance, Virtual memory), or close programs.",
    ),
    _rule(
        "shared_memory",
        r"DataLoader worker.*(bus error|SIGBUS)|insufficient shared memory|unable to (open|write).*shared memory",
        "A loader process ran out of shared memory.",
        "Containers have little shared memory (/dev/shm).",
        "Set loader_workers to 0, or start the container with a larger --shm-size.",
    ),
    _rule(
        "ram",
        r"DataLoader worker.*killed",
        "A loader process was killed.",
        "The machine ran out of memory (RAM), so the system ended it.",
        LESS_RAM,
    ),
    _rule(
        "ram",
        r"(?:can't allocate memory|not enough memory).*?you tried to allocate (?P<wanted>\d+) bytes",
        "The machine ran out of memory (RAM): {wanted} more were needed.",
        "Model and caches need more RAM than is free.",
        LESS_RAM,
    ),
    _rule(
        "ram",
        r"^MemoryError|\bMemoryError\b|cannot allocate memory|bad_alloc|Errno 12\]|ArrayMemoryError",
        "The machine ran out of memory (RAM).",
        "Model and caches need more RAM than is free.",
        LESS_RAM,
    ),
    # Disks and files
    _rule(
        "disk_full",
        r"no space left on device|not enough space on the disk|disk quota exceeded|os error (?:28|112|122)\b|"
        r"database or disk is full|PytorchStreamWriter failed|inline_container.*(?:file write failed|unexpected pos)",
        "The disk is full.",
        "A file did not fit on the disk. The file that it was to replace is still there.",
        "Free some space, or choose an output_dir (or cache_dir, compile_cache_dir) on another disk, then resume.",
    ),
    _rule(
        "file_in_use",
        r"WinError 32|being used by another process",
        "A file is in use by another program.",
        "On Windows a file that another program has open can't be replaced.",
        "Close the program that uses it (a viewer, a sync tool, a virus scanner), then resume.",
    ),
    _rule(
        "read_only",
        r"Errno 30\]|read-only file system",
        "The disk is read-only.",
        "The folder is on a disk that is mounted read-only.",
        "Choose an output_dir on a disk that you can write to.",
    ),
    _rule(
        "permission",
        r"PermissionError:.*?(?P<path>'[^']+')",
        "Access to {path} was denied.",
        "The user who runs the trainer has no permission to read or write there.",
        "Give that user permission, or choose another folder.",
    ),
    _rule(
        "too_many_files",
        r"too many open files|Errno 24\]",
        "Too many files were open at once.",
        "The system's limit for open files is low, or many loader workers share it.",
        "Set loader_workers to 0, or raise the limit (Linux: ulimit -n 65536).",
    ),
    _rule(
        "path_too_long",
        r"WinError 206|file name too long|Errno 36\]",
        "A path is too long for this system.",
        "Windows allows 260 characters in a path, most systems 255 in a name.",
        "Use a shorter output_name, and a folder closer to the root of the disk.",
    ),
    _rule(
        "safetensors",
        r"SafetensorError|HeaderTooLarge|HeaderTooSmall|InvalidHeader|MetadataIncompleteBuffer|InvalidOffset|"
        r"deserializing header",
        "A .safetensors file is damaged or incomplete.",
        "A download or copy was interrupted, or the file is of another kind (a saved web page, a git-lfs pointer).",
        _COPY_AGAIN,
    ),
    _rule(
        "checkpoint_file",
        r"PytorchStreamReader failed|UnpicklingError|invalid load key|not a ZIP archive|central directory",
        "A model or state file is damaged or of another kind.",
        "A download or copy was interrupted, or it was not written to its end.",
        _COPY_AGAIN,
    ),
    _rule(
        "picture",
        r"UnidentifiedImageError:.*?(?P<path>'[^']+')",
        "The picture {path} can't be read.",
        "The file is damaged, empty or no picture.",
        "Remove it from the images folder or replace it, then start again.",
    ),
    _rule(
        "picture",
        r"image file is truncated|broken PNG|UnidentifiedImageError|broken data stream|DecompressionBomb",
        "A picture can't be read.",
        "The file is damaged or incomplete, or its size is not plausible.",
        "Remove it from the images folder or replace it; the Dataset tab lists pictures with problems.",
    ),
    _rule(
        "json",
        r"JSONDecodeError",
        "A JSON file of the model can't be read.",
        "A download or copy was interrupted, or the file was edited by hand.",
        _COPY_AGAIN,
    ),
    _rule(
        "encoding",
        r"UnicodeDecodeError",
        "A text file is not in UTF-8.",
        "A caption or a configuration was saved with another encoding.",
        "Save it as UTF-8; the Dataset tab names captions with problems.",
    ),
    _rule(
        "missing_model_file",
        r"no file named|does not appear to have a file named|EntryNotFound|is not a local folder|"
        r"LocalEntryNotFoundError|can't load (?:the )?(?:tokenizer|model|configuration|config) for|"
        r"couldn't connect to|HFValidationError",
        "A part of the base model is missing.",
        "The folder in base_model is not complete; nothing is downloaded.",
        "Set base_model to a complete diffusers folder (model_index.json in it); the Model tab lists what is missing.",
    ),
    _rule(
        "missing_file",
        r"(?:FileNotFoundError|NotADirectoryError):.*?(?P<path>'[^']+')",
        "{path} was not found.",
        "The file or folder was moved, renamed or deleted, or is on a disk that is not connected.",
        "Put it back, or correct the path in the settings.",
    ),
    _rule(
        "weights_mismatch",
        r"size mismatch for|error\(s\) in loading state_dict|unexpected key\(s\) in state_dict|missing key\(s\)",
        "The weights don't fit the model.",
        "The file belongs to another model, another family, or a LoRA of another rank.",
        "Check base_model, variant and network_weights against each other.",
    ),
    # Numbers
    _rule(
        "nan",
        r"\bnon-?finite\b|NotFinite|not (?:a )?finite\b|became (?:nan|-?inf)\b|\bloss (?:is|was) nan\b|"
        r"\bnan (?:loss|gradient|values?)\b|FloatingPointError",
        "Training diverged: a value became NaN or infinite.",
        "The learning rate is too high for this optimizer, a picture or caption is unusual, or fp16 overflowed.",
        "Lower learning_rate, keep max_grad_norm at 1.0, use bf16 as mixed_precision; resume from the last good state.",
    ),
    # Compiling
    _rule(
        "recompile_limit",
        r"FailOnRecompileLimitHit|recompile_limit|cache_size_limit reached",
        "The recompile limit was reached.",
        "More shapes reached one compiled block than were planned for.",
        "Set shape_mode to static, or raise compile_cache_size_limit; the plan shows how many graphs are needed.",
    ),
    _rule(
        "cuda_graphs",
        r"overwritten by a subsequent run",
        "A CUDA graph's memory was overwritten.",
        "torch's backend cudagraphs can't run several backward passes between two steps.",
        "Set compile_backend to inductor.",
    ),
    _rule(
        "python_headers",
        r"Python\.h: no such file|Python\.h' file not found",
        "torch.compile needs Python's header files, and they are missing.",
        "Triton builds a small C module, and the development files of the system's Python are not installed.",
        "Linux: sudo apt install python3-dev (or python3-devel). Or set compile to false.",
    ),
    _rule(
        "c_compiler",
        r"failed to find C compiler|no working C\+\+ compiler|InvalidCxxCompiler|Compiler: \S+ is not found|"
        r"(?:gcc|g\+\+|cl\.exe|clang)'? ?(?:: not found|is not recognized)|"
        r"no such file or directory: '(?:gcc|g\+\+|cc|cl)'",
        "torch.compile needs a C compiler, and none was found.",
        "torch.compile builds small C programs with the system's compiler.",
        "Linux: sudo apt install build-essential. Windows: Visual Studio Build Tools, C++. Or set compile to false.",
    ),
    _rule(
        "triton",
        r"TritonMissing|working triton installation|no module named 'triton|triton is not available",
        "torch.compile needs Triton for the GPU, and it is missing.",
        "It comes with torch on Linux; on Windows it is the package triton-windows.",
        "Linux: reinstall torch. Windows: run launcher.py, which installs triton-windows. Or set compile to false.",
    ),
    _rule(
        "compile_unsupported",
        r"torch\._dynamo\.exc\.(?:Unsupported|UserError|InternalTorchDynamoError)|graph break.*fullgraph",
        "torch.compile found code that it can't compile in one graph.",
        "With compile_fullgraph on, one such place ends the run.",
        "Set compile_fullgraph to false, or compile to false.",
    ),
    _rule(
        "compile_failed",
        r"BackendCompilerFailed|InductorError|LoweringException|CppCompileError|triton\.(?:compiler|runtime)\.errors|"
        r"PTXASError|ptxas|NoValidChoicesError",
        "torch.compile failed on a part of the model.",
        "torch's compiler or Triton can't build this code on this machine.",
        _NO_COMPILE,
    ),
    # GPU, driver, build
    _rule(
        "driver_old",
        r"driver on your system is too old \(found version (?P<cuda>\d+)\)",
        "The NVIDIA driver is too old for this torch (it supports CUDA {cuda}).",
        "torch was built for a newer CUDA than the driver supports.",
        "Update the NVIDIA driver, or install a torch for an older CUDA with launcher.py --torch-index.",
    ),
    _rule(
        "driver_old",
        r"driver version is insufficient|driver on your system is too old|forward compatibility was attempted",
        "The NVIDIA driver is too old for this torch.",
        "torch was built for a newer CUDA than the driver supports.",
        "Update the NVIDIA driver, or install a torch for an older CUDA with launcher.py --torch-index.",
    ),
    _rule(
        "no_cuda",
        r"not compiled with CUDA enabled",
        "This torch is built for the CPU only.",
        "The installed build of torch has no support for the GPU.",
        "Run launcher.py --torch-index with the address that PyTorch's install page gives for your CUDA version.",
    ),
    _rule(
        "no_gpu",
        r"found no NVIDIA driver|no CUDA-capable device|No CUDA GPUs are available|CUDA driver initialization failed|"
        r"cuda unknown error|nvml.*(?:not found|unknown error)|no NVIDIA GPU",
        "No usable NVIDIA GPU was found.",
        "The driver is missing, was updated without a restart, or CUDA_VISIBLE_DEVICES hides the GPU.",
        "Restart the machine and check that nvidia-smi shows the GPU; if it does not, reinstall the driver.",
    ),
    _rule(
        "gpu_busy",
        r"device\(s\) is/are busy or unavailable",
        "The GPU is in use by another program.",
        "The GPU is set to exclusive mode: one process at a time.",
        "Close the other program, or ask the administrator of this machine.",
    ),
    _rule(
        "gpu_too_old",
        r"no kernel image is available|is not compatible with the current PyTorch installation|ptx was compiled with",
        "This build of torch does not support this GPU.",
        "The GPU is older or newer than what this build of torch was made for.",
        "Install a torch that fits the GPU with launcher.py --torch-index.",
    ),
    _rule(
        "gpu_lost",
        r"fallen off the bus|GPU is lost|unspecified launch failure|uncorrectable ECC|device lost|"
        r"CUDA error: unknown error|misaligned address|hardware stack error",
        "The GPU stopped responding.",
        "Heat, power, overclocking or the driver; on Windows also a step longer than two seconds on a display GPU.",
        "Undo overclocking, check cooling and power, restart the machine, then resume.",
    ),
    _rule(
        "gpu_code",
        r"illegal memory access|device-side assert|CUBLAS_STATUS|CUDNN_STATUS|cuDNN error|CUDA error",
        "A computation on the GPU failed.",
        "A kernel does not work with this GPU, driver or setting.",
        "Set attention to sdpa, then compile to false, to find which one it is; update the driver.",
    ),
    _rule(
        "mixed_devices",
        r"expected all tensors to be on the same device|found at least two devices",
        "A part of the model was on another device than its input.",
        "This is a bug in Monotile, or a combination of settings that it should not accept.",
        "Please report it with log.txt and config.toml; compile set to false may avoid it.",
    ),
    _rule(
        "dtype",
        r"not implemented for '(?:Half|BFloat16|Float8\w*)'|bf16 .*not supported|does not support bfloat16",
        "This device can't compute in the chosen precision.",
        "fp16 and bf16 are not available for every operation on every device.",
        "Set mixed_precision to no and weight_dtype to fp32.",
    ),
    # Packages
    _rule(
        "missing_module",
        r"no module named '(?P<module>flash_attn|flash_attn_interface|xformers|sageattention)",
        "The Python package {module} is missing.",
        "The chosen attention needs it, and it could not be installed here.",
        "Set attention to auto, or install the extras of requirements-gpu.txt.",
    ),
    _rule(
        "missing_module",
        r"no module named '(?P<module>[\w.]+)",
        "The Python package {module} is missing.",
        "The environment is not complete, or the trainer runs with another Python than the launcher's.",
        _SET_UP,
    ),
    _rule(
        "missing_library",
        r"ImportError: (?P<library>[\w.+-]+): cannot open shared object file",
        "The system library {library} is missing.",
        "A Python package needs a library of the system, or of CUDA.",
        "Install it with the system's package manager, or create .venv again with launcher.py.",
    ),
    _rule(
        "missing_library",
        r"DLL load failed|WinError 126|WinError 127|0xc0000135",
        "A library (DLL) could not be loaded.",
        "On Windows the Visual C++ runtime is missing or a package is damaged.",
        "Install Microsoft's Visual C++ Redistributable (x64), then start launcher.py again.",
    ),
    _rule(
        "package_versions",
        r"cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'",
        "{module} has no {name}: its version does not fit the others.",
        "The environment holds packages whose versions do not fit together.",
        _SET_UP,
    ),
    _rule(
        "port",
        r"address already in use|Errno 98\]|WinError 10048",
        "The port is already in use.",
        "Another program, or another Monotile, uses it.",
        "Choose another one with --port.",
    ),
    _rule(
        "interrupted",
        r"^KeyboardInterrupt",
        "The run was interrupted from the keyboard.",
        "Ctrl+C was pressed, or the terminal was closed.",
        "Resume the run when you like.",
    ),
)
