// AdamW with moments in f32; the kernel is in `adamw.cuh`.
#include "adamw.cuh"
