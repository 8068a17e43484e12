//! A state machine over every operation, refusals included, against a naive model: after each operation, rows,
//! positions, pages and reference counts must be the model's, and refused, dropped, leaked and failed steps must leave
//! an equal manager and equal bytes.

#[path = "../common/mod.rs"]
mod common;
mod naive;
mod operations;
mod run;

use common::{Memory, with_types};
use kvcache_manager::op::{Backend, KeyValueCache};
use kvcache_manager::{Append, CacheSpec, Create, Geometry, Manager, Mode};
use naive::Naive;
use operations::{Cache, Operation, Operations};
use proptest::prelude::*;
use proptest_state_machine::{StateMachineTest, prop_state_machine};
use run::Run;

impl StateMachineTest for Run {
    type SystemUnderTest = Self;
    type Reference = Operations;

    fn init_test(cache: &Cache) -> Self {
        let &Cache { layout, types, page_size, num_pages, max_pages, prefix_sharing } = cache;
        // The last slots are no whole page.
        let geometry =
            Geometry { num_layer: 2, num_heads: 2, head_dim: 4, max_t: num_pages * page_size + page_size / 2 };
        let mut builder = with_types(CacheSpec::builder(geometry).layout(layout), types);
        if let Some(max_pages) = max_pages {
            builder = builder.max_pages(max_pages.min(geometry.max_t));
        }
        let spec = builder.mode(Mode::Paged { page_size }).prefix_sharing(prefix_sharing).build().unwrap();
        let op = KeyValueCache::new(spec.attributes()).unwrap().with_backend(Backend::Reference);
        let memory = Memory::new(&spec, types);
        Self {
            manager: Manager::new(spec).unwrap(),
            memory,
            op,
            seqs: vec![],
            freed: vec![],
            tags: 1 << 63,
            all_cached: true,
            truncated: false,
        }
    }

    fn apply(mut run: Self, _: &Cache, operation: Operation) -> Self {
        let live = run.seqs.len();
        match operation {
            Operation::Create { salt } => {
                let id = run.manager.create_with(&Create { salt: &[salt], ..Create::default() });
                run.seqs.push(Naive { id, salt, rows: vec![], tokens: vec![] });
            }
            Operation::Fork(seq) if live > 0 => {
                let id = run.manager.fork(run.seqs[seq % live].id).unwrap();
                run.seqs.push(Naive { id, ..run.seqs[seq % live].clone() });
            }
            Operation::Free(seq) if live > 0 => {
                let id = run.seqs.remove(seq % live).id;
                run.manager.free(id).unwrap();
                run.freed.push(id);
            }
            Operation::Truncate(seq, n) if live > 0 => {
                let naive = &mut run.seqs[seq % live];
                let p0 = naive.next() - n;
                let len = naive.rows.iter().filter(|row| row.0 < p0).count();
                assert_eq!(run.manager.seq_rm(naive.id, p0..).unwrap(), naive.rows.len() - len);
                naive.rows.truncate(len);
                naive.tokens.truncate(len);
                // The index may lose a page of which another sequence has the like.
                run.all_cached &= n == 0;
                run.truncated |= n > 0;
            }
            Operation::Keep(seq) if live > 0 => {
                let id = run.seqs[seq % live].id;
                run.manager.seq_keep(id).unwrap();
                for naive in run.seqs.iter_mut().filter(|naive| naive.id != id) {
                    naive.rows.clear();
                    naive.tokens.clear();
                }
            }
            Operation::Stale(seq) if !run.freed.is_empty() => {
                let (id, before) = (run.freed[seq % run.freed.len()], run.manager.clone());
                assert_eq!(run.manager.fork(id).unwrap_err().kind(), "unknown_seq");
                assert_eq!(run.manager.free(id).unwrap_err().kind(), "unknown_seq");
                assert_eq!(run.manager.seq_rm(id, 0..).unwrap_err().kind(), "unknown_seq");
                assert_eq!(run.manager.seq_keep(id).unwrap_err().kind(), "unknown_seq");
                let mut appends: Vec<_> = run.seqs.iter().map(|naive| Append::count(naive.id, 1)).collect();
                appends.push(Append::count(id, 1));
                assert_eq!(run.manager.seq_len(id).unwrap_err().kind(), "unknown_seq");
                if run.manager.spec().max_pages().is_none() {
                    assert_eq!(run.manager.begin_step(&appends).unwrap_err().kind(), "unknown_seq");
                }
                assert!(run.manager == before);
            }
            Operation::Step(rows, end) => run.step(&rows, end),
            Operation::Fork(_)
            | Operation::Free(_)
            | Operation::Stale(_)
            | Operation::Truncate(..)
            | Operation::Keep(_) => {}
        }
        run
    }

    fn check_invariants(run: &Self, _: &Cache) {
        run.check();
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn the_manager_is_the_model(sequential 1..50 => Run);
}
