// AdamW with moments in bf16, rounded stochastically; the kernel is in `adamw.cuh`.
#define MOM bf16
#include "adamw.cuh"
