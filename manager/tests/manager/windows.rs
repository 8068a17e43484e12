//! Windows: what a query sees through one is what a full cache with a mask shows, in few enough pages.

use kvcache_manager::{Append, CacheSpecBuilder, Manager, MaskSpec, Mode, SeqId};
use kvcache_testing::manager::memory::Memory;
use proptest::prelude::*;
use proptest::sample::select;

use crate::golden::{self, made};

fn builder(mode: Mode, max_t: usize) -> CacheSpecBuilder {
    golden::builder(1, 1, 2, max_t).mode(mode)
}

fn modes() -> impl Strategy<Value = Mode> {
    select(vec![
        Mode::Runs,
        Mode::Cells,
        Mode::Paged { page_size: 1 },
        Mode::Paged { page_size: 4 },
        Mode::Paged { page_size: 16 },
    ])
}

/// For each query of a step: its position, and those of the keys that it sees, in order.
fn step(manager: &mut Manager, memory: &mut Memory, appends: &[Append<'_>]) -> Vec<(i64, Vec<i64>)> {
    let cells = manager.spec().mode() == Mode::Cells;
    let step = manager.begin_step(appends).unwrap().apply(memory).unwrap();
    let [_, rows, columns] = step.mask_shape(&MaskSpec::causal());
    let mut mask = vec![0.0_f32; rows * columns];
    step.mask_into(&MaskSpec::causal(), &mut mask).unwrap();
    let mut keys = Vec::new();
    step.key_positions_into(&mut keys);
    let keys = if cells { &keys[step.positions().len()..] } else { &keys[..] };
    let seen = |row: &[f32]| {
        let mut seen: Vec<i64> = (0..keys.len()).filter(|&i| row[i] == 0.0).map(|i| keys[i]).collect();
        seen.sort_unstable();
        seen
    };
    let queries = step.positions().iter().zip(mask.chunks(columns.max(1)));
    let queries = queries.map(|(&position, row)| (position, seen(row))).collect();
    step.commit();
    manager.check().unwrap();
    queries
}

proptest! {
    #[test]
    fn a_window_is_a_full_cache_with_a_mask(
        mode in modes(),
        (width, sink, slack) in (1_usize..20, 0_usize..6, 1_usize..6),
        chunks in prop::collection::vec((1_usize..9, 0_usize..9), 1..30),
    ) {
        let (mut manager, mut memory) = made(builder(mode, 1024).window(width).sink(sink).slack(slack));
        let seqs = [manager.create(), manager.create()];
        for (a, b) in chunks {
            let new = seqs.into_iter().zip([a, b]).filter(|new| new.1 > 0);
            let appends: Vec<_> = new.map(|(seq, n)| Append::count(seq, n)).collect();
            for (query, seen) in step(&mut manager, &mut memory, &appends) {
                let visible = |&key: &i64| query - key < width as i64 || key < sink as i64;
                let expected: Vec<i64> = (0..=query).filter(visible).collect();
                prop_assert_eq!(seen, expected);
            }
        }
    }

    #[test]
    fn a_window_takes_few_pages(
        page_size in 1_usize..10,
        (width, sink, slack) in (1_usize..30, 0_usize..12, 1_usize..6),
        chunks in prop::collection::vec(1_usize..20, 1..40),
    ) {
        let c = chunks.iter().copied().max().unwrap();
        let pages = (width + slack + c - 1 + page_size - 1).div_ceil(page_size) + sink.div_ceil(page_size);
        let mode = Mode::Paged { page_size };
        let (mut manager, mut memory) = made(builder(mode, pages * page_size).window(width).sink(sink).slack(slack));
        let seq = manager.create();
        for n in chunks {
            // With exactly so many pages no step is refused.
            step(&mut manager, &mut memory, &[Append::count(seq, n)]);
        }
    }

    #[test]
    fn drafts_need_slack(
        mode in modes(),
        (width, slack, len) in (1_usize..10, 1_usize..6, 1_usize..40),
        rejected in 1_i64..10,
    ) {
        let (mut manager, mut memory) = made(builder(mode, 1024).window(width).slack(slack));
        let seq: SeqId = manager.create();
        let mut oldest = 0;
        for _ in 0..len {
            step(&mut manager, &mut memory, &[Append::count(seq, 1)]);
            oldest = manager.pos_min(seq).unwrap().unwrap();
        }
        let next = len as i64;
        let p0 = next - rejected;
        let before = manager.clone();
        // All below `oldest` is gone.
        if p0 > 0 && oldest - 1 > p0 - width as i64 && oldest > 0 {
            prop_assert!(rejected > slack as i64);
            prop_assert_eq!(manager.seq_rm(seq, p0..).unwrap_err().kind(), "window_lost");
            prop_assert!(manager == before);
        } else {
            prop_assert_eq!(manager.seq_rm(seq, p0..).unwrap() as i64, rejected.min(next - oldest));
        }
        if mode == Mode::Runs || mode == Mode::Cells {
            // Exactly those rows are left that a window and its slack need.
            prop_assert_eq!(oldest, (next - width as i64 - slack as i64 + 1).max(0));
        }
        manager.seq_rm(seq, ..).unwrap();
        manager.check().unwrap();
    }
}
