//! A step in steady state allocates nothing: the same batch decodes on, and takes new pages now and then. Only what
//! grows with the sequences, their tables and the prefix index, doubles from time to time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use kvcache_manager::schema::ElementType;
use kvcache_manager::{Append, CacheSettings, Geometry, Mode};
use kvcache_testing::manager::managed::Managed;

thread_local! {
    /// Allocations that this thread has made, and their bytes.
    static ALLOCATED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Counting;

// SAFETY: all calls go to `System`, with the caller's arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (allocations, bytes) = ALLOCATED.get();
        ALLOCATED.set((allocations + 1, bytes + layout.size()));
        // SAFETY: the caller's layout, whose size is not 0.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        // SAFETY: `data` is from `System`, of this layout.
        unsafe { System.dealloc(data, layout) }
    }
}

fn paged(page_size: usize, max_t: usize) -> CacheSettings {
    let geometry = Geometry { num_layer: 1, num_heads: 1, head_dim: 2, max_t };
    CacheSettings {
        geometry,
        cache_type: ElementType::Float32,
        mode: Mode::Paged { page_size },
        ..CacheSettings::default()
    }
}

/// Decodes with 64 sequences; gives the allocations of each step.
fn decode(steps: u32) -> Vec<usize> {
    let Managed { mut manager, mut memory } =
        Managed::new(CacheSettings { max_pages: Some(64), ..paged(16, 64 * 512) });
    let seqs: Vec<_> = (0..64).map(|_| manager.create()).collect();
    // Rows of different lengths, so that their pages end in different steps.
    let prompts: Vec<Vec<u32>> = (0..64).map(|i| (i..250 + 2 * i).collect()).collect();
    let appends: Vec<_> = seqs.iter().zip(&prompts).map(|(&seq, prompt)| Append::tokens(seq, prompt)).collect();
    manager.begin_step(&appends).unwrap().apply(&mut memory).unwrap().commit();
    let step = |token: u32| {
        let tokens = [token];
        let mut appends = [Append::tokens(seqs[0], &tokens); 64];
        for (append, &seq) in appends.iter_mut().zip(&seqs) {
            *append = Append::tokens(seq, &tokens);
        }
        let before = ALLOCATED.get().0;
        manager.begin_step(&appends).unwrap().apply(&mut memory).unwrap().commit();
        ALLOCATED.get().0 - before
    };
    (0..steps).map(step).collect()
}

#[test]
fn a_step_in_steady_state_allocates_nothing() {
    let allocations = decode(100);
    let (growing, steady) = allocations.split_at(20);
    assert!(steady.iter().all(|&allocations| allocations == 0), "{allocations:?}");
    assert!(growing.iter().sum::<usize>() < 64, "{allocations:?}");
}

#[test]
fn a_hopeless_append_evicts_nothing() {
    let Managed { mut manager, mut memory } = Managed::new(paged(1, 10_000));
    let (a, b) = (manager.create(), manager.create());
    let prompt: Vec<u32> = (0..5_000).collect();
    manager.begin_step(&[Append::tokens(a, &prompt)]).unwrap().apply(&mut memory).unwrap().commit();
    manager.free(a).unwrap();
    let (before, c) = (ALLOCATED.get().1, manager.create());
    let error = manager.begin_step(&[Append::count(b, 1 << 30), Append::count(c, 10_000)]).unwrap_err();
    assert_eq!(error.to_string(), format!("{} pages are needed, 10000 are free", (1 << 30) + 10_000));
    let bytes = ALLOCATED.get().1 - before;
    assert!(bytes < 4096, "{bytes} bytes for a refusal");
}
