// Attention on tensor cores with heads of 64 numbers, whatever is asked for: see attention_mma.cuh.
#define HEAD 64
#define ANY true
#include "attention_mma.cuh"
