//! A window that keeps rows, by random scripts: every row that a later token sees has its bytes, the others have the
//! null page, and all else is as without a window.

use std::sync::Arc;

use kvcache_manager::{Append, CacheSettings, Error, Mode, Rope, SeqId};
use kvcache_testing::manager::managed::Managed;
use kvcache_testing::manager::store::Store;
use proptest::prelude::*;

use super::golden::{live_pages, settings};

const WINDOW: usize = 6;

/// A cache, and by sequence its tokens; a row's bytes are a digest of the tokens up to it.
struct Script {
    cache: Managed,
    page_size: usize,
    slack: usize,
    seqs: Vec<(SeqId, Vec<u32>)>,
}

fn digest(tokens: &[u32]) -> u8 {
    tokens.iter().fold(7, |digest: u8, &token| digest.wrapping_mul(31).wrapping_add(token as u8 + 1))
}

impl Script {
    fn new(page_size: usize, slack: usize, num_pages: usize, has_store: bool) -> Self {
        let spec = CacheSettings { mode: Mode::Paged { page_size }, ..settings(1, 1, 4, num_pages * page_size) };
        let spec =
            CacheSettings { rope: Some(Rope::neox(4, 1e4)), window: Some(WINDOW), slack, keep_rows: true, ..spec };
        let cache = if has_store { Managed::with_store(spec, Arc::<Store>::default()) } else { Managed::new(spec) };
        Self { cache, page_size, slack, seqs: Vec::new() }
    }

    /// The rows of `len` that a window has passed.
    fn passed(&self, len: usize) -> usize {
        len.saturating_sub(WINDOW + self.slack - 1) / self.page_size * self.page_size
    }

    /// Appends tokens, or rolls the step back; whether there was room. A prompt is new, or goes on after another.
    fn append(&mut self, i: usize, n: usize, commit: bool) {
        let (cache, (seq, tokens)) = (&mut self.cache, &mut self.seqs[i]);
        let (seq, before) = (*seq, tokens.len());
        let new: Vec<u32> = (before..before + n).map(|row| (row / 5 % 3) as u32).collect();
        let (append, untouched) = (Append::tokens(seq, &new), cache.manager.clone());
        let found = cache.manager.find_prefix(&append).unwrap();
        if let Err(error) = cache.manager.begin_step(&[append]).map(drop) {
            assert!(matches!(error, Error::OutOfPages { .. }) && cache.manager == untouched, "{error}");
            return;
        }
        let step = cache.step(&[append]);
        let start = step.start_pos()[0] as usize;
        assert_eq!(step.seqstarts()[1] as usize, before + n - start);
        assert!(start >= before + found && (before > 0 || step.cached()[0] as usize == start));
        assert!(step.positions().iter().copied().eq(start as i64..(before + n) as i64));
        if !commit {
            step.rollback();
            return cache.manager.check().unwrap();
        }
        // What is written while the step is open is where its rows then are.
        let starts: Vec<i64> = step.cachestarts().iter().copied().filter(|&slot| slot >= 0).collect();
        step.commit();
        tokens.extend(new);
        for row in start..before + n {
            let slot = starts[row / self.page_size] as usize + row % self.page_size;
            assert!(slot >= self.page_size, "the null page is written");
            cache.memory.write(&[slot], &vec![digest(&tokens[..=row]); cache.memory.spec.bytes_per_token()]);
        }
    }

    fn cut(&mut self, i: usize, to: usize) {
        let (cache, (seq, tokens)) = (&mut self.cache, &mut self.seqs[i]);
        let passed = cache.manager.slots(*seq).unwrap().take_while(|&slot| slot < self.page_size).count();
        match cache.manager.seq_rm(*seq, to as i64..) {
            Ok(removed) => {
                assert_eq!(removed, tokens.len().saturating_sub(to));
                assert!(to * removed * passed == 0 || to + 1 >= passed + WINDOW, "{to} of {passed}");
                tokens.truncate(to);
            }
            Err(Error::WindowLost { .. }) => assert!(passed + WINDOW > to + 1),
            Err(error) => panic!("{error}"),
        }
    }

    fn swap(&mut self, i: usize) {
        let (cache, seq) = (&mut self.cache, self.seqs[i].0);
        cache.manager.swap_out(seq).unwrap();
        cache.manager.check().unwrap();
        cache.update();
        if cache.manager.swap_in(seq, &mut cache.memory).is_err_and(|error| error.kind() == "out_of_pages") {
            // It shared pages that are its own now.
            cache.manager.free(self.seqs.remove(i).0).unwrap();
        }
    }

    fn check(&self) {
        let Managed { manager, memory } = &self.cache;
        manager.check().unwrap();
        for (seq, tokens) in &self.seqs {
            assert!(manager.positions(*seq).unwrap().eq(0..tokens.len() as i64));
            let (slots, row_len) = (self.cache.slots(*seq), memory.spec.bytes_per_token());
            let first = (tokens.len() + 1).saturating_sub(WINDOW);
            let rows = memory.read(&slots[first..]);
            for (row, bytes) in (first..).zip(rows.chunks(row_len)) {
                assert!(slots[row] >= self.page_size && bytes == vec![digest(&tokens[..=row]); row_len], "row {row}");
            }
        }
        let most: usize = self.seqs.iter().map(|(_, tokens)| tokens.len() - self.passed(tokens.len())).sum();
        // A prefix that was found, and one that was cut, may have passed a page less.
        assert!(live_pages(manager) <= most / self.page_size + 3 * self.seqs.len());
    }
}

proptest! {
    #[test]
    fn later_tokens_see_what_they_would_without(
        page_size in prop::sample::select(vec![1, 2, 4]),
        slack in 0_usize..4,
        num_pages in 12_usize..40,
        has_store in any::<bool>(),
        operations in prop::collection::vec((0_u8..10, any::<usize>(), 1_usize..30), 1..60),
    ) {
        let mut script = Script::new(page_size, slack, num_pages, has_store);
        for (operation, which, n) in operations {
            if script.seqs.is_empty() || operation == 0 {
                script.seqs.push((script.cache.manager.create(), Vec::new()));
            }
            let i = which % script.seqs.len();
            match operation {
                0..5 => script.append(i, n, operation > 0 || n % 2 == 0),
                5 => script.append(i, 1, true),
                6 => {
                    let (seq, tokens) = script.seqs[i].clone();
                    script.seqs.push((script.cache.manager.fork(seq).unwrap(), tokens));
                }
                7 => script.cut(i, script.seqs[i].1.len().saturating_sub(n)),
                8 if has_store => script.swap(i),
                _ => {
                    let (seq, _) = script.seqs.swap_remove(i);
                    script.cache.manager.free(seq).unwrap();
                }
            }
            script.check();
        }
    }
}

#[test]
fn a_prefix_is_found_by_its_last_window_alone() {
    // 9 pages of 4 beside the null page: a prompt of 17 pages passes through them.
    let mut script = Script::new(4, 0, 10, false);
    script.seqs.push((script.cache.manager.create(), Vec::new()));
    for n in [16, 16, 16, 16, 5] {
        script.append(0, n, true);
        assert_eq!(live_pages(&script.cache.manager), 2);
    }
    let tokens = script.seqs[0].1.clone();
    script.cache.manager.free(script.seqs.remove(0).0).unwrap();
    script.seqs.push((script.cache.manager.create(), Vec::new()));
    let whole = Append::tokens(script.seqs[0].0, &tokens);
    assert_eq!(script.cache.manager.find_prefix(&whole).unwrap(), 68);
    assert_eq!(script.cache.manager.find_prefix(&whole.most_cached(67)).unwrap(), 64);
    assert_eq!(script.cache.manager.find_prefix(&whole.most_cached(28)).unwrap(), 0, "the first pages are gone");
    script.append(0, 69, true);
    script.check();
    assert_eq!((script.cache.manager.stats().prefix_hits, live_pages(&script.cache.manager)), (68, 2));
    assert!(script.cache.slots(script.seqs[0].0)[..60].iter().all(|&slot| slot < 4));
}

#[test]
fn what_needs_rows_that_the_window_has_passed_is_refused() {
    let mut script = Script::new(2, 0, 20, true);
    script.seqs.push((script.cache.manager.create(), Vec::new()));
    script.append(0, 12, true);
    let (seq, other, before) = (script.seqs[0].0, script.cache.manager.create(), script.cache.manager.clone());
    let manager = &mut script.cache.manager;
    let refused = [
        manager.seq_rm(seq, 1..3).map(drop),
        manager.seq_rm(seq, 9..11).map(drop),
        manager.seq_add(seq, 8.., 1),
        manager.seq_div(seq, .., 2),
        manager.seq_cp(seq, other, 8..).map(drop),
        manager.seq_cp(seq, other, ..9).map(drop),
        manager.self_extend(seq, 2, 4).map(drop),
    ];
    for (i, refused) in refused.into_iter().enumerate() {
        assert_eq!(refused.unwrap_err().kind(), "not_shiftable", "operation {i}");
    }
    let refused = manager.save_seq("nowhere", &script.cache.memory, seq).unwrap_err();
    assert_eq!(refused.to_string(), "a window has freed the pages of the first 6 rows of a sequence, expected none");
    assert!(*manager == before);
    let paged = Mode::Paged { page_size: 4 };
    for (mode, window, sink, max_t) in
        [(paged, None, 0, 8), (paged, Some(4), 1, 8), (Mode::Runs, Some(4), 0, 8), (paged, Some(4), 0, 7)]
    {
        let kept = CacheSettings { mode, window, sink, keep_rows: true, ..settings(1, 1, 4, max_t) };
        assert_eq!(kept.check().unwrap_err().kind(), "spec_range");
    }
}
