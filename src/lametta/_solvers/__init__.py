"""Solvers of LAME's fixed-point iteration: any array library, NumPy, CUDA."""
