//! The golden rows of the manager's specification on keys that are turned, by their ids.

use kvcache_manager::schema::{ElementType, QuantBit};
use kvcache_manager::{Append, Mode, Rope};
use kvcache_testing::manager::memory::Memory;

use crate::golden::{builder, made, sequence};

/// Float32 heads of a memory of one layer, one head and 4 elements: the key in a slot.
fn key(memory: &Memory, slot: usize) -> Vec<f32> {
    memory.read(&[slot])[..16].chunks(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect()
}

#[test]
fn g10_a_key_turned_by_one_position() {
    let expected: [(Rope, [f32; 4]); 3] = [
        (Rope::neox(4, 1e4), [-1.984_110_6, 1.959_900_6, 2.462_377_8, 4.019_799_7]),
        (Rope::gptj(4, 1e4), [-1.142_639_6, 1.922_075_5, 2.959_850_8, 4.029_799_5]),
        (Rope::gptj(2, 1e4), [-1.142_639_6, 1.922_075_5, 3.0, 4.0]),
    ];
    for (rope, expected) in expected {
        for mode in [Mode::Paged { page_size: 4 }, Mode::Runs, Mode::Cells] {
            let spec = builder(1, 1, 4, 32).mode(mode).cache_type(ElementType::Float32).rope(rope.clone());
            let (mut manager, mut memory) = made(spec);
            let seq = sequence(&mut manager, &mut memory, 1);
            let row: Vec<u8> = [1.0_f32, 2.0, 3.0, 4.0].repeat(2).iter().flat_map(|x| x.to_le_bytes()).collect();
            memory.write(&[0], &row);
            manager.seq_add(seq, .., 1).unwrap();
            manager.update(&mut memory).unwrap();
            assert_eq!(key(&memory, 0), expected, "{rope:?}");
            assert_eq!(memory.read(&[0])[16..], row[16..], "values stay");
        }
    }
}

#[test]
fn g11_a_quantized_key_turned_by_one_position() {
    let builder = builder(1, 1, 8, 16).mode(Mode::Runs).rope(Rope::neox(8, 1e4));
    let (mut manager, mut memory) = made(builder.quantized(QuantBit::Eight, 8, ElementType::Float32));
    let seq = sequence(&mut manager, &mut memory, 1);
    // K and V of 1 to 8, of which 8 has code 127.
    let scale = 8.0_f32 / 127.0;
    let codes: Vec<u8> = (1..=8).map(|x| (x as f32 / scale).round_ties_even() as u8).collect();
    assert_eq!(codes, [16, 32, 48, 64, 79, 95, 111, 127]);
    assert!((f64::from(scale) - 0.062_992_13).abs() < 5e-9);
    let row = [codes.clone(), codes.clone(), scale.to_le_bytes().to_vec(), scale.to_le_bytes().to_vec()].concat();
    memory.write(&[0], &row);
    manager.seq_add(seq, .., 1).unwrap();
    manager.update(&mut memory).unwrap();
    let turned = memory.read(&[0]);
    let codes: Vec<i8> = turned[..8].iter().map(|&code| code as i8).collect();
    assert_eq!(codes, [-58, 22, 47, 64, 56, 98, 111, 127]);
    let scale = f32::from_le_bytes(turned[16..20].try_into().unwrap());
    assert!((f64::from(scale) - 0.063_023_84).abs() < 5e-9);
    assert_eq!((&turned[8..16], &turned[20..]), (&row[8..16], &row[20..]), "values stay");
}

/// The relative error of keys of normal numbers, as they are stored and after 1, 4 and 16 shifts by -50.
fn errors(bit: QuantBit, group: usize) -> [f64; 4] {
    const HEAD_DIM: usize = 128;
    let num_rows = 64;
    let builder = builder(1, 1, HEAD_DIM, num_rows).mode(Mode::Runs).rope(Rope::neox(HEAD_DIM, 1e4));
    let (mut manager, mut memory) = made(builder.quantized(bit, group, ElementType::Float16).shift_limit(None));
    let seq = manager.create();
    manager.begin_step(&[Append::count(seq, num_rows).at(1000)]).unwrap().apply(&mut memory).unwrap().commit();
    // Sums of uniform numbers are near enough to normal ones.
    let mut x = 0x9e37_79b9_7f4a_7c15_u64;
    let mut uniform = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 11) as f64 / (1_u64 << 53) as f64
    };
    let mut normal = || (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
    let keys: Vec<Vec<f64>> = (0..num_rows).map(|_| (0..HEAD_DIM).map(|_| normal()).collect()).collect();
    let codec = kvcache_kernels::quantize::HeadCodec { bits: bit, group };
    for (slot, key) in keys.iter().enumerate() {
        let head: Vec<f32> = key.iter().map(|&x| x as f32).collect();
        let mut codes = vec![0; codec.code_bytes(HEAD_DIM)];
        let mut scales = vec![half::f16::ZERO; HEAD_DIM / group];
        codec.encode(&head, &mut codes, &mut scales);
        let scales: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        memory.write(&[slot], &[codes.clone(), codes, scales.clone(), scales].concat());
    }
    let error = |memory: &Memory, delta: i64| {
        let (mut difference, mut size) = (0.0, 0.0);
        for (slot, key) in keys.iter().enumerate() {
            let row = memory.read(&[slot]);
            let (codes, scales) = (codec.code_bytes(HEAD_DIM), HEAD_DIM / group);
            let scales: Vec<half::f16> = row[2 * codes..][..2 * scales]
                .chunks(2)
                .map(|scale| half::f16::from_le_bytes([scale[0], scale[1]]))
                .collect();
            let mut head = vec![0.0_f32; HEAD_DIM];
            codec.decode(&row[..codes], &scales, &mut head);
            for i in 0..HEAD_DIM / 2 {
                let angle = delta as f64 * 1e4_f64.powf(-2.0 * i as f64 / HEAD_DIM as f64);
                let (a, b) = (key[i], key[i + HEAD_DIM / 2]);
                let exact = [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()];
                for (x, exact) in [head[i], head[i + HEAD_DIM / 2]].into_iter().zip(exact) {
                    difference += (f64::from(x) - exact).powi(2);
                    size += exact.powi(2);
                }
            }
        }
        (difference / size).sqrt()
    };
    let mut shifts = 0;
    [0, 1, 4, 16].map(|total| {
        while shifts < total {
            manager.seq_add(seq, .., -50).unwrap();
            manager.update(&mut memory).unwrap();
            shifts += 1;
        }
        error(&memory, -50 * shifts)
    })
}

#[test]
fn g12_errors_of_repeated_shifts() {
    for (bit, group, expected) in
        [(QuantBit::Eight, 8, [0.004, 0.006, 0.011, 0.027]), (QuantBit::Four, 32, [0.097, 0.13, 0.22, 0.54])]
    {
        for (error, expected) in errors(bit, group).into_iter().zip(expected) {
            assert!((0.8..1.25).contains(&(error / expected)), "{bit:?}: {error}, expected about {expected}");
        }
    }
}
