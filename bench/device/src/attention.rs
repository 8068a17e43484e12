//! Decoding steps and prompts of `MultiHeadCacheAttention`: the answer against the CPU's, then the time, beside that of
//! a copy of the bytes that a step must read.

use std::error::Error;
use std::sync::Arc;

use half::f16;
use kvcache_op::cuda::cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use kvcache_op::cuda::{DeviceCacheAttentionInputs, DeviceInputs, DeviceMut, DeviceRef, OutputRows, StatusWord};
use kvcache_op::schema::{CacheDims, TypeCombination};
use kvcache_op::{
    AttentionAttributes, CacheAttentionAttributes, CacheAttentionInputs, CacheLayout, ElementType, IndexInputs, Inputs,
    MultiHeadCacheAttention, Serial, TensorMut, TensorRef,
};

use crate::case::{Case, HEAD_DIM, NUM_HEADS};
use crate::measure::{is_quick, median_us};
use crate::run::pattern;

/// Query heads, four on each key head.
const QUERY_HEADS: usize = 4 * NUM_HEADS;
/// Answers are compared up to so many keys that all queries together see: the CPU takes long for more.
const COMPARED_KEYS: usize = 1 << 20;

/// Every case: decoding steps of many sizes, of the types of caches that are used, and prompts.
pub fn all() -> Vec<Case> {
    let half = ElementType::Float16;
    let types = |quant_bit, t2| TypeCombination { quant_bit, t1: half, t2, t3: (quant_bit > 0).then_some(half) };
    let [float16, int8, int4] = [types(0, half), types(8, ElementType::Int8), types(4, ElementType::Int4)];
    let layout = CacheLayout::HeadMajor;
    let decode = |types, batch, kvlen: usize| Case { types, layout, batch, past: kvlen - 1, current: 1, num_repeat: 1 };
    let mut cases: Vec<_> = [1, 8, 64]
        .into_iter()
        .flat_map(|batch| [1 << 10, 4 << 10, 32 << 10].map(|kvlen| decode(float16, batch, kvlen)))
        .collect();
    cases.extend([int8, int4].map(|types| decode(types, 64, 4 << 10)));
    cases.extend([int8, int4].map(|types| decode(types, 1, 1 << 10)));
    cases.extend(CacheLayout::ALL.map(|layout| Case { layout, ..decode(float16, 64, 4 << 10) }));
    cases.extend([512, 2048, 4096].map(|current| Case { past: 0, current, ..decode(float16, 1, 1) }));
    cases.dedup_by_key(|case| name(case));
    cases
}

/// A case's name.
pub fn name(case: &Case) -> String {
    format!("attention-{}", case.name())
}

/// The tensors of one call.
struct Tensors {
    query: CudaSlice<u8>,
    current: [CudaSlice<u8>; 2],
    cache: CudaSlice<u8>,
    scale: Option<CudaSlice<u8>>,
    output: CudaSlice<u8>,
}

struct Bench<'a> {
    case: &'a Case,
    op: MultiHeadCacheAttention,
    stream: &'a Arc<CudaStream>,
    status: StatusWord,
    starts: [Vec<i64>; 2],
    seqstarts: CudaSlice<i64>,
    cachestarts: CudaSlice<i64>,
    start_pos: CudaSlice<i64>,
    scratch: CudaSlice<u8>,
}

fn dims(case: &Case, inner: usize) -> CacheDims {
    CacheDims { max_t: case.max_t(), num_layer: 1, num_heads: NUM_HEADS, inner }
}

fn bytes(element: ElementType, shape: &[usize]) -> usize {
    element.bytes(shape.iter().product()).unwrap_or(usize::MAX)
}

impl Bench<'_> {
    fn rows(&self, heads: usize) -> [usize; 3] {
        [self.case.batch * self.case.current, heads, HEAD_DIM]
    }

    fn cache_shape(&self) -> [usize; 5] {
        self.case.layout.shape(dims(self.case, HEAD_DIM))
    }

    fn tensors(&self, seed: usize) -> Result<Tensors, Box<dyn Error>> {
        let Case { types, layout, .. } = *self.case;
        let filled = |len: usize, seed: usize| {
            let bytes: Vec<u8> = (0..len.max(1)).map(|i| pattern(i + seed)).collect();
            self.stream.clone_htod(&bytes)
        };
        let current = bytes(types.t1, &self.rows(NUM_HEADS));
        let scale = types.t3.zip(self.case.scale_inner());
        let scale = scale.map(|(t3, inner)| filled(bytes(t3, &layout.shape(dims(self.case, inner))), seed));
        let query = bytes(types.t1, &self.rows(QUERY_HEADS));
        Ok(Tensors {
            query: filled(query, 5 * seed)?,
            current: [filled(current, 3 * seed)?, filled(current, 7 * seed + 1)?],
            cache: filled(bytes(types.t2, &self.cache_shape()), seed)?,
            scale: scale.transpose()?,
            output: self.stream.alloc_zeros(query)?,
        })
    }

    fn launch(&mut self, tensors: &mut Tensors) -> Result<(), Box<dyn Error>> {
        let Case { types, layout, batch, .. } = *self.case;
        let (stream, current, query) = (&**self.stream, self.rows(NUM_HEADS), self.rows(QUERY_HEADS));
        let shape = self.cache_shape();
        let scale_shape = self.case.scale_inner().map(|inner| layout.shape(dims(self.case, inner)));
        let max_seqlen = self.case.current as i64;
        let inputs = DeviceCacheAttentionInputs {
            query: DeviceRef::from_bytes(types.t1, query, &tensors.query, stream),
            stored: DeviceInputs {
                current_key: DeviceRef::from_bytes(types.t1, current, &tensors.current[0], stream),
                current_value: DeviceRef::from_bytes(types.t1, current, &tensors.current[1], stream),
                indices: IndexInputs {
                    seqstarts: DeviceRef::new([batch + 1], &self.seqstarts, stream),
                    cachestarts: DeviceRef::new([batch, self.case.max_p()], &self.cachestarts, stream),
                    start_pos: DeviceRef::new([batch], &self.start_pos, stream),
                    kvstarts: OutputRows::Kvstarts(self.starts[1].as_slice().into()),
                    max_seqlen: (&max_seqlen).into(),
                    max_kvlen: (&i64::MAX).into(),
                },
            },
            decoding_batches: (&0).into(),
            attn_mask: None,
        };
        let cache = DeviceMut::from_bytes(types.t2, shape, &mut tensors.cache, stream);
        let scale = tensors.scale.as_mut().zip(types.t3).zip(scale_shape);
        let scale = scale.map(|((scale, t3), shape)| DeviceMut::from_bytes(t3, shape, scale, stream));
        let call = self.op.check_device(inputs, cache, scale)?;
        let needed = call.scratch_bytes()?;
        if self.scratch.len() < needed {
            self.scratch = self.stream.alloc_zeros(needed)?;
        }
        let scratch_len = self.scratch.len();
        let scratch = DeviceMut::from_bytes(ElementType::Int8, [scratch_len], &mut self.scratch, stream);
        let output = DeviceMut::from_bytes(types.t1, query, &mut tensors.output, stream);
        Ok(call.launch(output, Some(scratch), &self.status, stream)?)
    }

    /// Makes one call and compares what it writes with what the CPU writes: the cache bit for bit.
    fn compare(&mut self, tensors: &mut Tensors) -> Result<(), Box<dyn Error>> {
        let Case { types, layout, batch, past, .. } = *self.case;
        let host = |slice: &CudaSlice<u8>| self.stream.clone_dtoh(slice);
        let (query, key, value) = (host(&tensors.query)?, host(&tensors.current[0])?, host(&tensors.current[1])?);
        let mut cache = host(&tensors.cache)?;
        let mut scale = tensors.scale.as_ref().map(host).transpose()?;
        let mut expected = vec![0; query.len()];
        let (table, start_pos) = (self.case.cachestarts(), vec![past as i64; batch]);
        // SAFETY: all are vectors of the bytes that their shapes ask for, which nothing else uses, and aligned: memory
        // of this size is, for every type.
        unsafe {
            let read = |element, shape: &[usize], data: &[u8]| TensorRef::from_raw_parts(element, shape, data.as_ptr());
            let write = |element, shape: &[usize], data: &mut [u8]| {
                TensorMut::from_raw_parts(element, shape, data.as_mut_ptr())
            };
            let inputs = CacheAttentionInputs {
                query: read(types.t1, &self.rows(QUERY_HEADS), &query),
                stored: Inputs {
                    current_key: read(types.t1, &self.rows(NUM_HEADS), &key),
                    current_value: read(types.t1, &self.rows(NUM_HEADS), &value),
                    indices: IndexInputs {
                        seqstarts: self.starts[0].as_slice().into(),
                        kvstarts: self.starts[1].as_slice().into(),
                        cachestarts: TensorRef::from_raw_parts(
                            ElementType::Int64,
                            [batch, self.case.max_p()],
                            table.as_ptr().cast(),
                        ),
                        start_pos: start_pos.as_slice().into(),
                        max_seqlen: (&i64::MAX).into(),
                        max_kvlen: (&i64::MAX).into(),
                    },
                },
                decoding_batches: (&0).into(),
                attn_mask: None,
            };
            let scale = scale.as_mut().zip(types.t3).zip(self.case.scale_inner());
            let scale = scale.map(|((scale, t3), inner)| write(t3, &layout.shape(dims(self.case, inner)), scale));
            let call = self.op.check(&inputs, write(types.t2, &self.cache_shape(), &mut cache), scale)?;
            call.run(write(types.t1, &self.rows(QUERY_HEADS), &mut expected), &Serial)?;
        }
        self.launch(tensors)?;
        self.stream.synchronize()?;
        let host = |slice: &CudaSlice<u8>| self.stream.clone_dtoh(slice);
        let (got, expected) = (numbers(&host(&tensors.output)?), numbers(&expected));
        let pairs = got.iter().zip(&expected);
        let differences = pairs.map(|(a, b)| if (a - b).is_nan() { f32::INFINITY } else { (a - b).abs() });
        let difference = differences.fold(0.0, f32::max);
        let stored = host(&tensors.cache)? == cache && tensors.scale.as_ref().map(host).transpose()? == scale;
        // Two units of float16 at the power of two behind the largest number.
        let largest = expected.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let allowed = 2.0 * f16::EPSILON.to_f32() * (largest.log2().floor() + 1.0).exp2();
        if stored && difference <= allowed {
            return Ok(());
        }
        Err(format!(
            "{}: the device's answer is {difference} from the CPU's, of numbers up to {largest}; stored {stored}",
            name(self.case)
        )
        .into())
    }
}

/// The elements of a tensor of float16.
fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&bytes| f16::from_le_bytes(bytes).to_f32()).collect()
}

/// Times a case; gives a line, or says why it cannot be timed.
pub fn run(
    context: &Arc<CudaContext>,
    stream: &Arc<CudaStream>,
    case: &Case,
) -> Result<Result<String, String>, Box<dyn Error>> {
    let Case { batch, past, current, .. } = *case;
    let kvlen = past + current;
    let read = batch * kvlen * case.cache_bytes();
    let (free, _) = context.mem_get_info()?;
    let most = if is_quick() { 1 } else { ((256 << 20) / read + 1).min(16) };
    let sets = most.min(free / 10 * 8 / (3 * read).max(1));
    if sets == 0 {
        return Ok(Err(format!("needs {} MB of the device's memory, {} are free", (3 * read) >> 20, free >> 20)));
    }
    let starts = |len: usize| (0..=batch).map(|b| (b * len) as i64).collect::<Vec<_>>();
    let mut bench = Bench {
        case,
        op: MultiHeadCacheAttention::new(CacheAttentionAttributes {
            attention: AttentionAttributes {
                num_heads: QUERY_HEADS as i64,
                num_kv_heads: NUM_HEADS as i64,
                head_dim: HEAD_DIM as i64,
                ..Default::default()
            },
            cache: case.attributes(),
        })?,
        stream,
        status: StatusWord::new(context)?,
        seqstarts: stream.clone_htod(&starts(current))?,
        cachestarts: stream.clone_htod(&case.cachestarts())?,
        start_pos: stream.clone_htod(&vec![past as i64; batch])?,
        starts: [starts(current), starts(kvlen)],
        scratch: stream.alloc_zeros(1)?,
    };
    let TypeCombination { t1, t2, t3, .. } = case.types;
    bench.op.prepare_device(t1, t2, t3, stream)?;
    let mut tensors = (0..sets).map(|i| bench.tensors(i)).collect::<Result<Vec<_>, _>>()?;
    let compared = batch * current * kvlen <= COMPARED_KEYS;
    // Outside of the graph, so that it allocates no scratch memory.
    match compared {
        true => bench.compare(&mut tensors[0])?,
        false => bench.launch(&mut tensors[0])?,
    }
    stream.synchronize()?;
    let call = median_us(context, stream, sets, || tensors.iter_mut().try_for_each(|set| bench.launch(set)))?;
    stream.synchronize()?;
    if let Some(status) = bench.status.take() {
        return Err(format!("{}: {status}", name(case)).into());
    }
    // A copy reads and writes: of half the bytes it takes as long as reading all of them may.
    let (from, mut to) = (stream.alloc_zeros::<u8>(read.div_ceil(2))?, stream.alloc_zeros(read.div_ceil(2))?);
    let copy = median_us(context, stream, 1, || Ok(stream.memcpy_dtod(&from, &mut to)?))?;
    // Two operations for each element of a query and a key, and two for each of a weight and a value.
    let keys = if past == 0 { current * (current + 1) / 2 } else { current * kvlen };
    let flops = 4.0 * (batch * keys * QUERY_HEADS * HEAD_DIM) as f32;
    let checked = if compared { "" } else { "  (too large to be compared with the CPU)" };
    Ok(Ok(format!(
        "{:<62} {call:>10.2} {:>8.0} {:>7.2} {:>8.2} {sets:>5}{checked}",
        name(case),
        read as f32 / call / 1e3,
        copy / call,
        flops / call / 1e6
    )))
}

/// What the columns of a line are.
pub const HEAD: &str = concat!(
    "attention: time in us; GB/s of keys and values read; ratio: the time of a copy that moves as many bytes by ours; \
     TFLOP/s\n",
    "case                                                                 call     GB/s   ratio  TFLOP/s  sets"
);
