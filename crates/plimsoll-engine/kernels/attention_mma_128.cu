// Attention on tensor cores with heads of 128 numbers, without bias and dropout: see attention_mma.cuh.
#define HEAD 128
#define ANY false
#include "attention_mma.cuh"
