//! Launches: their kernels, parameters and grids.

use kvcache_schema::ElementType::{Float16, Float32, Int4, Int8};
use kvcache_schema::{CacheDims, CacheLayout, QuantBit};

use super::*;
use crate::problem::Quant;

/// The multiprocessors of a small device.
const FEW: u32 = 2;

/// A call of one sequence, aligned as well as can be.
fn problem(t1: ElementType, t2: ElementType, group: Option<usize>, num_heads: usize, head_dim: usize) -> DeviceProblem {
    let dims = CacheDims { max_t: 64, num_layer: 3, num_heads, inner: head_dim };
    let strides = |dims| CacheLayout::LayerMajor.strides(dims).unwrap();
    let quant = group.map(|group| Quant {
        bits: if t2 == Int4 { QuantBit::Four } else { QuantBit::Eight },
        group,
        rotated: false,
        t3: Float16,
        scale_len: 2 * 64 * 3 * num_heads * head_dim / group,
        scale: strides(CacheDims { inner: head_dim / group, ..dims }),
    });
    let geometry = Geometry {
        batch: 1,
        num_heads,
        head_dim,
        layer_idx: 2,
        t1,
        t2,
        quant,
        cache_len: 2 * 64 * 3 * num_heads * head_dim,
        cache: strides(dims),
    };
    let stores = DeviceStores {
        geometry,
        max_t: 64,
        addressing: DeviceAddressing::Offset,
        current_rows: 5,
        all_rows: 9,
        exact_rows: true,
        current: [0x1000, 0x2000],
        cache: 0x5000,
        scale: 0x6002,
        seqstarts: 0x7000,
        start_pos: 0x7100,
        cachestarts: 0x7200,
        status: 0x7300,
    };
    DeviceProblem { stores, num_repeat: 2, outputs: [0x3000, 0x4000] }
}

/// The problem with other stores.
fn with(problem: DeviceProblem, change: impl FnOnce(&mut DeviceStores)) -> DeviceProblem {
    let mut stores = problem.stores;
    change(&mut stores);
    DeviceProblem { stores, ..problem }
}

/// Whether the store is wide, and whether the load is.
fn wide(problem: DeviceProblem) -> (bool, bool) {
    let (store, load) = (problem.stores.store(FEW).unwrap().unwrap(), problem.load(FEW).unwrap().unwrap());
    let is = |launch: Launch, kernel| launch.kernel == launch.module.kernel(kernel);
    (is(store, CacheKernel::StoreWide), is(load, CacheKernel::LoadWide))
}

#[test]
fn wide_kernels_serve_whole_aligned_packs() {
    let f16 = problem(Float16, Float16, None, 2, 24);
    assert_eq!(wide(f16), (true, true));
    assert_eq!(wide(problem(Float16, Float16, None, 2, 20)), (false, false));
    assert_eq!(wide(problem(Float32, Float32, None, 2, 20)), (true, true));
    assert_eq!(wide(problem(Int8, Int8, None, 2, 24)), (false, false));
    assert_eq!(wide(with(f16, |stores| stores.current = [0x1000, 0x2008])), (false, true));
    assert_eq!(wide(DeviceProblem { outputs: [0x3002, 0x4000], ..f16 }), (true, false));
    assert_eq!(wide(with(f16, |stores| stores.cache = 0x5008)), (false, false));
    // Eight values are eight bytes of codes, or four.
    assert_eq!(wide(with(problem(Float16, Int8, Some(8), 2, 24), |stores| stores.cache = 0x5008)), (true, true));
    assert_eq!(wide(with(problem(Float16, Int8, Some(8), 2, 24), |stores| stores.cache = 0x5004)), (false, false));
    assert_eq!(wide(with(problem(Float16, Int4, Some(8), 2, 24), |stores| stores.cache = 0x5004)), (true, true));
}

#[test]
fn wide_stores_need_groups_that_a_warp_can_reduce() {
    for (group, expected) in
        [(4, (false, false)), (8, (true, true)), (24, (false, true)), (256, (true, true)), (512, (false, true))]
    {
        assert_eq!(wide(problem(Float16, Int4, Some(group), 1, 1536)), expected, "{group}");
    }
}

#[test]
fn rounds_are_long_where_no_warp_waits_for_another() {
    // 132 multiprocessors have 4224 warps; a token is 128 units.
    for (tokens, round) in [
        (1, 32),
        (64, 32),
        // One round a warp, however long, as soon as there are more than 32 units for each.
        (1056, 32),
        (1057, 64),
        (4224, 128),
        // Each of these would take more rounds, or longer ones, with another length.
        (8 * 2048, 256),
        (8448, 256),
        (8449, 160),
        (64 * 4096, 256),
    ] {
        let large = problem(Float16, Float16, None, 8, 128);
        let large = with(large, |stores| stores.current_rows = tokens).stores;
        assert_eq!(large.store(132).unwrap().unwrap().parameters.round, round, "{tokens}");
    }
}

#[test]
fn what_is_too_large_is_named() {
    let large = problem(Int8, Int8, None, 1 << 24, 1 << 12);
    assert_eq!(large.stores.store(FEW).unwrap_err().what, "num_heads * head_dim");
    let many = with(problem(Int8, Int8, None, 2, 16), |stores| stores.all_rows = 1 << 62);
    assert_eq!(many.load(FEW).unwrap_err().what, "rows * num_heads * head_dim");
}

#[test]
fn grids_cover_the_work_and_rounds_the_lanes() {
    for num_heads in 1..40 {
        for rows in [1, 31, 33, 1000, 1 << 20, 1 << 33] {
            for multiprocessors in [1, 132] {
                let problem = with(problem(Int8, Int8, None, num_heads, 16), |stores| stores.current_rows = rows);
                let Launch { grid, parameters, .. } = problem.stores.store(multiprocessors).unwrap().unwrap();
                let (round, per_token) = (parameters.round, parameters.units_per_token.value);
                let total = rows as u64 * u64::from(per_token);
                let blocks = total.div_ceil(u64::from(round * BLOCK / WARP));
                assert_eq!(u64::from(grid), blocks.min(u64::from(multiprocessors) * BLOCKS_PER_MULTIPROCESSOR));
                let most_tokens = (0..per_token).map(|offset| (offset + round - 1) / per_token + 1).max();
                assert!(most_tokens <= Some(WARP), "{round} units of {per_token} a token");
                // Groups of lanes start where warps do.
                assert!(round.is_multiple_of(WARP));
            }
        }
    }
}
