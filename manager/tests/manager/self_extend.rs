//! Self-extend, against the edits that it stands for.

use kvcache_manager::{Append, CacheSettings, Error, Manager, Mode, Rope, SeqId, Stepped, self_extend_positions};
use kvcache_testing::manager::managed::Managed;
use proptest::prelude::*;
use proptest::sample::select;

use crate::golden::settings;

fn made(mode: Mode) -> Managed {
    Managed::new(CacheSettings { mode, rope: Some(Rope::neox(4, 1e4)), ..settings(1, 1, 4, 128) })
}

fn by_edits(manager: &mut Manager, seq: SeqId, ga_i: &mut i64, ga_n: i64, ga_w: i64) {
    let mut n_past = manager.pos_max(seq).unwrap().map_or(0, |last| last + 1);
    while n_past >= *ga_i + ga_w {
        let ib = ga_n * *ga_i / ga_w;
        let bd = (ga_w / ga_n) * (ga_n - 1);
        let dd = ga_w / ga_n - ib * bd - ga_w;
        let grouped = *ga_i + ib * bd;
        manager.seq_add(seq, *ga_i..n_past, ib * bd).unwrap();
        manager.seq_div(seq, grouped..grouped + ga_w, ga_n).unwrap();
        manager.seq_add(seq, grouped + ga_w..n_past + ib * bd, dd).unwrap();
        n_past -= bd;
        *ga_i += ga_w / ga_n;
    }
}

proptest! {
    #[test]
    fn it_is_its_edits(
        mode in select(vec![Mode::Runs, Mode::Cells, Mode::Paged { page_size: 4 }]),
        (ga_n, groups) in (1_i64..5, 1_i64..4),
        chunks in prop::collection::vec(1_usize..20, 1..6),
    ) {
        let ga_w = ga_n * groups;
        let (mut cache, mut other) = (made(mode), made(mode));
        let (seq, by_hand) = (cache.manager.create(), other.manager.create());
        let mut ga_i = 0;
        for n in chunks {
            let next = cache.manager.self_extend(seq, ga_n, ga_w)?;
            by_edits(&mut other.manager, by_hand, &mut ga_i, ga_n, ga_w);
            let step = cache.manager.begin_step(&[Append::count(seq, n)])?.apply(&mut cache.memory)?;
            prop_assert_eq!(step.positions()[0], next);
            step.commit();
            other.grow(&[by_hand], n);
            cache.manager.check()?;
            prop_assert_eq!(cache.contents(seq), other.contents(by_hand));
        }
    }

    #[test]
    fn its_positions_are_those_of_one_token_after_another((ga_n, groups) in (1_i64..5, 1_i64..4), n in 0_usize..60) {
        let ga_w = ga_n * groups;
        let mut cache = made(Mode::Paged { page_size: 4 });
        let seq = cache.manager.create();
        for _ in 0..n {
            cache.manager.self_extend(seq, ga_n, ga_w)?;
            cache.grow(&[seq], 1);
        }
        let n_past = cache.manager.self_extend(seq, ga_n, ga_w)?;
        let (positions, expected, _) = self_extend_positions(n, ga_n, ga_w)?;
        prop_assert!(cache.manager.positions(seq)?.eq(positions));
        prop_assert_eq!(n_past, expected);
    }
}

#[test]
fn golden_g20() -> Result<(), Error> {
    let positions = vec![0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 5, 6];
    assert_eq!(self_extend_positions(19, 4, 8)?, (positions, 7, 4));
    assert_eq!(self_extend_positions(5, 2, 4)?, (vec![0, 0, 1, 1, 2], 3, 2));
    assert_eq!(self_extend_positions(usize::MAX, 2, 4).unwrap_err().kind(), "out_of_memory");
    Ok(())
}

#[test]
fn refusals_change_nothing() -> Result<(), Error> {
    let mut cache = made(Mode::Paged { page_size: 4 });
    let seq = cache.sequence(20);
    let Managed { manager, memory } = &mut cache;
    let before = manager.clone();
    for (ga_n, ga_w, kind) in [(4, 6, "group_width"), (0, 8, "range"), (4, -8, "range"), (2, i64::MAX, "range")] {
        assert_eq!(manager.self_extend(seq, ga_n, ga_w).unwrap_err().kind(), kind);
    }
    assert_eq!(manager.self_extend(SeqId::default(), 2, 4).unwrap_err().kind(), "unknown_seq");
    manager.begin_step(&[])?.apply(memory)?.detach();
    assert_eq!(manager.self_extend(seq, 2, 4).unwrap_err().kind(), "step_open");
    manager.rollback_open_step();
    assert_eq!(*manager, before);
    Ok(())
}

#[test]
fn what_a_window_took_is_grouped_with_the_others() -> Result<(), Error> {
    let mut cache = Managed::new(CacheSettings {
        mode: Mode::Cells,
        rope: Some(Rope::neox(4, 1e4)),
        window: Some(4),
        ..settings(1, 1, 4, 128)
    });
    let seq = cache.sequence(12);
    assert!(matches!(cache.manager.seq_rm(seq, 11..), Err(Error::WindowLost { gone: 8, .. })));
    cache.manager.self_extend(seq, 2, 4)?;
    assert!(matches!(cache.manager.seq_rm(seq, 5..), Err(Error::WindowLost { gone: 4, .. })));
    Ok(())
}

/// How far the groups go is a part of a sequence: a fork and a saved session have it, too.
#[test]
fn forks_and_sessions_go_on() -> Result<(), Error> {
    let [mut cache, mut loaded] = [(); 2].map(|()| made(Mode::Paged { page_size: 4 }));
    let seq = cache.sequence(11);
    cache.manager.self_extend(seq, 2, 4)?;
    let fork = cache.manager.fork(seq)?;
    cache.update();
    let file = tempfile::NamedTempFile::new().unwrap();
    cache.manager.save_seq(file.path(), &cache.memory, seq)?;
    let saved = loaded.manager.load_seq(file.path(), &mut loaded.memory, 0)?;
    let grown = |cache: &mut Managed, seq| {
        cache.grow(&[seq], 9);
        cache.manager.self_extend(seq, 2, 4)?;
        assert!(cache.manager.positions(seq)?.eq(self_extend_positions(20, 2, 4)?.0));
        Ok(())
    };
    grown(&mut cache, seq)?;
    grown(&mut cache, fork)?;
    grown(&mut loaded, saved)
}
