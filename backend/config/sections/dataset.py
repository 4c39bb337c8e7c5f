"""Declares [dataset]: the pictures and how they become batches."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from backend.config.declare import Section, optional_path, setting
from backend.config.sections.values import caption_ending, clean_path, multiple_of, not_blank


def control_path() -> Any:
    """The setting of a folder with control images, which belongs to a folder of images."""
    return optional_path(
        label="Control folder",
        help="For models that edit images (FLUX.1 Kontext, Qwen-Image-Edit): folder with the image to start from "
        "for each image, with the same file name. The image in the first folder is the result. Where the model "
        "takes several control images, number them: cat_0.png and cat_1.png for cat.png. Other models take "
        "none.",
        aliases=("control_directory", "conditioning_data_dir", "control_dir", "source_dir"),
    )


def mask_path() -> Any:
    """The setting of a folder with masks, which belongs to a folder of images."""
    return optional_path(
        label="Mask folder",
        help="Folder with a mask for each image, with the same file name: white parts count in the loss, black parts "
        "as the weight outside of the mask says. Names that end in -masklabel, as OneTrainer has them, are found too, "
        "and may lie in the image folder itself.",
        aliases=("mask_dir", "mask_directory", "masks_dir"),
    )


class ImageFolder(Section):
    """One row of [[dataset.folders]]."""

    path: Annotated[str, AfterValidator(clean_path)] = setting(
        kind="path",
        min_length=1,
        label="Image folder",
        help="Folder with the images and their captions, which have the same file name. Sub-folders are read too. Or a "
        "list of files with their captions: a .jsonl file with image_path or video_path, and caption, in each line.",
        aliases=("image_dir", "train_data_dir", "image_directory", "folder_path", "instance_data_dir"),
    )
    num_repeats: int = setting(
        1,
        ge=1,
        le=10000,
        label="Repeats",
        help="How often each image of this folder is used in one epoch. Raise it to give a small folder more weight "
        "compared with a large one.",
        aliases=("repeats", "n_repeats", "dataset_repeats", "balancing"),
    )
    control_path: Annotated[str, AfterValidator(clean_path)] | None = control_path()
    is_reg: bool = setting(
        False,
        label="Regularization",
        help="DreamBooth: these images show the class of the subject (dogs, when the LoRA learns one dog), so that the "
        "model keeps what it knows of it. Their captions get no trigger word, none are held out for validation, and "
        "their loss counts prior_loss_weight times.",
        aliases=("regularization", "reg", "is_regularization"),
    )
    class_tokens: Annotated[str, AfterValidator(not_blank)] | None = setting(
        None,
        min_length=1,
        label="Caption without file",
        help="Caption of the images of this folder that have no caption file. Empty: none; in a regularization folder "
        "the words of a sub-folder's name, dog for 10_dog.",
        aliases=("instance_prompt", "class_prompt"),
    )
    class_images: int | None = setting(
        None,
        ge=1,
        le=100_000,
        unit="images",
        label="Class images to draw",
        help="Regularization images that this folder should hold. The base model draws those that are missing, from "
        "the caption without file: on the Preview tab, or with launcher.py sample --class-images SETTINGS.toml.",
        aliases=("num_class_images", "min_num_class_images"),
    )
    trigger_word: Annotated[str, AfterValidator(not_blank)] | None = setting(
        None,
        min_length=1,
        label="Trigger word",
        help="Trigger word of this folder, in place of that of all folders. Regularization images have none.",
        aliases=("trigger", "activation_text"),
        advanced=True,
    )
    caption_prefix: Annotated[str, AfterValidator(not_blank)] | None = setting(
        None,
        min_length=1,
        label="Caption prefix",
        help="Written in front of each caption of this folder, with a space between. It is part of the caption when "
        "tags are shuffled.",
        aliases=("prefix", "prepend"),
        advanced=True,
    )
    caption_suffix: Annotated[str, AfterValidator(not_blank)] | None = setting(
        None,
        min_length=1,
        label="Caption suffix",
        help="Written after each caption of this folder, with a space between.",
        aliases=("suffix", "append"),
        advanced=True,
    )
    metadata_file: Annotated[str, AfterValidator(clean_path)] | None = optional_path(
        label="Caption table",
        help="One file with the captions of many images: JSON as sd-scripts writes it (meta_cap.json, meta_lat.json), "
        "JSON lines as Hugging Face data sets have them (metadata.jsonl), or CSV. Tables in the folder itself are "
        "found without this. The caption file of an image counts before the table.",
        aliases=("in_json", "caption_metadata_filename", "caption_table"),
        advanced=True,
    )
    mask_path: Annotated[str, AfterValidator(clean_path)] | None = mask_path()


class DatasetSection(Section):
    """Where the pictures are and how they are sized, grouped and captioned."""

    folders: list[ImageFolder] = setting(
        list,
        label="Image folders",
        help="The folders to train on. Choose the main folder, not each 10_name inside it: the number in the name "
        "of such a sub-folder multiplies its repeats.",
        aliases=("train_data_dir", "datasets", "subsets", "concepts", "instance_data_dir", "image_directory"),
        basic=True,
    )
    excluded_images: list[Annotated[str, AfterValidator(clean_path)]] | None = setting(
        None,
        min_length=1,
        label="Excluded images",
        help="Files in the image folders that are not trained on, nor measured, by their paths: near-duplicates that "
        "the Dataset tab leaves out, or others. The files themselves stay as they are.",
        advanced=True,
    )
    resolution: int = setting(
        1024,
        ge=16,
        le=8192,
        unit="px",
        label="Resolution",
        help="Every image is scaled to the area of a square with this side; a wide image keeps its shape at the "
        "same area. FLUX is made for 1024; 768 or 512 trains faster with less memory and learns less detail.",
        aliases=("max_resolution", "train_resolution", "image_size", "size"),
        basic=True,
    )
    min_bucket_size: int = setting(
        256,
        ge=16,
        le=16384,
        unit="px",
        label="Minimum bucket side",
        help="No side of a bucket is shorter than this. Very long images are cropped to it.",
        aliases=("min_bucket_reso", "min_bucket_resolution", "minimum_image_size"),
        advanced=True,
    )
    max_bucket_size: int = setting(
        2048,
        ge=16,
        le=16384,
        unit="px",
        label="Maximum bucket side",
        help="No side of a bucket is longer than this.",
        aliases=("max_bucket_reso", "max_bucket_resolution", "maximum_image_size"),
        advanced=True,
    )
    bucket_step: int = setting(
        16,
        ge=1,
        le=1024,
        unit="px",
        label="Bucket resolution step",
        help="Bucket sides are multiples of this. It must be a multiple of the pixels that one token covers (16 for "
        "FLUX). Larger steps give fewer different shapes and crop a little more.",
        aliases=("bucket_reso_steps", "bucket_resolution_steps", "aspect_bucket_alignment"),
        advanced=True,
    )
    no_upscale: bool = setting(
        False,
        label="Don't upscale images",
        help="Images smaller than the resolution keep their size. This makes more different shapes. Turn it on when "
        "upscaled images would teach blur.",
        aliases=("bucket_no_upscale", "no_upscaling"),
    )
    control_resolution: int | None = setting(
        None,
        ge=32,
        le=4096,
        unit="px",
        label="Control resolution",
        help="Each control image is scaled to the area of a square with this side, with its own proportions. Empty: "
        "the model's own value, 1024. 512 trains faster with less memory, and the model sees fewer details of "
        "the control image.",
        aliases=("qwen_image_edit_control_resolution", "control_reso"),
        advanced=True,
    )
    batch_size: int = setting(
        1,
        ge=1,
        le=1024,
        unit="images",
        label="Batch size",
        help="Images that go through the model together in one step. A larger batch needs more memory; gradient "
        "accumulation has nearly the same effect on training without the memory.",
        aliases=("train_batch_size", "per_device_train_batch_size", "train_micro_batch_size_per_gpu", "bs"),
        basic=True,
    )
    caption_extension: Annotated[str, AfterValidator(caption_ending)] = setting(
        ".txt",
        label="Caption extension",
        help="File ending of the captions, which are next to the images.",
        aliases=("caption_ext", "caption_extention", "caption_file_extension"),
        basic=True,
    )
    trigger_word: Annotated[str, AfterValidator(not_blank)] | None = setting(
        None,
        min_length=1,
        label="Trigger word",
        help="Added at the start of every caption that does not contain it, so that this word triggers the LoRA in "
        "a prompt.",
        aliases=("instance_prompt", "trigger", "activation_text", "class_tokens"),
        basic=True,
    )
    max_token_length: Annotated[int, AfterValidator(multiple_of(75))] = setting(
        75,
        ge=75,
        le=225,
        unit="tokens",
        label="Max token length",
        help="For SDXL and SD 1.5, whose text encoders read 75 tokens at a time: 150 or 225 allow longer captions "
        "in two or three parts, as in sd-scripts. The UNet then processes more text, which takes a little "
        "time.",
        aliases=("max_tokens", "max_prompt_tokens"),
        advanced=True,
    )
    caption_dropout_rate: float = setting(
        0.0,
        ge=0,
        le=1,
        unit="share",
        label="Caption dropout rate",
        help="How often an image is trained with an empty caption (0.1 is 10 %). With 0.05 to 0.1 the style also "
        "appears without the trigger word; 0 is off.",
        aliases=("caption_dropout", "cond_dropout_rate", "uncond_p", "caption_dropout_probability"),
    )
    caption_dropout_every_n_epochs: int | None = setting(
        None,
        ge=1,
        unit="epochs",
        label="Caption dropout every N epochs",
        help="Every N epochs, one whole epoch is trained with empty captions. Empty: never.",
        advanced=True,
    )
    transparency: Literal["white", "black", "grey"] = setting(
        "white",
        label="Background of transparent images",
        help="Colour behind transparent images. The hidden colour of transparent pixels is never trained.",
        aliases=("alpha_background", "transparent_background", "background_color"),
    )
    sample_ratio: float = setting(
        1.0,
        gt=0,
        le=1,
        unit="share",
        label="Share of images per epoch",
        help="Share of the images that each epoch uses, chosen again at random for every epoch. 1 uses all images. "
        "Lower it for very large data sets, so that epochs, and everything that happens once an epoch, come "
        "more often.",
        aliases=("dataset_sample_ratio", "samples_ratio", "probability"),
        advanced=True,
    )
    validation_split: float = setting(
        0.0,
        ge=0,
        lt=1,
        unit="share",
        label="Validation split",
        help="Share of the training images that is not trained and only measured. 0.1 with fifty or more images "
        "shows when the LoRA starts to overfit; 0 trains on all images.",
        aliases=("validation_ratio", "eval_split", "val_split"),
    )
    validation_split_seed: int = setting(
        42,
        ge=0,
        le=2**32 - 1,
        label="Validation split seed",
        help="Chooses which images are kept for validation. Keep the same seed to compare runs on the same images.",
        advanced=True,
    )
    cache_dir: Annotated[str, AfterValidator(clean_path)] | None = optional_path(
        label="Latent and caption cache folder",
        help="Folder for encoded images and captions, which are used again in later runs. Empty: the folder cache "
        "of the project, never next to the images. It needs about 1 MB for an image of 1024 px and 4 MB for a "
        "FLUX caption.",
        aliases=("cache_directory", "latent_cache_dir", "cache_dir_name", "vae_cache_dir"),
        advanced=True,
    )
    loader_workers: int = setting(
        0,
        ge=0,
        le=64,
        label="Data loader workers",
        help="Threads that read the caches ahead. 0 reads when a batch is needed, which is enough on a local disk. "
        "Raise it when the Run tab shows loader wait.",
        aliases=("max_data_loader_n_workers", "dataloader_num_workers", "num_workers", "dataloader_threads"),
        advanced=True,
    )
