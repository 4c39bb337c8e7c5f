"""Model families: what they are, without torch, and their code.

Torch-free: `files`, `activations`, `shift`, `spec`, `table`, `family_check`, and of a family `facts` and `layout`. With
torch: `family`, `families`, `common`, and of a family `denoiser` and `encoders`.
"""
