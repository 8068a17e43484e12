//! States of recurrent layers, against a naive map whose states are the lists of their tokens.

use std::collections::{BTreeMap, BTreeSet};

use kvcache_manager::{Error, SeqId, StateCache, StateSplit};
use proptest::prelude::*;

const SIZE: usize = 5;

/// What a cell holds: every token that the state has seen.
type Cells = Vec<Vec<u32>>;

/// What a graph does with the parts of a step: reads all cells, then writes.
fn run(cells: &mut Cells, splits: &[StateSplit], tokens: &BTreeMap<SeqId, Vec<u32>>) {
    let mut done = BTreeMap::new();
    for StateSplit { seqs, n_each, src, dst } in splits {
        let read: Cells =
            src.iter().map(|&src| usize::try_from(src).map_or(Vec::new(), |src| cells[src].clone())).collect();
        for ((seq, mut state), &dst) in seqs.iter().zip(read).zip(dst) {
            let done: &mut usize = done.entry(*seq).or_default();
            state.extend(&tokens[seq][*done..*done + n_each]);
            *done += n_each;
            cells[dst as usize] = state;
        }
    }
    assert!(tokens.iter().all(|(seq, tokens)| done[seq] == tokens.len()));
}

#[derive(Debug, Clone)]
enum Op {
    Create,
    Fork(usize),
    Free(usize),
    Empty(usize),
    /// Appends so many tokens to sequences; whether it is committed.
    Step(Vec<(usize, usize)>, bool),
}

fn op() -> impl Strategy<Value = Op> {
    let appends = prop::collection::btree_map(0..SIZE, 1_usize..4, 0..=SIZE).prop_map(|map| map.into_iter().collect());
    prop_oneof![
        2 => Just(Op::Create),
        2 => (0..SIZE).prop_map(Op::Fork),
        1 => (0..SIZE).prop_map(Op::Free),
        1 => (0..SIZE).prop_map(Op::Empty),
        6 => (appends.prop_shuffle(), prop::bool::weighted(0.8)).prop_map(|(appends, commit)| Op::Step(appends, commit)),
    ]
}

proptest! {
    #[test]
    fn states_are_those_of_a_map(ops in prop::collection::vec(op(), 1..60)) {
        let mut states = StateCache::new(SIZE, 8)?;
        let mut cells: Cells = vec![vec![u32::MAX]; SIZE]; // of which no state begins
        let mut naive: Vec<(SeqId, Vec<u32>)> = Vec::new();
        let mut tokens = 0..;
        for op in ops {
            match op {
                Op::Create if naive.len() == SIZE => prop_assert_eq!(states.create(None).unwrap_err().kind(), "no_slot"),
                Op::Create => naive.push((states.create(None)?, Vec::new())),
                Op::Fork(i) if i < naive.len() && naive.len() < SIZE => {
                    let (src, state) = naive[i].clone();
                    naive.push((states.fork(src, None)?, state));
                }
                Op::Free(i) if i < naive.len() => states.free(naive.remove(i).0)?,
                Op::Empty(i) if i < naive.len() => {
                    states.seq_rm(naive[i].0, ..)?;
                    naive[i].1.clear();
                }
                Op::Step(appends, commit) => {
                    let appends: Vec<_> = appends.into_iter().filter(|(i, _)| *i < naive.len()).collect();
                    let new: BTreeMap<_, Vec<u32>> =
                        appends.iter().map(|&(i, n)| (naive[i].0, tokens.by_ref().take(n).collect())).collect();
                    let counts: Vec<_> = appends.iter().map(|&(i, n)| (naive[i].0, n)).collect();
                    let busy: BTreeSet<_> = naive.iter().filter_map(|(seq, _)| states.tail(*seq).unwrap()).collect();
                    let step = states.begin_step(&counts)?;
                    run(&mut cells, step.splits(), &new);
                    if commit {
                        step.commit();
                        naive.iter_mut().for_each(|(seq, state)| state.extend(new.get(seq).into_iter().flatten()));
                    } else {
                        step.rollback();
                        // Those whose cells were written, as there was no free one for each, begin anew.
                        for (seq, state) in &mut naive {
                            if matches!(states.tail(*seq), Err(Error::Lost { .. })) {
                                prop_assert!(SIZE - busy.len() < counts.len());
                                states.seq_rm(*seq, ..)?;
                                state.clear();
                            }
                        }
                    }
                }
                Op::Fork(_) | Op::Free(_) | Op::Empty(_) => {}
            }
            for (seq, state) in &naive {
                let tail = states.tail(*seq)?;
                prop_assert_eq!(tail.map_or(&[][..], |cell| &cells[cell]), &state[..]);
                prop_assert_eq!(states.pos_max(*seq)?, state.len().checked_sub(1).map(|last| last as i64));
            }
        }
    }

}

#[test]
fn golden_g23() -> Result<(), Error> {
    let mut states = StateCache::new(4, 8)?;
    let (a, b) = (states.create(None)?, states.create(None)?);
    let step = states.begin_step(&[(a, 5), (b, 4)])?;
    let splits = step.splits().iter().cloned().map(|split| (split.seqs, split.n_each, split.src, split.dst));
    let expected = [(vec![a, b], 4, vec![-1, -1], vec![0, 1]), (vec![a], 1, vec![0], vec![0])];
    assert!(splits.eq(expected));
    step.commit();
    assert_eq!(states.pos_max(a)?, Some(4));
    assert!(matches!(states.seq_rm(a, 0..2), Err(Error::PartialState { pos: 4, p0: 0, p1: 2 })));
    assert!(matches!(states.seq_rm(a, 1..), Err(Error::PartialState { .. })));
    states.seq_rm(a, 5..)?;
    assert_eq!(states.tail(a)?, Some(0));
    states.seq_rm(a, 0..5)?;
    assert_eq!((states.tail(a)?, states.pos_max(a)?), (None, None));
    Ok(())
}

#[test]
fn positions_change_without_the_state() -> Result<(), Error> {
    let mut states = StateCache::new(1, 8)?;
    let a = states.create(None)?;
    states.begin_step(&[(a, 10)])?.commit();
    let tail = states.tail(a)?;
    states.seq_add(a, 0..9, 5)?; // the last token is at 9
    assert_eq!(states.pos_max(a)?, Some(9));
    states.seq_add(a, .., 7)?;
    states.seq_div(a, .., 4)?;
    assert_eq!((states.pos_max(a)?, states.tail(a)?), (Some(4), tail));
    assert_eq!(states.seq_add(a, .., i64::MAX).unwrap_err().kind(), "position_overflow");
    assert_eq!(states.seq_div(a, .., 0).unwrap_err().kind(), "range");
    states.seq_add(a, .., -5)?;
    assert_eq!(states.tail(a)?, None);
    Ok(())
}

#[test]
fn an_own_id_is_not_that_of_a_managers_sequence() -> Result<(), Error> {
    let given = StateCache::new(1, 8)?.create(None)?; // as a manager gives it
    let mut states = StateCache::new(3, 8)?;
    states.create(Some(given))?;
    states.begin_step(&[(given, 2)])?.commit();
    let own = states.create(None)?;
    assert_ne!(own, given);
    assert_eq!((states.pos_max(given)?, states.pos_max(own)?), (Some(1), None));
    states.free(given)?;
    assert!(![given, own].contains(&states.create(None)?));
    Ok(())
}

#[test]
fn refused_steps_change_nothing() -> Result<(), Error> {
    let mut states = StateCache::new(2, 8)?;
    let a = states.create(None)?;
    let refused = |states: &mut StateCache, appends: &[(SeqId, usize)]| states.begin_step(appends).unwrap_err().kind();
    assert_eq!(refused(&mut states, &[(a, 1), (a, 1)]), "duplicate_seq");
    assert_eq!(refused(&mut states, &[(a, 0)]), "empty_append");
    assert_eq!(refused(&mut states, &[(a, usize::MAX)]), "position_overflow");
    assert_eq!(refused(&mut states, &[(SeqId::default(), 1)]), "unknown_seq");
    assert_eq!(states.create(Some(a)).unwrap_err().kind(), "known_seq");
    states.begin_step(&[(a, 1)])?.detach();
    for kind in [
        states.create(None).unwrap_err().kind(),
        states.fork(a, None).unwrap_err().kind(),
        states.free(a).unwrap_err().kind(),
        states.seq_rm(a, ..).unwrap_err().kind(),
        states.begin_step(&[]).unwrap_err().kind(),
    ] {
        assert_eq!(kind, "step_open");
    }
    states.open_step().expect("it was detached").commit();
    assert_eq!(states.tail(a)?, Some(0));
    for (size, row_bytes) in [(0, 8), (4, 0), (usize::MAX, 8), (2, usize::MAX)] {
        assert_eq!(StateCache::new(size, row_bytes).unwrap_err().kind(), "spec_range");
    }
    Ok(())
}
