//! What a device does to rows is what the host does.

use kvcache_conformance::random::Unstructured;
use kvcache_manager::op::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use kvcache_manager::schema::ElementType::{BFloat16, Float8E4M3Fn, Float16, Float32, Int4, Int8};
use kvcache_manager::schema::{CacheLayout, QuantBit};
use kvcache_manager::{CacheMemory, Geometry, MemoryError, Rope, Rotation, RowCopy};
use libtest_mimic::Failed;

use crate::device::{Result, Twins, Types, fill, spec};

const TYPES: [(Types, usize); 11] = [
    ((Float32, None), 12),
    ((Float16, None), 16),
    ((BFloat16, None), 16),
    ((Int8, None), 16),
    ((Int8, Some((QuantBit::Eight, 8, Float32))), 32),
    ((Int8, Some((QuantBit::Eight, 6, Float16))), 24),
    ((Int4, Some((QuantBit::Four, 24, Float32))), 24),
    ((Int4, Some((QuantBit::Four, 8, Float16))), 64),
    ((Int4, Some((QuantBit::Four, 2, Float16))), 64),
    ((Float8E4M3Fn, Some((QuantBit::Float8, 8, Float32))), 32),
    ((Float8E4M3Fn, Some((QuantBit::Float8, 6, Float16))), 24),
];

const MAX_T: usize = 96;

fn both(
    twins: &mut Twins,
    what: &str,
    act: impl Fn(&mut dyn CacheMemory) -> std::result::Result<(), MemoryError>,
) -> Result<()> {
    act(&mut twins.host)?;
    twins.on_device(|memory| act(memory))??;
    twins.agree(what)
}

/// Copies of which some overlap themselves or an earlier one.
fn copies(entropy: &mut Unstructured, count: usize) -> Vec<RowCopy> {
    let copy = |_| {
        let len = entropy.below(7);
        RowCopy { src: entropy.below(MAX_T - len), dst: entropy.below(MAX_T - len), len }
    };
    (0..count).map(copy).collect()
}

/// Most slots, by a few deltas.
fn rotations(entropy: &mut Unstructured) -> Vec<Rotation> {
    let delta = |entropy: &mut Unstructured| [-3, 0, 1000][entropy.below(30) / 14];
    (0..MAX_T).rev().map(|slot| Rotation { slot, len: usize::from(slot % 7 != 0), delta: delta(entropy) }).collect()
}

pub fn rows_are_those_of_the_host() -> std::result::Result<(), Failed> {
    let mut entropy = Unstructured::seed(24);
    for (types, head_dim) in TYPES {
        for layout in CacheLayout::ALL {
            let geometry = Geometry { num_layer: 2, num_heads: 3, head_dim, max_t: MAX_T };
            let spec = spec(layout, types, geometry)?;
            let mut twins = Twins::new(&spec, 5, &mut entropy)?;
            let copies = copies(&mut entropy, 40);
            both(&mut twins, "copies", |memory| memory.copy_rows(&copies))?;
            // A slot twice: the later row remains.
            let slots: Vec<usize> = [7, 8, 9, 50, 7, 3, 4].into_iter().chain(60..73).collect();
            let mut rows = vec![0; slots.len() * spec.bytes_per_token()];
            fill(Float32, &mut rows, &mut entropy);
            both(&mut twins, "write_rows", |memory| memory.write_rows(&slots, &rows))?;
            let layer = &rows[..slots.len() * spec.rows().layer(1)?.row_len()];
            both(&mut twins, "write_layer_rows", |memory| memory.write_layer_rows(1, &slots, layer))?;
            let expected = twins.host.read(&slots);
            twins.on_device(|memory| memory.read_rows(&slots, &mut rows))??;
            if rows != expected {
                return Err(format!("read_rows: {spec:?}").into());
            }
            if types == (Int8, None) {
                continue;
            }
            let mut twins = Twins::new(&spec, 5, &mut entropy)?;
            for rope in [Rope::neox(8, 1e4), Rope::gptj(head_dim, 1e4)] {
                let rotations = rotations(&mut entropy);
                both(&mut twins, "rotate_keys", |memory| memory.rotate_keys(&rotations, &rope))?;
            }
        }
    }
    Ok(())
}

/// The driver refuses to wait or to allocate while a stream is captured; what needs the host is refused before that.
pub fn copies_neither_wait_nor_allocate() -> std::result::Result<(), Failed> {
    let mut entropy = Unstructured::seed(25);
    let geometry = Geometry { num_layer: 2, num_heads: 2, head_dim: 32, max_t: MAX_T };
    let quant = Some((QuantBit::Eight, 8, Float16));
    let mut twins = Twins::new(&spec(CacheLayout::HeadMajor, (Int8, quant), geometry)?, 1, &mut entropy)?;
    let (copies, rotations, rope) = (copies(&mut entropy, 20), rotations(&mut entropy), Rope::neox(32, 1e4));
    let stream = twins.stream.clone();
    let captured = twins.on_device(|memory| {
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL)?;
        memory.copy_rows(&copies)?;
        let refused = memory.rotate_keys(&rotations, &rope).expect_err("the host rotates");
        assert_eq!(refused.to_string(), "rows go through the host, expected a stream that is not captured");
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        Ok::<_, MemoryError>(stream.end_capture(flags)?)
    })??;
    twins.agree("nothing has run")?;
    captured.ok_or("the graph is empty")?.launch()?;
    twins.host.copy_rows(&copies)?;
    Ok(twins.agree("the graph")?)
}
