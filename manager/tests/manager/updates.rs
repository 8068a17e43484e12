//! What is queued and pending when sequences are lost and pages are cached: rows are turned once, and a prompt never finds
//! a page that has not its bytes.

use kvcache_manager::schema::ElementType;
use kvcache_manager::{Append, CacheSpec, CacheSpecBuilder, Error, Geometry, Manager, Mode, Rope, SeqId};
use kvcache_testing::manager::memory::Memory;

/// Rows of a key of two and a value of two float32, which are what an append's tokens say.
fn builder(mode: Mode, max_t: usize) -> CacheSpecBuilder {
    let geometry = Geometry { num_layer: 1, num_heads: 1, head_dim: 2, max_t };
    CacheSpec::builder(geometry).cache_type(ElementType::Float32).mode(mode).rope(Rope::neox(2, 1e4))
}

fn made(builder: CacheSpecBuilder) -> (Manager, Memory) {
    let spec = builder.build().unwrap();
    let mut memory = Memory::new(&spec);
    for slot in 0..spec.geometry().max_t {
        memory.write(&[slot], &[0xff; 16]);
    }
    (Manager::new(spec).unwrap(), memory)
}

const PAGED: Mode = Mode::Paged { page_size: 4 };

/// Appends tokens to a sequence and stores its rows; gives how many were found in the index.
fn append(manager: &mut Manager, memory: &mut Memory, seq: SeqId, tokens: impl IntoIterator<Item = u32>) -> usize {
    let tokens: Vec<u32> = tokens.into_iter().collect();
    let before = manager.seq_len(seq).unwrap();
    let step = manager.begin_step(&[Append::tokens(seq, &tokens)]).unwrap().apply(memory).unwrap();
    let cached = step.cached()[0] as usize;
    step.commit();
    for (slot, &token) in slots(manager, seq).into_iter().skip(before).zip(&tokens).skip(cached) {
        memory.write(&[slot], &(token as f32).to_le_bytes().repeat(4));
    }
    manager.check().unwrap();
    cached
}

fn sequence(manager: &mut Manager, memory: &mut Memory, tokens: impl IntoIterator<Item = u32>) -> SeqId {
    let seq = manager.create();
    append(manager, memory, seq, tokens);
    seq
}

fn slots(manager: &Manager, seq: SeqId) -> Vec<usize> {
    manager.slots(seq).unwrap().collect()
}

fn rows(manager: &Manager, memory: &Memory, seq: SeqId) -> Vec<[f32; 4]> {
    let float = |row: &[u8], i: usize| f32::from_le_bytes([row[4 * i], row[4 * i + 1], row[4 * i + 2], row[4 * i + 3]]);
    memory.read(&slots(manager, seq)).chunks(16).map(|row| [0, 1, 2, 3].map(|i| float(row, i))).collect()
}

/// The rows of tokens whose keys were turned by so many positions.
fn turned(tokens: impl IntoIterator<Item = u32>, delta: i64) -> Vec<[f32; 4]> {
    let (s, c) = ((delta as f64).sin() as f32, (delta as f64).cos() as f32);
    let row = |token: u32| {
        let x = token as f32;
        [x * c - x * s, x * s + x * c, x, x]
    };
    tokens.into_iter().map(row).collect()
}

/// Has the call after `calls` others fail, and an update meet it.
fn fail_update(manager: &mut Manager, memory: &mut Memory, calls: usize) {
    memory.faults.fails_at = Some(memory.calls.get() + calls);
    assert_eq!(manager.update(memory).unwrap_err().kind(), "memory");
    memory.faults.fails_at = None;
    manager.check().unwrap();
}

fn is_lost(manager: &mut Manager, seq: SeqId) -> bool {
    matches!(manager.seq_rm(seq, 0..0), Err(Error::Lost { .. }))
}

#[test]
fn a_sealed_page_that_is_used_in_part_moves_whole() {
    let (mut manager, mut memory) = made(builder(PAGED, 64));
    let below = sequence(&mut manager, &mut memory, 900..903);
    let a = sequence(&mut manager, &mut memory, 0..8);
    manager.seq_rm(a, 6..).unwrap();
    manager.free(below).unwrap();
    assert_eq!(manager.compact(1).unwrap().len(), 1);
    manager.update(&mut memory).unwrap();
    let b = sequence(&mut manager, &mut memory, 0..9);
    assert_eq!(rows(&manager, &memory, b), turned(0..9, 0));
}

#[test]
fn pages_that_failed_copies_were_to_write_leave_the_index() {
    for free_first in [false, true] {
        let (mut manager, mut memory) = made(builder(PAGED, 64));
        let below = sequence(&mut manager, &mut memory, 900..903);
        let a = sequence(&mut manager, &mut memory, 0..8);
        manager.free(below).unwrap();
        assert_eq!(manager.compact(1).unwrap().len(), 1);
        if free_first {
            manager.free(a).unwrap();
        }
        fail_update(&mut manager, &mut memory, 0);
        if !free_first {
            assert!(is_lost(&mut manager, a));
            manager.free(a).unwrap();
        }
        let b = sequence(&mut manager, &mut memory, 0..9);
        assert_eq!(rows(&manager, &memory, b), turned(0..9, 0));
    }
}

#[test]
fn a_lost_owner_of_a_page_does_not_keep_its_rows_from_being_turned() {
    let (mut manager, mut memory) = made(builder(PAGED, 64).prefix_sharing(false));
    let a = sequence(&mut manager, &mut memory, 1..7);
    manager.seq_add(a, .., 1).unwrap();
    let b = manager.fork(a).unwrap();
    // The rows behind the first of b's first page move, in a page of its own.
    manager.seq_rm(b, 1..2).unwrap();
    fail_update(&mut manager, &mut memory, 0);
    assert!(is_lost(&mut manager, b) && !is_lost(&mut manager, a));
    manager.seq_rm(a, 4..).unwrap();
    append(&mut manager, &mut memory, a, [50]);
    assert_eq!(rows(&manager, &memory, a)[..3], turned(1..4, 1));
}

#[test]
fn a_run_that_a_step_moves_is_turned_first() {
    let (mut manager, mut memory) = made(builder(Mode::Runs, 32));
    let (a, b) = (sequence(&mut manager, &mut memory, [7]), manager.create());
    manager.seq_add(a, .., 1).unwrap();
    // The cell behind a is taken first.
    let appends = [Append::count(b, 1), Append::count(a, 1)];
    manager.begin_step(&appends).unwrap().apply(&mut memory).unwrap().commit();
    assert_eq!(rows(&manager, &memory, a)[..1], turned([7], 1));
}

#[test]
fn pages_that_a_step_takes_are_not_turned() {
    let (mut manager, mut memory) = made(builder(PAGED, 16));
    let cached = sequence(&mut manager, &mut memory, 100..108);
    manager.free(cached).unwrap();
    let a = sequence(&mut manager, &mut memory, 1..7);
    manager.seq_add(a, .., 1).unwrap();
    let b = manager.fork(a).unwrap();
    // Copy-on-write evicts a page; the rotations, which come before the copy, fail.
    memory.faults.fails_at = Some(memory.calls.get());
    let planned = manager.begin_step(&[Append::count(a, 1), Append::count(b, 1)]).unwrap();
    assert_eq!(planned.apply(&mut memory).unwrap_err().kind(), "memory");
    memory.faults.fails_at = None;
    assert!(is_lost(&mut manager, a) && is_lost(&mut manager, b));
    manager.free(a).unwrap();
    manager.free(b).unwrap();
    let again = manager.create();
    assert_eq!(append(&mut manager, &mut memory, again, 100..109), 8);
    assert_eq!(rows(&manager, &memory, again), turned(100..109, 0));
}
