#!/bin/bash
# caches first, then training
export DIT="/models/qwen image/qwen_image_bf16.safetensors"

python src/musubi_tuner/qwen_image_cache_latents.py --dataset_config dataset.toml --vae /models/vae.safetensors

accelerate launch --num_cpu_threads_per_process 1 --mixed_precision bf16 src/musubi_tuner/qwen_image_train_network.py \
    --dit "$DIT" \
    --vae /models/vae.safetensors --text_encoder $TEXT_ENCODER \
    --sdpa --mixed_precision bf16 --fp8_base --fp8_scaled \
    --timestep_sampling shift --discrete_flow_shift 2.2 \
    --optimizer_type adamw8bit --learning_rate 5e-5 --optimizer_args "weight_decay=0.1" "betas=(0.9, 0.98)" \
    --network_module networks.lora_qwen_image \
    --network_dim 16 --network_alpha=0 \
    --max_train_epochs 16 --save_every_n_epochs 1 --seed 42 \
    --output_dir out --output_name qwen-cat --mystery_flag
