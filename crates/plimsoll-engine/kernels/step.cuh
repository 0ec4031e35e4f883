// What a step is about, in device memory, so that a captured step can be run again with other numbers.
#pragma once
#include "number.cuh"

/// Written by the host before a step; see README.md for who writes what.
struct Step {
    u64 seed;
    u64 update;
    u32 first_micro;
    u32 stopped;
    double loss_sum;
    double squares;
    double mean;
    double clip_norm;
    double norm;
    float grad_scale;
    float loss_scale;
    float numbers[16];
    double rates[8];
    u32 judged;
    u32 unused[13];
};
static_assert(sizeof(Step) == 256, "the host has the same");

enum { WRITE_SET = 0, WRITE_SET_FIRST = 1, WRITE_ADD = 2 };

/// Whether a gradient is added to now.
HERE bool adds(u32 write, const Step *step) { return write == WRITE_ADD || (write == WRITE_SET_FIRST && !step->first_micro); }

/// One place of dropout. Where `steps` is not 0, samples have so many rows each, and `sample` points at the first one's index.
struct Drop {
    const u32 *sample;
    const u32 *position;
    u32 place;
    u32 threshold;
    float scale;
    u32 steps;
};
static_assert(sizeof(Drop) == 32, "the host has the same");

/// Of a parameter: it has rows and columns; `master` has its lower halves of 16 bits, `weight` the upper ones, rounded.
enum { MATRIX = 1, SPLIT = 2 };

/// A parameter as the updates see it.
struct Param {
    float *master;
    WGT *weight;
    const GRD *grad;
    void *state0;
    void *state1;
    void *state2;
    float *scratch;
    u64 elements;
    u32 rows;
    u32 cols;
    u32 key;
    u32 flags;
};
static_assert(sizeof(Param) == 80, "the host has the same");
