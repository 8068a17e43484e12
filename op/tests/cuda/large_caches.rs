//! Offsets beyond 32 bits.

use kvcache_conformance::{Call, Expected, Operator, Tensor};
use kvcache_op::schema::CacheDims;
use kvcache_op::{CacheLayout, ElementType};
use kvcache_testing::random::{case, index_inputs};
use libtest_mimic::Failed;

use crate::call::{CallOptions, Uploaded};
use crate::device::{Buffer, Gpu};

const ROWS: usize = 4;
const HEADS: usize = 2;
const HEAD_DIM: usize = 16;
const LAYERS: usize = 2;

/// A call whose tokens get the last slots of the last layer of a cache.
fn call(layout: CacheLayout, t2: ElementType, max_t: usize) -> Call {
    let dims = CacheDims { max_t, num_layer: LAYERS, num_heads: HEADS, inner: HEAD_DIM };
    let value = |kv: usize, i: usize| (i as f32 - 60.0) * if kv == 0 { 1.0 } else { -3.0 };
    let current = |kv| {
        let bytes: Vec<u8> = (0..ROWS * HEADS * HEAD_DIM).flat_map(|i| value(kv, i).to_le_bytes()).collect();
        Tensor::new(ElementType::Float32, vec![ROWS, HEADS, HEAD_DIM], &bytes).expect("the bytes of its shape")
    };
    let mut inputs = index_inputs(&[(0, ROWS)]);
    inputs.extend([("current_key", current(0)), ("current_value", current(1))]);
    inputs.insert("cachestarts", Tensor::of_indices(&[(max_t - ROWS) as i64], &[1]));
    let mut attributes = Operator::KeyValueCache.attributes();
    attributes.extend([("quant_bit", t2.bits() as i64), ("quant_group", HEAD_DIM as i64)]);
    attributes.extend([
        ("num_layer", LAYERS as i64),
        ("layer_idx", LAYERS as i64 - 1),
        ("cache_layout", layout.code()),
    ]);
    let zeros = |element, dims| Tensor::zeros(element, layout.shape(dims).to_vec());
    Call {
        operator: Operator::KeyValueCache,
        attributes,
        floats: Operator::KeyValueCache.floats(),
        inputs,
        cache: zeros(t2, dims),
        scale: zeros(ElementType::Float16, CacheDims { inner: 1, ..dims }),
    }
}

/// A call stores and loads the same bytes in the last slots of a cache of more than 2^32 elements and of a small cache,
/// in every layout.
pub fn last_slots(gpu: &Gpu) -> Result<(), Failed> {
    let max_ts = [8, (1 << 32) / (2 * LAYERS * HEADS * HEAD_DIM) + 8];
    for layout in CacheLayout::ALL {
        for t2 in [ElementType::Int8, ElementType::Int4] {
            let [small, mut large] = max_ts.map(|max_t| call(layout, t2, max_t));
            let Expected::Success(after) = case(small).steps.remove(0).expected else { panic!("a legal call") };
            // A copy of the host's large tensors, which are only asked for their shapes, would write them.
            let state = [large.cache.take(), large.scale.take()];
            let mut uploaded = Uploaded::new(gpu, &large, CallOptions::default())?;
            let buffer =
                |tensor: &Option<Tensor>| tensor.as_ref().map(|tensor| Buffer::of_any_bytes(gpu, tensor)).transpose();
            (uploaded.cache, uploaded.scale) = (buffer(&state[0])?, buffer(&state[1])?);
            [large.cache, large.scale] = state;
            let outputs = uploaded.run(&large)?;
            gpu.nothing_found()?;
            assert!(outputs == [after["key"].clone(), after["value"].clone()], "{layout:?} {t2}");
            for (name, buffer, inner) in [("cache", &uploaded.cache, HEAD_DIM), ("scale", &uploaded.scale, 1)] {
                let element = after[name].element();
                for (t, kv, h) in (0..ROWS).flat_map(|t| [(t, 0, 0), (t, 0, 1), (t, 1, 0), (t, 1, 1)]) {
                    let [expected_at, at] = max_ts.map(|max_t| {
                        let dims = CacheDims { max_t, num_layer: LAYERS, num_heads: HEADS, inner };
                        let strides = layout.strides(dims).expect("few elements");
                        let slot = max_t - ROWS + t;
                        let at = slot * strides.token + (LAYERS - 1) * strides.layer + kv * strides.kv;
                        element.byte_len(at + h * strides.head)
                    });
                    let len = element.byte_len(inner);
                    let got = buffer.as_ref().ok_or("it is given")?.bytes(gpu, at..at + len)?;
                    assert!(got == after[name].bytes()[expected_at..][..len], "{layout:?} {t2}: {name} {t} {kv} {h}");
                }
            }
        }
    }
    Ok(())
}
