//! What edits and windows cost: the rows that they move, and the pages that they take. That they are right is the state
//! machine's matter.

use kvcache_manager::schema::ElementType;
use kvcache_manager::{CacheSettings, Create, Error, Mode, Rope, Rotation, SeqId};
use kvcache_testing::manager::managed::Managed;
use proptest::prelude::*;
use proptest::sample::select;

use crate::golden::settings;

fn made(mode: Mode, max_t: usize) -> Managed {
    Managed::new(CacheSettings { mode, rope: Some(Rope::neox(2, 1e4)), ..settings(1, 1, 2, max_t) })
}

/// Does what is queued; gives how many rows were copied.
fn moved(cache: &mut Managed) -> usize {
    let before = cache.copied();
    cache.update();
    cache.copied() - before
}

proptest! {
    #[test]
    fn a_removal_moves_few_rows(
        mode in select(vec![
            Mode::Runs,
            Mode::Cells,
            Mode::Paged { page_size: 1 },
            Mode::Paged { page_size: 4 },
            Mode::Paged { page_size: 7 },
        ]),
        len in 1_usize..60,
        (a, more) in (0_usize..60, 0_usize..60),
        shared in any::<bool>(),
    ) {
        let a = a % len;
        let b = a + 1 + more % (len - a);
        let mut cache = made(mode, 256);
        let seq = cache.sequence(len);
        if shared && mode != Mode::Runs {
            cache.manager.fork(seq).unwrap();
        }
        prop_assert_eq!(cache.manager.seq_rm(seq, a as i64..b as i64).unwrap(), b - a);
        let moved = moved(&mut cache);
        let (h, behind) = (b - a, len - b);
        match mode {
            Mode::Cells => prop_assert_eq!(moved, 0),
            _ if behind == 0 => prop_assert_eq!(moved, 0),
            Mode::Paged { page_size } => {
                let r = a % page_size;
                let at_most = match (h % page_size, shared) {
                    (0, false) => r.min(page_size - r),
                    (0, true) => if r == 0 { 0 } else { page_size },
                    // The rows behind, and those of a shared page before them.
                    (_, false) => behind,
                    (_, true) => behind + r,
                };
                prop_assert!(moved <= at_most, "{} rows, at most {}", moved, at_most);
            }
            _ => prop_assert!(moved <= a.min(behind), "{} rows, at most {}", moved, a.min(behind)),
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
        let settings = CacheSettings { mode: Mode::Paged { page_size }, ..settings(1, 1, 2, pages * page_size) };
        let mut cache = Managed::new(CacheSettings { window: Some(width), sink, slack, ..settings });
        let seq = cache.manager.create();
        for n in chunks {
            // With exactly so many pages no step is refused.
            cache.grow(&[seq], n);
        }
    }
}

#[test]
fn a_run_grows_in_place_or_moves_to_twice_its_reserve() {
    let mut cache = made(Mode::Runs, 64);
    let a = cache.manager.create_with(&Create { reserve: 4, salt: &[] });
    let b = cache.manager.create();
    let mut grow = |seq: SeqId, n: usize| {
        cache.grow(&[seq], n);
        (cache.slots(seq)[0], cache.manager.stats().used, cache.copied())
    };
    assert_eq!(grow(a, 2), (0, 4, 0));
    assert_eq!(grow(a, 2), (0, 4, 0));
    assert_eq!(grow(b, 4), (4, 8, 0));
    // The cells behind it are another's.
    assert_eq!(grow(a, 1), (8, 12, 4));
}

#[test]
fn a_lost_owner_of_a_page_does_not_keep_its_rows_from_being_turned() {
    let mut cache = made(Mode::Paged { page_size: 4 }, 64);
    let a = cache.sequence(6);
    cache.manager.seq_add(a, .., 1).unwrap();
    let b = cache.manager.fork(a).unwrap();
    // The rows behind the first of b's first page move, in a page of its own.
    cache.manager.seq_rm(b, 1..2).unwrap();
    cache.fail();
    assert_eq!(cache.manager.update(&mut cache.memory).unwrap_err().kind(), "memory");
    assert!(matches!(cache.manager.seq_rm(b, ..), Err(Error::Lost { .. })));
    cache.manager.seq_rm(a, 4..).unwrap();
    cache.update();
    assert_eq!(cache.memory.log.rotations, [Rotation { slot: cache.slots(a)[0], len: 3, delta: 1 }]);
}

#[test]
fn codes_decide_how_often_keys_are_rotated() {
    let shifts = |settings: CacheSettings| {
        let mut cache = Managed::new(CacheSettings { mode: Mode::Cells, rope: Some(Rope::neox(2, 1e4)), ..settings });
        let seq = cache.sequence(3);
        let mut shift = |_| {
            let shifted = cache.manager.seq_add(seq, 1.., 1);
            cache.update();
            shifted.map_err(|error| error.kind())
        };
        (0..6).map(|i: usize| shift(i)).collect::<Vec<_>>()
    };
    let cache = || settings(1, 1, 2, 8);
    let limited = [Ok(()), Ok(()), Ok(()), Ok(()), Err("shift_limit"), Err("shift_limit")];
    assert_eq!(
        shifts(CacheSettings { cache_type: ElementType::Int4, quant: Some((2, ElementType::Float32)), ..cache() }),
        limited
    );
    assert_eq!(
        shifts(CacheSettings { cache_type: ElementType::Int8, quant: Some((2, ElementType::Float32)), ..cache() }),
        [Ok(()); 6]
    );
    assert_eq!(shifts(CacheSettings { cache_type: ElementType::Int8, ..cache() }), [Err("not_shiftable"); 6]);
}
