"""Declares [dataset]: the pictures and how they become batches."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from backend.config.declare import Section, setting
from backend.config.sections.values import caption_ending, clean_path, multiple_of, not_blank


def control_path() -> Any:
    """The setting of a folder with control pictures, beside a folder of pictures."""
    return setting(
        None,
        kind="path",
        min_length=1,
        label="Control folder",
        help="For models that edit (FLUX.1 Kontext, Qwen-Image-Edit): folder with the picture to start from for each "
        "picture, under the same name. The picture in the first folder is the result. Where the model takes several, "
        "number them: cat_0.png and cat_1.png for cat.png. Other models take none.",
        aliases=("control_directory", "conditioning_data_dir", "control_dir", "source_dir"),
    )


class ImageFolder(Section):
    """One row of [[dataset.folders]]."""

    path: Annotated[str, AfterValidator(clean_path)] = setting(
        kind="path",
        min_length=1,
        label="Folder",
        help="Folder with the pictures, captions beside them under the same name. Sub-folders are read too.",
        aliases=("image_dir", "train_data_dir", "image_directory", "folder_path", "instance_data_dir"),
    )
    num_repeats: int = setting(
        1,
        ge=1,
        le=10000,
        label="Repeats",
        help="How often each picture of this folder is used in one epoch. Raise it to give a small folder more weight "
        "beside a large one.",
        aliases=("repeats", "n_repeats", "dataset_repeats", "balancing"),
    )
    control_path: Annotated[str, AfterValidator(clean_path)] | None = control_path()


class DatasetSection(Section):
    """Where the pictures are and how they are sized, grouped and captioned."""

    folders: list[ImageFolder] = setting(
        list,
        label="Image folders",
        help="The folders to train on. Choose the folder itself, not each 10_name inside it: the number in such a "
        "sub-folder's name multiplies its repeats.",
        aliases=("train_data_dir", "datasets", "subsets", "concepts", "instance_data_dir", "image_directory"),
    )
    resolution: int = setting(
        1024,
        ge=16,
        le=8192,
        unit="px",
        label="Resolution",
        help="Side of the square whose area every picture is scaled to; a wide picture keeps its shape at the same "
        "area. 1024 is what FLUX is made for; 768 or 512 trains faster in less memory and learns less "
        "detail.",
        aliases=("max_resolution", "train_resolution", "image_size", "size"),
    )
    min_bucket_size: int = setting(
        256,
        ge=16,
        le=16384,
        unit="px",
        label="Smallest side",
        help="No bucket gets a side shorter than this. Very long pictures are cropped to it.",
        aliases=("min_bucket_reso", "min_bucket_resolution", "minimum_image_size"),
        advanced=True,
    )
    max_bucket_size: int = setting(
        2048,
        ge=16,
        le=16384,
        unit="px",
        label="Longest side",
        help="No bucket gets a side longer than this.",
        aliases=("max_bucket_reso", "max_bucket_resolution", "maximum_image_size"),
        advanced=True,
    )
    bucket_step: int = setting(
        16,
        ge=1,
        le=1024,
        unit="px",
        label="Bucket step",
        help="Bucket sides are multiples of this. It must be a multiple of the pixels a token covers (16 for "
        "FLUX). Larger steps give fewer different shapes and crop a little more.",
        aliases=("bucket_reso_steps", "bucket_resolution_steps", "aspect_bucket_alignment"),
        advanced=True,
    )
    no_upscale: bool = setting(
        False,
        label="Never enlarge",
        help="Pictures smaller than the resolution keep their size instead of being enlarged. It makes more different "
        "shapes; turn it on when enlarged pictures would teach blur.",
        aliases=("bucket_no_upscale", "no_upscaling"),
    )
    control_resolution: int | None = setting(
        None,
        ge=32,
        le=4096,
        unit="px",
        label="Control resolution",
        help="Side of the square whose area each control picture is scaled to, in its own proportions. Empty takes the "
        "model's own, 1024. 512 trains faster in less memory, and the model sees less of what it starts from.",
        aliases=("qwen_image_edit_control_resolution", "control_reso"),
        advanced=True,
    )
    batch_size: int = setting(
        1,
        ge=1,
        le=1024,
        unit="images",
        label="Batch size",
        help="Pictures that go through the model together in one step. More needs more memory; gradient "
        "accumulation has nearly the same effect on training without it.",
        aliases=("train_batch_size", "per_device_train_batch_size", "train_micro_batch_size_per_gpu", "bs"),
    )
    caption_extension: Annotated[str, AfterValidator(caption_ending)] = setting(
        ".txt",
        label="Caption extension",
        help="Ending of the caption files that lie beside the pictures.",
        aliases=("caption_ext", "caption_extention", "caption_file_extension"),
    )
    trigger_word: Annotated[str, AfterValidator(not_blank)] | None = setting(
        None,
        min_length=1,
        label="Trigger word",
        help="Put in front of every caption that does not hold it already, so that the word calls up what was learnt.",
        aliases=("instance_prompt", "trigger", "activation_text", "class_tokens"),
    )
    max_token_length: Annotated[int, AfterValidator(multiple_of(75))] = setting(
        75,
        ge=75,
        le=225,
        unit="tokens",
        label="Longest caption",
        help="For SDXL and SD 1.5, whose text encoders read 75 tokens at a time: 150 or 225 give them longer captions "
        "in two or three parts, as sd-scripts does. The UNet then sees more text, which costs a little time.",
        aliases=("max_tokens", "max_prompt_tokens"),
        advanced=True,
    )
    caption_dropout_rate: float = setting(
        0.0,
        ge=0,
        le=1,
        unit="share",
        label="Caption dropout",
        help="Share of steps in which a picture is trained with an empty caption. 0.05 to 0.1 makes the style show "
        "without the trigger word too; 0 turns it off.",
        aliases=("caption_dropout", "cond_dropout_rate", "uncond_p", "caption_dropout_probability"),
    )
    caption_dropout_every_n_epochs: int | None = setting(
        None,
        ge=1,
        unit="epochs",
        label="Captionless epoch every",
        help="Every this many epochs, one whole epoch is trained with empty captions. Empty: never.",
        advanced=True,
    )
    transparency: Literal["white", "black", "grey"] = setting(
        "white",
        label="Behind transparency",
        help="Colour put behind transparent pictures. The hidden colour of transparent pixels is never trained.",
        aliases=("alpha_background", "transparent_background", "background_color"),
    )
    sample_ratio: float = setting(
        1.0,
        gt=0,
        le=1,
        unit="share",
        label="Share per epoch",
        help="Share of the pictures used in each epoch, drawn anew every time. 1 uses all of them. Lower it for "
        "very large sets, so that epochs, and all that happens per epoch, come more often.",
        aliases=("dataset_sample_ratio", "samples_ratio", "probability"),
        advanced=True,
    )
    validation_split: float = setting(
        0.0,
        ge=0,
        lt=1,
        unit="share",
        label="Held out for validation",
        help="Share of the training pictures that is kept back and only measured. 0.1 of fifty pictures or more "
        "shows when training starts to learn by heart; 0 trains on everything.",
        aliases=("validation_ratio", "eval_split", "val_split"),
    )
    validation_split_seed: int = setting(
        42,
        ge=0,
        le=2**32 - 1,
        label="Split seed",
        help="Chooses which pictures are held out. Keep it to compare runs on the same pictures.",
        advanced=True,
    )
    cache_dir: Annotated[str, AfterValidator(clean_path)] | None = setting(
        None,
        kind="path",
        min_length=1,
        label="Cache folder",
        help="Where encoded pictures and captions are kept between runs. Empty puts them in the project's "
        "folder cache, never beside the images. It takes about 1 MB for a picture of 1024 px and 4 MB for a FLUX "
        "caption.",
        aliases=("cache_directory", "latent_cache_dir", "cache_dir_name", "vae_cache_dir"),
        advanced=True,
    )
    loader_workers: int = setting(
        0,
        ge=0,
        le=64,
        label="Loader workers",
        help="Threads that read the caches ahead. 0 reads when a batch is needed, which is enough on a local disk; "
        "raise it when the panel shows loader wait.",
        aliases=("max_data_loader_n_workers", "dataloader_num_workers", "num_workers", "dataloader_threads"),
        advanced=True,
    )
