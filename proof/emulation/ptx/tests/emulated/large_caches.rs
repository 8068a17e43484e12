//! Offsets beyond 32 bits.

use kvcache_emulation_ptx::{Access, DeviceMemory, Freedom, Memory, Order, code, launch};
use kvcache_kernels::cuda::Launch;
use kvcache_kernels::{CacheBytes, DeviceAddressing, DeviceProblem, DeviceStores, Geometry, Quant};
use kvcache_schema::{CacheDims, CacheLayout, ElementType, QuantBit};

const NUM_HEADS: usize = 2;
const HEAD_DIM: usize = 16;
/// Values of a token: of its keys, or of its values.
const TOKEN: usize = NUM_HEADS * HEAD_DIM;

/// The last slots of the last layer of a cache of 2^32 elements and some, in every layout.
#[test]
fn large_caches() {
    for layout in CacheLayout::ALL {
        for (t2, bits) in [(ElementType::Int8, QuantBit::Eight), (ElementType::Int4, QuantBit::Four)] {
            let (rows, num_layer, num_heads) = (4, 2, NUM_HEADS);
            let max_t = (1 << 32) / (2 * num_layer * num_heads * HEAD_DIM) + 8;
            let dims = CacheDims { max_t, num_layer, num_heads, inner: HEAD_DIM };
            let scale_dims = CacheDims { inner: 1, ..dims };
            let quant = Quant {
                bits,
                group: HEAD_DIM,
                rotated: false,
                t3: ElementType::Float16,
                scale_len: 2 * max_t * num_layer * num_heads,
                scale: layout.strides(scale_dims).unwrap(),
            };
            let geometry = Geometry {
                batch: 1,
                num_heads,
                head_dim: HEAD_DIM,
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
            let cache = DeviceMemory::sparse(t2.byte_len(geometry.cache_len));
            let scale = DeviceMemory::sparse(quant.scale_len * 2);
            let indices = [&[0, rows as i64][..], &[0], &[(max_t - rows) as i64]].map(DeviceMemory::of_indices);
            let status = DeviceMemory::of(&[0; 8], 0);
            let stores = DeviceStores {
                geometry,
                max_t,
                addressing: DeviceAddressing::Offset,
                current_rows: rows,
                all_rows: rows,
                exact_rows: true,
                current: [inputs[0].address(), inputs[1].address()],
                cache: cache.address(),
                scale: scale.address(),
                seqstarts: indices[0].address(),
                start_pos: indices[1].address(),
                cachestarts: indices[2].address(),
                status: status.address(),
            };
            let outputs_at = outputs.each_ref().map(DeviceMemory::address);
            let store = stores.store(1).unwrap().unwrap();
            let load = DeviceProblem { stores, num_repeat: 1, outputs: outputs_at }.load(1).unwrap().unwrap();
            let run = |what: &Launch, reads: [&DeviceMemory; 2], writes: [&DeviceMemory; 2]| {
                let reads = reads.into_iter().chain(&indices).map(|memory| memory.region(Access::Read));
                let writes = writes.into_iter().map(|memory| memory.region(Access::Write));
                let memory = Memory::new(reads.chain(writes).chain([status.region(Access::Atomic)]));
                let code = code(what.module, what.kernel, Freedom::default());
                // SAFETY: the regions are DeviceMemory that lives, and that nobody else uses.
                unsafe { launch(code, &memory, what, Order::Forward, false) }.unwrap();
            };
            run(&store, [&inputs[0], &inputs[1]], [&cache, &scale]);
            // The largest value of each group has the code qmax or -qmax, of int4 always this, where the layout says.
            for (kv, t, h) in (0..2).flat_map(|kv| (0..rows).flat_map(move |t| [(kv, t, 0), (kv, t, 1)])) {
                let slot = max_t - rows + t;
                let group = |d: usize| value(kv, t * TOKEN + h * HEAD_DIM + d);
                let at = (0..HEAD_DIM).max_by(|&a, &b| group(a).abs().total_cmp(&group(b).abs())).unwrap();
                let (cache_at, scale_at) = bytes.head(slot, kv, h);
                let element = cache_at * 8 / t2.bits() + at;
                let byte = cache.bytes()[element * t2.bits() / 8];
                let code = match bits {
                    QuantBit::Eight | QuantBit::Float8 => byte as i8,
                    QuantBit::Four => (if element.is_multiple_of(2) { byte << 4 } else { byte }) as i8 >> 4,
                };
                let sign = if bits.has_signed_scales() { -group(at).signum() } else { 1.0 };
                let expected = bits.qmax() * (sign * group(at).signum()) as i16;
                assert_eq!(i16::from(code), expected, "{layout:?} {t2}: {kv} {t} {h}");
                let stored = &scale.bytes()[scale_at..][..2];
                let expected = half::f16::from_f32(sign * group(at).abs() / f32::from(bits.qmax()));
                assert_eq!(stored, expected.to_ne_bytes(), "{layout:?} {t2}: {kv} {t} {h}");
            }
            run(&load, [&cache, &scale], [&outputs[0], &outputs[1]]);
            assert_eq!(status.bytes(), [0; 8]);
            for (kv, output) in outputs.iter().enumerate() {
                for (i, bytes) in output.bytes().chunks_exact(4).enumerate() {
                    let error = (value(kv, i) - f32::from_ne_bytes(bytes.try_into().unwrap())).abs();
                    // Half a step of the coarsest group, of int4 a whole one, and the scale's rounding.
                    let steps = if bits.has_signed_scales() { 1.01 } else { 0.51 };
                    assert!(error <= 204.0 / f32::from(bits.qmax()) * steps, "{layout:?} {t2}: {kv} {i}");
                }
            }
        }
    }
}
