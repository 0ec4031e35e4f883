// Attention on tensor cores with heads of 64 numbers, without bias and dropout: see attention_mma.cuh.
#define HEAD 64
#define ANY false
#include "attention_mma.cuh"
