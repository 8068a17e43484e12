//! What the host does not check for the kernels: lengths and slots, batches other than the host knows, large offsets.

use kvcache_emulation_kernels::{Access, DeviceMemory, FAITHFUL, Operand, Order, launch};
use kvcache_kernels::cuda::{DeviceProblem, Finding, Pages, Status};
use kvcache_kernels::{CacheBytes, Geometry, Quant};
use kvcache_schema::{CacheDims, CacheLayout, ElementType, QuantBit};

const NUM_HEADS: usize = 2;
const HEAD_DIM: usize = 16;
/// Values of a token: of its keys, or of its values.
const TOKEN: usize = NUM_HEADS * HEAD_DIM;

/// A call on int8 values without quantization: what is stored is what was given.
struct Call {
    seqstarts: Vec<i64>,
    start_pos: Vec<i64>,
    cachestarts: Vec<i64>,
    pages: Pages,
    max_t: usize,
    current_rows: usize,
    output_rows: usize,
    exact_rows: bool,
}

/// The memory and the status after a call.
struct After {
    cache: Vec<u8>,
    outputs: [Vec<u8>; 2],
    status: Option<Status>,
}

/// The bytes of memory that has not been written.
const UNTOUCHED: u8 = 0xa5;

fn geometry(batch: usize, max_t: usize) -> Geometry {
    let dims = CacheDims { max_t, num_layer: 1, num_heads: NUM_HEADS, inner: HEAD_DIM };
    Geometry {
        batch,
        num_heads: NUM_HEADS,
        head_dim: HEAD_DIM,
        num_repeat: 1,
        layer_idx: 0,
        t1: ElementType::Int8,
        t2: ElementType::Int8,
        quant: None,
        cache_len: 2 * max_t * TOKEN,
        cache: CacheLayout::TokenMajor.strides(dims).unwrap(),
    }
}

fn of_indices(indices: &[i64]) -> DeviceMemory {
    DeviceMemory::of(&indices.iter().flat_map(|index| index.to_ne_bytes()).collect::<Vec<_>>(), 0)
}

/// The value of element i of a row of `current_key` (0) or `current_value` (1).
fn current(kv: usize, row: usize, i: usize) -> u8 {
    (kv * 131 + row * 7 + i) as u8
}

/// What slot `slot` holds before the call.
fn past(kv: usize, slot: usize, i: usize) -> u8 {
    (kv * 17 + slot * 11 + i * 3) as u8
}

impl Call {
    fn run(&self) -> After {
        let inputs = [0, 1].map(|kv| {
            let values: Vec<u8> = (0..self.current_rows * TOKEN).map(|i| current(kv, i / TOKEN, i % TOKEN)).collect();
            DeviceMemory::of(&values, 0)
        });
        let cache: Vec<u8> =
            (0..self.max_t * 2 * TOKEN).map(|i| past(i / TOKEN % 2, i / TOKEN / 2, i % TOKEN)).collect();
        let cache = DeviceMemory::of(&cache, 0);
        let outputs = [(); 2].map(|()| DeviceMemory::new(self.output_rows * TOKEN, 0));
        let indices = [&self.seqstarts, &self.start_pos, &self.cachestarts].map(|indices| of_indices(indices));
        let status = DeviceMemory::of(&[0; 8], 0);
        let problem = DeviceProblem {
            geometry: geometry(self.start_pos.len(), self.max_t),
            max_t: self.max_t,
            pages: self.pages,
            current_rows: self.current_rows,
            output_rows: self.output_rows,
            exact_rows: self.exact_rows,
            current: [inputs[0].address(), inputs[1].address()],
            outputs: [outputs[0].address(), outputs[1].address()],
            cache: cache.address(),
            scale: 0,
            seqstarts: indices[0].address(),
            start_pos: indices[1].address(),
            cachestarts: indices[2].address(),
            status: status.address(),
            multiprocessors: 1,
        };
        let build = FAITHFUL.iter().find(|build| build.types == "i8_i8").unwrap();
        let operand = |memory, access| Operand { memory, access };
        let common: Vec<_> = indices
            .iter()
            .map(|memory| operand(memory, Access::Read))
            .chain([operand(&status, Access::Atomic)])
            .collect();
        if let Some(store) = problem.store().unwrap() {
            let own = [&inputs[0], &inputs[1]].map(|memory| operand(memory, Access::Read));
            let all: Vec<_> = own.into_iter().chain([operand(&cache, Access::Write)]).chain(common.clone()).collect();
            launch(build, &store, &all, Order::Random(3)).unwrap();
        }
        if let Some(load) = problem.load().unwrap() {
            let own = [&outputs[0], &outputs[1]].map(|memory| operand(memory, Access::Write));
            let all: Vec<_> = own.into_iter().chain([operand(&cache, Access::Read)]).chain(common).collect();
            launch(build, &load, &all, Order::Random(4)).unwrap();
        }
        After {
            cache: cache.bytes().to_vec(),
            outputs: outputs.map(|output| output.bytes().to_vec()),
            status: Status::from_word(u64::from_ne_bytes(status.bytes().try_into().unwrap())),
        }
    }

    /// Runs the call and checks cache, outputs and status. Expected are the slots of the tokens to store and to load,
    /// in the order of their rows; `None` for a token that is skipped.
    fn check(&self, stored: &[Option<usize>], loaded: &[Option<usize>], status: Option<Status>) {
        let after = self.run();
        assert_eq!(after.status, status);
        let mut cache = vec![0; after.cache.len()];
        let at = |kv: usize, slot: usize| (slot * 2 + kv) * TOKEN;
        for kv in 0..2 {
            for slot in 0..self.max_t {
                let row = stored.iter().position(|&to| to == Some(slot));
                for i in 0..TOKEN {
                    cache[at(kv, slot) + i] = row.map_or_else(|| past(kv, slot, i), |row| current(kv, row, i));
                }
            }
        }
        assert!(after.cache == cache, "cache");
        for kv in 0..2 {
            for row in 0..self.output_rows {
                let expected = match loaded.get(row).copied().flatten() {
                    Some(slot) => &cache[at(kv, slot)..][..TOKEN],
                    None => &[UNTOUCHED; TOKEN][..],
                };
                assert_eq!(&after.outputs[kv][row * TOKEN..][..TOKEN], expected, "row {row} of output {kv}");
            }
        }
    }
}

/// Two sequences of 3 + 2 and 0 + 4 tokens, in pages of two.
fn paged() -> Call {
    Call {
        seqstarts: vec![0, 2, 6],
        start_pos: vec![3, 0],
        cachestarts: vec![6, 0, 12, 2, 9, -1],
        pages: Pages::Paged { max_p: 3, page_size: 2 },
        max_t: 14,
        current_rows: 6,
        output_rows: 9,
        exact_rows: true,
    }
}

fn slots<const N: usize>(slots: [usize; N]) -> [Option<usize>; N] {
    slots.map(Some)
}

fn found(finding: Finding, batch: u32, token: u32) -> Option<Status> {
    Some(Status { finding, batch, token })
}

#[test]
fn legal_pages() {
    paged().check(&slots([1, 12, 2, 3, 9, 10]), &slots([6, 7, 0, 1, 12, 2, 3, 9, 10]), None);
}

#[test]
fn a_bad_slot_is_skipped_alone() {
    for bad in [-1, i64::MIN, i64::MAX, 14, 15, 1 << 40] {
        let mut call = paged();
        call.cachestarts[1] = bad;
        let stored = [None, Some(12), Some(2), Some(3), Some(9), Some(10)];
        let loaded = [Some(6), Some(7), None, None, Some(12), Some(2), Some(3), Some(9), Some(10)];
        // The store finds it first, at the only token that it stores there.
        call.check(&stored, &loaded, found(Finding::Slot, 0, 3));
    }
}

#[test]
fn a_page_may_reach_past_the_cache_where_no_token_is() {
    let mut call = paged();
    call.cachestarts[2] = 13;
    call.check(&slots([1, 13, 2, 3, 9, 10]), &slots([6, 7, 0, 1, 13, 2, 3, 9, 10]), None);
    // The second token of this page is past the end.
    call.cachestarts[1] = 13;
    call.cachestarts[2] = 12;
    let stored = [None, Some(12), Some(2), Some(3), Some(9), Some(10)];
    let loaded = [Some(6), Some(7), Some(13), None, Some(12), Some(2), Some(3), Some(9), Some(10)];
    call.check(&stored, &loaded, found(Finding::Slot, 0, 3));
}

#[test]
fn a_short_page_table_is_not_read_past_its_end() {
    let mut call = paged();
    call.pages = Pages::Paged { max_p: 2, page_size: 2 };
    call.cachestarts = vec![6, 0, 2, 9];
    let stored = [Some(1), None, Some(2), Some(3), Some(9), Some(10)];
    let loaded = [Some(6), Some(7), Some(0), Some(1), None, Some(2), Some(3), Some(9), Some(10)];
    call.check(&stored, &loaded, found(Finding::TooManyPages, 0, 4));
}

#[test]
fn offsets_are_checked_too() {
    let mut call = Call { pages: Pages::Offset, cachestarts: vec![9, 0], ..paged() };
    call.check(&slots([12, 13, 0, 1, 2, 3]), &slots([9, 10, 11, 12, 13, 0, 1, 2, 3]), None);
    call.cachestarts[0] = 10;
    let stored = [Some(13), None, Some(0), Some(1), Some(2), Some(3)];
    let loaded = [Some(10), Some(11), Some(12), Some(13), None, Some(0), Some(1), Some(2), Some(3)];
    call.check(&stored, &loaded, found(Finding::Slot, 0, 4));
}

#[test]
fn wrong_lengths_move_nothing() {
    let nothing = |change: fn(&mut Call), status| {
        let mut call = paged();
        change(&mut call);
        call.check(&[], &[], status);
    };
    nothing(|call| call.seqstarts = vec![1, 2, 6], found(Finding::Seqstarts, 0, 0));
    nothing(|call| call.seqstarts = vec![0, 7, 6], found(Finding::Seqstarts, 1, 0));
    nothing(|call| call.seqstarts = vec![0, i64::MIN, 6], found(Finding::Seqstarts, 0, 0));
    nothing(|call| call.start_pos = vec![3, -1], found(Finding::StartPos, 1, 0));
    nothing(|call| call.start_pos = vec![i64::MIN, 0], found(Finding::StartPos, 0, 0));
    nothing(|call| call.seqstarts = vec![0, 2, 7], found(Finding::TooManyTokens, 2, 0));
    nothing(|call| call.seqstarts = vec![0, 2, i64::MAX], found(Finding::TooManyTokens, 2, 0));
}

#[test]
fn too_many_past_tokens_are_not_loaded() {
    let mut call = paged();
    call.start_pos = vec![3, 1];
    // The store knows of no rows of `key`.
    let stored = slots([1, 12, 3, 9, 10]);
    let stored = [&stored[..], &[None]].concat();
    call.cachestarts[5] = -1;
    call.check(&stored, &[], found(Finding::Slot, 1, 4));
    call.cachestarts[5] = 4;
    call.check(&slots([1, 12, 3, 9, 10, 4]), &[], found(Finding::TooManyTokens, 2, 0));
    for start_pos in [i64::MAX, i64::MAX - 1, 1 << 62] {
        call.start_pos = vec![start_pos, 0];
        let after = call.run();
        assert_eq!(after.status.unwrap().finding, Finding::TooManyPages);
        assert!(after.outputs.iter().flatten().all(|&byte| byte == UNTOUCHED));
    }
}

#[test]
fn fewer_tokens_than_rows_are_a_finding_or_a_smaller_batch() {
    let mut call = Call { seqstarts: vec![0, 2, 5], ..paged() };
    let (stored, loaded) = (slots([1, 12, 2, 3, 9]), slots([6, 7, 0, 1, 12, 2, 3, 9]));
    call.check(&stored, &loaded, found(Finding::TooFewTokens, 2, 0));
    call.exact_rows = false;
    call.check(&stored, &loaded, None);
    // A batch of padding.
    call = Call { seqstarts: vec![0, 0, 0], start_pos: vec![0, 0], ..call };
    call.check(&[], &[], None);
}

/// More sequences than a block has threads, most of them idle, some long.
#[test]
fn large_and_ragged_batches() {
    for batch in [255, 256, 257, 511, 512, 513, 1000, 3000] {
        let (mut seqstarts, mut start_pos, mut cachestarts) = (vec![0], Vec::new(), Vec::new());
        let (mut stored, mut loaded, mut max_t) = (Vec::new(), Vec::new(), 1);
        for b in 0..batch {
            let (past, new) = match b % 7 {
                0 => (0, 0),
                1 => (0, 1),
                2 => (3, 0),
                3 if b % 70 == 3 => (40, 20),
                _ => (usize::from(b % 11 == 0), 0),
            };
            start_pos.push(past as i64);
            cachestarts.push(max_t as i64);
            stored.extend((max_t + past..max_t + past + new).map(Some));
            loaded.extend((max_t..max_t + past + new).map(Some));
            seqstarts.push(stored.len() as i64);
            max_t += past + new + b % 2;
        }
        let call = Call {
            seqstarts,
            start_pos,
            cachestarts,
            pages: Pages::Offset,
            max_t,
            current_rows: stored.len(),
            output_rows: loaded.len(),
            exact_rows: true,
        };
        call.check(&stored, &loaded, None);
    }
}

/// Offsets beyond 32 bits: the last slots of the last layer of a cache of 2^32 elements and some, in every layout.
#[test]
fn large_caches() {
    for layout in CacheLayout::ALL {
        for (t2, bits) in [(ElementType::Int8, QuantBit::Eight), (ElementType::Int4, QuantBit::Four)] {
            let (rows, num_layer, num_heads) = (4, 2, 2);
            let max_t = (1 << 32) / (2 * num_layer * num_heads * HEAD_DIM) + 8;
            let dims = CacheDims { max_t, num_layer, num_heads, inner: HEAD_DIM };
            let scale_dims = CacheDims { inner: 1, ..dims };
            let quant = Quant {
                bits,
                group: HEAD_DIM,
                t3: ElementType::Float16,
                scale_len: 2 * max_t * num_layer * num_heads,
                scale: layout.strides(scale_dims).unwrap(),
            };
            let geometry = Geometry {
                batch: 1,
                num_heads,
                head_dim: HEAD_DIM,
                num_repeat: 1,
                layer_idx: num_layer - 1,
                t1: ElementType::Float32,
                t2,
                quant: Some(quant),
                cache_len: 2 * max_t * num_layer * TOKEN,
                cache: layout.strides(dims).unwrap(),
            };
            let bytes = CacheBytes::new(&geometry);
            let value = |kv: usize, i: usize| (i as f32 - 60.0) * if kv == 0 { 1.0 } else { -3.0 };
            let inputs = [0, 1].map(|kv| {
                let bytes: Vec<u8> = (0..rows * TOKEN).flat_map(|i| value(kv, i).to_ne_bytes()).collect();
                DeviceMemory::of(&bytes, 0)
            });
            let outputs = [0, 1].map(|_| DeviceMemory::new(rows * TOKEN * 4, 0));
            let cache = DeviceMemory::sparse(t2.bytes(geometry.cache_len).unwrap());
            let scale = DeviceMemory::sparse(quant.scale_len * 2);
            let indices = [&[0, rows as i64][..], &[0], &[(max_t - rows) as i64]].map(of_indices);
            let status = DeviceMemory::of(&[0; 8], 0);
            let problem = DeviceProblem {
                geometry,
                max_t,
                pages: Pages::Offset,
                current_rows: rows,
                output_rows: rows,
                exact_rows: true,
                current: [inputs[0].address(), inputs[1].address()],
                outputs: [outputs[0].address(), outputs[1].address()],
                cache: cache.address(),
                scale: scale.address(),
                seqstarts: indices[0].address(),
                start_pos: indices[1].address(),
                cachestarts: indices[2].address(),
                status: status.address(),
                multiprocessors: 1,
            };
            let store = problem.store().unwrap().unwrap();
            let load = problem.load().unwrap().unwrap();
            let build = FAITHFUL.iter().find(|build| build.types == store.module.types).unwrap();
            let run = |what, reads: [&DeviceMemory; 2], writes: [&DeviceMemory; 2]| {
                let reads = reads.into_iter().chain(&indices).map(|memory| Operand { memory, access: Access::Read });
                let writes = writes.into_iter().map(|memory| Operand { memory, access: Access::Write });
                let status = Operand { memory: &status, access: Access::Atomic };
                launch(build, what, &reads.chain(writes).chain([status]).collect::<Vec<_>>(), Order::Forward).unwrap();
            };
            run(&store, [&inputs[0], &inputs[1]], [&cache, &scale]);
            // The largest value of each group has the code qmax or -qmax, where the layout says.
            for (kv, t, h) in (0..2).flat_map(|kv| (0..rows).flat_map(move |t| [(kv, t, 0), (kv, t, 1)])) {
                let slot = max_t - rows + t;
                let group = |d: usize| value(kv, t * TOKEN + h * HEAD_DIM + d);
                let at = (0..HEAD_DIM).max_by(|&a, &b| group(a).abs().total_cmp(&group(b).abs())).unwrap();
                let (cache_at, scale_at) = bytes.head(slot, kv, h);
                let element = cache_at * 8 / t2.bits() + at;
                let byte = cache.bytes()[element * t2.bits() / 8];
                let code = match bits {
                    QuantBit::Eight => byte as i8,
                    QuantBit::Four => (if element.is_multiple_of(2) { byte << 4 } else { byte }) as i8 >> 4,
                };
                assert_eq!(code, bits.qmax() * group(at).signum() as i8, "{layout:?} {t2}: {kv} {t} {h}");
                let stored = &scale.bytes()[scale_at..][..2];
                let expected = half::f16::from_f32(group(at).abs() / f32::from(bits.qmax()));
                assert_eq!(stored, expected.to_ne_bytes(), "{layout:?} {t2}: {kv} {t} {h}");
            }
            run(&load, [&cache, &scale], [&outputs[0], &outputs[1]]);
            assert_eq!(status.bytes(), [0; 8]);
            for (kv, output) in outputs.iter().enumerate() {
                for (i, bytes) in output.bytes().chunks_exact(4).enumerate() {
                    let error = (value(kv, i) - f32::from_ne_bytes(bytes.try_into().unwrap())).abs();
                    // Half a step of the coarsest group, and the scale's rounding.
                    assert!(error <= 204.0 / f32::from(bits.qmax()) * 0.51, "{layout:?} {t2}: {kv} {i}");
                }
            }
        }
    }
}
