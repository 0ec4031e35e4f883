// Attention on tensor cores with heads of 128 numbers, whatever is asked for: see attention_mma.cuh.
#define HEAD 128
#define ANY true
#include "attention_mma.cuh"
