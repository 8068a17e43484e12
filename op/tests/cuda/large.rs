//! Caches beyond 2^31 elements and 2^32 bytes.

use kvcache_op::cuda::cudarc::driver::CudaSlice;
use kvcache_op::cuda::{DeviceInputs, DeviceMut, DeviceOutputs, DeviceRef, OutputRows};
use kvcache_op::schema::{CacheDims, CacheStrides};
use kvcache_op::{Attributes, CacheLayout, ElementType, IndexInputs, KeyValueCache};
use libtest_mimic::Failed;

use crate::device::Gpu;

const NUM_LAYER: usize = 2;
const NUM_HEADS: usize = 8;
const HEAD_DIM: usize = 128;
/// Elements: 600 000 * 2 * 2 * 8 * 128 = 2.46e9.
const MAX_T: usize = 600_000;
const TOKENS: usize = 6;
/// One byte of what no call has written.
const BEFORE: u8 = 0x5a;
/// Bytes of the cache that are looked at together.
const WINDOW: usize = 1 << 28;

pub fn more_than_two_to_the_31_elements(gpu: &Gpu) -> Result<(), Failed> {
    for (element, quant_bit) in [(ElementType::Int8, 0), (ElementType::Float16, 0)] {
        let bytes = MAX_T * NUM_LAYER * 2 * NUM_HEADS * HEAD_DIM * element.bits() / 8;
        let (free, _) = gpu.context.mem_get_info()?;
        if free < bytes + (1 << 28) {
            let reason = format!("{element}: {free} bytes of the device are free, the cache has {bytes}");
            if gpu.is_emulated()? {
                println!("SKIPPED, {reason}");
                continue;
            }
            // A GPU that cannot hold it has not passed.
            return Err(reason.into());
        }
        let mut cache = gpu.stream.alloc_zeros::<u8>(bytes)?;
        for layout in CacheLayout::ALL {
            one_layout(gpu, layout, (element, quant_bit), &mut cache)
                .map_err(|error| format!("{element} {layout:?}: {}", error.message().unwrap_or_default()))?;
        }
    }
    Ok(())
}

/// Stores tokens to the first and to the last slots, loads them again, and looks at every byte of the cache.
fn one_layout(
    gpu: &Gpu,
    layout: CacheLayout,
    (element, quant_bit): (ElementType, i64),
    cache: &mut CudaSlice<u8>,
) -> Result<(), Failed> {
    let stream = &gpu.stream;
    // SAFETY: the slice has so many bytes, and nothing else uses it.
    unsafe {
        use kvcache_op::cuda::cudarc::driver::{DevicePtrMut, result};
        let len = cache.len();
        let (address, _use) = cache.device_ptr_mut(stream);
        result::memset_d8_async(address, BEFORE, len, stream.cu_stream())?;
    }
    let attributes = Attributes {
        num_layer: NUM_LAYER as i64,
        layer_idx: NUM_LAYER as i64 - 1,
        quant_bit,
        cache_layout: layout.code(),
        cache_mode: 1,
        page_size: 3,
        ..Attributes::default()
    };
    let op = KeyValueCache::new(attributes)?;
    let size = element.bits() / 8;
    let row = NUM_HEADS * HEAD_DIM * size;
    // No byte is BEFORE, and no float is a NaN.
    let numbers = |phase: usize| (0..TOKENS * row).map(|i| ((i * 31 + phase) % 57) as u8).collect::<Vec<u8>>();
    let current = [numbers(1), numbers(29)];
    let pages = [0i64, MAX_T as i64 - 3];
    let slots: Vec<usize> = pages.iter().flat_map(|&page| (0..3).map(move |t| page as usize + t)).collect();

    let shape = [TOKENS, NUM_HEADS, HEAD_DIM];
    let [key, value] = current.each_ref().map(|bytes| stream.clone_htod(bytes));
    let (key, value) = (key?, value?);
    let seqstarts = stream.clone_htod(&[0i64, TOKENS as i64])?;
    let cachestarts = stream.clone_htod(&pages)?;
    let start_pos = stream.clone_htod(&[0i64])?;
    let (mut out_key, mut out_value) =
        (stream.alloc_zeros::<u8>(TOKENS * row)?, stream.alloc_zeros::<u8>(TOKENS * row)?);
    let dims = CacheDims { max_t: MAX_T, num_layer: NUM_LAYER, num_heads: NUM_HEADS, inner: HEAD_DIM };
    let inputs = DeviceInputs {
        current_key: DeviceRef::from_bytes(element, shape, &key, stream),
        current_value: DeviceRef::from_bytes(element, shape, &value, stream),
        indices: IndexInputs {
            seqstarts: DeviceRef::new([2], &seqstarts, stream),
            cachestarts: DeviceRef::new([1, 2], &cachestarts, stream),
            start_pos: DeviceRef::new([1], &start_pos, stream),
            kvstarts: OutputRows::Kvstarts((&[0, TOKENS as i64]).into()),
            max_seqlen: (&(TOKENS as i64)).into(),
            max_kvlen: (&(TOKENS as i64)).into(),
        },
    };
    let call = op.check_device(inputs, DeviceMut::from_bytes(element, layout.shape(dims), cache, stream), None)?;
    let outputs = DeviceOutputs {
        key: DeviceMut::from_bytes(element, shape, &mut out_key, stream),
        value: DeviceMut::from_bytes(element, shape, &mut out_value, stream),
    };
    call.launch(outputs, &gpu.status, stream)?;
    stream.synchronize()?;
    assert_eq!(gpu.status.take(), None);
    for (got, expected) in [(&out_key, &current[0]), (&out_value, &current[1])] {
        if stream.clone_dtoh(got)? != *expected {
            return Err("what is loaded is not what was stored".into());
        }
    }

    // Every byte of the cache: the stored heads where they belong, and nothing anywhere else.
    let strides: CacheStrides = layout.strides(dims).ok_or("the strides overflow")?;
    let mut stored = Vec::new();
    for (t, &slot) in slots.iter().enumerate() {
        for (kv, bytes) in current.iter().enumerate() {
            for h in 0..NUM_HEADS {
                let at = strides.offset(slot, NUM_LAYER - 1, kv, h) * size;
                let from = (t * NUM_HEADS + h) * HEAD_DIM * size;
                stored.push((at, &bytes[from..from + HEAD_DIM * size]));
            }
        }
    }
    stored.sort_unstable();
    if stored.last().is_none_or(|(at, _)| *at <= 1 << 31) {
        return Err("no stored byte lies behind 2^31".into());
    }
    let mut seen = 0;
    for start in (0..cache.len()).step_by(WINDOW) {
        let end = (start + WINDOW).min(cache.len());
        let mut window = stream.clone_dtoh(&cache.slice(start..end))?;
        // A head never straddles two windows: both are powers of two.
        for (at, bytes) in stored.iter().filter(|(at, _)| (start..end).contains(at)) {
            let got = &mut window[at - start..][..bytes.len()];
            if got != *bytes {
                return Err(format!("the head at byte {at} is not what was stored").into());
            }
            got.fill(BEFORE);
            seen += 1;
        }
        if let Some(i) = window.iter().position(|&byte| byte != BEFORE) {
            return Err(format!("byte {} was written and must not be", start + i).into());
        }
    }
    assert_eq!(seen, stored.len());
    Ok(())
}
