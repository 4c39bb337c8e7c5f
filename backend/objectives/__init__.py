"""Computes what a model is trained to predict: noise levels, noisy input, target, weights and sampler steps."""
