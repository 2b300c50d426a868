"""`CpuOps`: kernels written as arithmetic on symbols and compiled by LLVM at start, for bfloat16 and int8 weights on Linux CPUs."""
