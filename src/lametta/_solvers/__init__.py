"""Ways to solve LAME: plain for any array, host for NumPy memory, CUDA kernels."""
