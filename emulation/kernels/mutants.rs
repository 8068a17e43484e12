//! Mutation testing: copies of the kernels with one bug each, on which the tests must fail.

/// A bug in the kernels for one combination of types.
pub struct Mutant {
    pub name: &'static str,
    pub types: &'static str,
    pub file: &'static str,
    /// The text to replace, which the file has exactly once.
    pub from: &'static str,
    pub to: &'static str,
}

/// Bugs in the attention kernels.
pub const ATTENTION_MUTANTS: [Mutant; 9] = [
    Mutant {
        name: "causal_mask_lost",
        types: "f16_i8_f16",
        file: "attend.cuh",
        from: "if (slot < 0 || t >= tile.visible[r]) {",
        to: "if (slot < 0) {",
    },
    Mutant {
        name: "threads_not_added",
        types: "f16_i4_f16",
        file: "attend.cuh",
        from: "for (u32 at = d + shares.row(); at",
        to: "for (u32 at = d + 2 * shares.row(); at",
    },
    Mutant {
        name: "one_plane_of_the_mask",
        types: "f32_f32",
        file: "attend.cuh",
        from: "head * p.mask_plane + ",
        to: "",
    },
    Mutant {
        name: "barrier_before_the_weights_lost",
        types: "f16_f16",
        file: "attend.cuh",
        from: "            __syncthreads();\n            weigh<T1>",
        to: "            weigh<T1>",
    },
    Mutant {
        name: "key_head_of_another_group",
        types: "f32_i8_f32",
        file: "attend.cuh",
        from: "unit.h * heads + ",
        to: "unit.h + ",
    },
    Mutant {
        name: "scores_not_scaled",
        types: "f32_i4_f32",
        file: "attend.cuh",
        from: "__fmul_rn(product, p.factor)",
        to: "product",
    },
    Mutant {
        name: "keys_for_values",
        types: "f16_f32",
        file: "attend.cuh",
        from: "HeadRow<T1, T2, T3>(p, 1, slot, unit.h)",
        to: "HeadRow<T1, T2, T3>(p, 0, slot, unit.h)",
    },
    Mutant {
        name: "hidden_values_added",
        types: "f32_f16",
        file: "attend.cuh",
        from: "if (!(weight < 0.0f)) {",
        to: "{",
    },
    Mutant {
        name: "values_not_rounded",
        types: "f32_i8_f16",
        file: "rows.cuh",
        from: "value_of<T1>(value_of_code<T1, T3>(code_in<T2>(word, i), scale))",
        to: "__fmul_rn(code_in<T2>(word, i), value_of<T3>(scale))",
    },
];

/// Bugs in the kernels of `KeyValueCache`.
pub const MUTANTS: [Mutant; 18] = [
    Mutant {
        name: "wrong_shuffle_distance",
        types: "f16_i8_f16",
        file: "store.cuh",
        from: "__shfl_xor_sync(ALL_LANES, amax, distance)",
        to: "__shfl_xor_sync(ALL_LANES, amax, 2 * distance)",
    },
    Mutant {
        name: "group_maximum_within_a_lane_only",
        types: "f32_i8_f32",
        file: "store.cuh",
        from: "u32 distance = p.units_per_group.value / 2;",
        to: "u32 distance = 0;",
    },
    Mutant {
        name: "shuffle_in_a_branch",
        types: "f16_i8_f16",
        file: "store.cuh",
        from: "u32 amax = largest<T1>(values[i][kv]);",
        to: "u32 amax = largest<T1>(values[i][kv]);\nif (place.active) { amax = __shfl_sync(ALL_LANES, amax, 0); }",
    },
    Mutant {
        name: "page_off_by_one",
        types: "f16_f16",
        file: "call.cuh",
        from: ": token / page_size;",
        to: ": (token + 1) / page_size;",
    },
    Mutant {
        name: "page_of_the_next_sequence",
        types: "f16_f16",
        file: "call.cuh",
        from: "p.cachestarts + b * p.max_p + page",
        to: "p.cachestarts + (b + 1) * p.max_p + page",
    },
    Mutant {
        name: "sequence_without_its_stride",
        types: "f16_f16",
        file: "call.cuh",
        from: "return b * p.sequence_stride + (row - b * p.page_size);",
        to: "return row;",
    },
    Mutant {
        name: "quotient_not_rounded_to_half",
        types: "f16_i8_f16",
        file: "quantize.cuh",
        from: "return add_halves(floats_to_halves(x, y), 0x66006600);",
        to: "return __byte_perm(__float_as_uint(__fadd_rn(x, 12582912.0f)), __float_as_uint(__fadd_rn(y, 12582912.0f)), 0x5410);",
    },
    Mutant {
        name: "product_not_rounded_to_half",
        types: "f32_i8_f16",
        file: "quantize.cuh",
        from: "rounded<T3>(__fmul_rn(code, value_of<T3>(scale)))",
        to: "__fmul_rn(code, value_of<T3>(scale))",
    },
    Mutant {
        name: "times_the_reciprocal",
        types: "f32_i8_f32",
        file: "quantize.cuh",
        from: "    return rounded<T>(quotient);",
        to: "    return __fmul_rn(x, reciprocal);",
    },
    Mutant {
        name: "non_finite_scale_hidden",
        types: "f16_i4_f16",
        file: "quantize.cuh",
        from: "scale.non_finite = amax >= INFINITY_OF<T1>;",
        to: "scale.non_finite = false;",
    },
    Mutant {
        name: "nibbles_swapped",
        types: "f16_i4_f16",
        file: "store.cuh",
        from: "low | high << 4",
        to: "high | low << 4",
    },
    Mutant {
        name: "every_lane_writes_the_scale",
        types: "f16_i4_f16",
        file: "store.cuh",
        from: "place.active && place.d == group * p.units_per_group.value",
        to: "place.active",
    },
    Mutant { name: "barrier_lost", types: "f32_f32", file: "call.cuh", from: "    __syncthreads();\n", to: "" },
    Mutant {
        name: "barrier_in_a_branch",
        types: "i8_i8",
        file: "call.cuh",
        from: "    __syncthreads();\n",
        to: "    if (warp != 1) {\n        __syncthreads();\n    }\n",
    },
    Mutant {
        name: "unaligned_access",
        types: "f16_f32",
        file: "access.cuh",
        from: "read<uint4>(at + 16 * i)",
        to: "read<uint4>(at + 8 * i)",
    },
    Mutant {
        name: "work_done_by_every_block",
        types: "i8_i8",
        file: "call.cuh",
        from: "static_cast<u64>(gridDim.x) * (BLOCK / WARP)",
        to: "static_cast<u64>(BLOCK / WARP)",
    },
    Mutant {
        name: "values_like_keys",
        types: "f16_f16",
        file: "load.cuh",
        from: "const i64 at = head + static_cast<i64>(place.d) * PACK;",
        to: "const i64 at = head_at(p.cache_strides, place) + static_cast<i64>(place.d) * PACK;",
    },
    Mutant {
        name: "heads_not_repeated",
        types: "f16_f16",
        file: "load.cuh",
        from: "(place.unit - place.d) * p.num_repeat + place.d;\n#pragma unroll",
        to: "place.unit;\n#pragma unroll",
    },
];
