@echo off
rem trains SDXL
set MODEL=C:\models\sd_xl_base_1.0.safetensors
set "OUT=C:\my loras"
accelerate launch --num_cpu_threads_per_process 1 sdxl_train_network.py ^
  --pretrained_model_name_or_path="%MODEL%" ^
  --train_data_dir "C:\my pictures" --output_dir "%OUT%" --output_name cat ^
  --network_module networks.lora --network_dim 32 --network_alpha 16 ^
  --network_args "conv_dim=8" "conv_alpha=0" ^
  --unet_lr 1e-4 --text_encoder_lr 0 --max_train_steps 2000 --seed 0 ^
  --resolution 1024,1024 --sample_prompts %PROMPTS%
pause
