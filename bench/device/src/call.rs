//! A case's tensors on the device, its calls, and the comparison of an answer with the CPU's.

use std::error::Error;
use std::sync::Arc;

use half::f16;
use kvcache_op::cuda::cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use kvcache_op::cuda::{
    DeviceCacheAttentionInputs, DeviceInputs, DeviceMut, DeviceOutputs, DeviceRef, OutputRows, StatusWord,
};
use kvcache_op::schema::CacheDims;
use kvcache_op::{
    AttentionAttributes, CacheAttentionAttributes, CacheAttentionInputs, ElementType, IndexInputs, Inputs,
    KeyValueCache, MultiHeadCacheAttention, Outputs, Serial, TensorMut, TensorRef,
};

use crate::case::{Case, HEAD_DIM, NUM_HEADS};

/// Caches up to this size have a pattern in them; larger ones are not worth the wait.
const PATTERNED_BYTES: usize = 600 << 20;

enum Op {
    Cache(KeyValueCache),
    Attention(MultiHeadCacheAttention),
}

/// The tensors of one call, each of at least one byte.
pub struct Set {
    query: CudaSlice<u8>,
    current: [CudaSlice<u8>; 2],
    cache: CudaSlice<u8>,
    scale: Option<CudaSlice<u8>>,
    /// `key` and `value`, or `attn_output` twice.
    outputs: [CudaSlice<u8>; 2],
}

/// A case with what all of its calls share.
pub struct Bench<'a> {
    case: &'a Case,
    op: Op,
    stream: &'a Arc<CudaStream>,
    pub status: StatusWord,
    /// `seqstarts` and `kvstarts` on the host.
    starts: [Vec<i64>; 2],
    seqstarts: CudaSlice<i64>,
    cachestarts: CudaSlice<i64>,
    start_pos: CudaSlice<i64>,
    scratch: CudaSlice<u8>,
}

fn bytes(element: ElementType, shape: &[usize]) -> usize {
    element.bytes(shape.iter().product()).unwrap_or(usize::MAX)
}

/// Bytes that are no NaN and no infinity in any type.
fn pattern(i: usize) -> u8 {
    (i.wrapping_mul(2_654_435_761) >> 11) as u8 & 0x3b
}

impl<'a> Bench<'a> {
    pub fn new(
        context: &Arc<CudaContext>,
        stream: &'a Arc<CudaStream>,
        case: &'a Case,
    ) -> Result<Self, Box<dyn Error>> {
        let &Case { types, batch, past, current, query_heads, .. } = case;
        let starts = |len: usize| (0..=batch).map(|b| (b * len) as i64).collect::<Vec<_>>();
        let op = match query_heads {
            0 => Op::Cache(KeyValueCache::new(case.attributes())?),
            _ => Op::Attention(MultiHeadCacheAttention::new(CacheAttentionAttributes {
                attention: AttentionAttributes {
                    num_heads: query_heads as i64,
                    num_kv_heads: NUM_HEADS as i64,
                    head_dim: HEAD_DIM as i64,
                    ..Default::default()
                },
                cache: case.attributes(),
            })?),
        };
        match &op {
            Op::Cache(op) => op.prepare_device(types.t1, types.t2, types.t3, stream)?,
            Op::Attention(op) => op.prepare_device(types.t1, types.t2, types.t3, stream)?,
        }
        Ok(Self {
            case,
            op,
            stream,
            status: StatusWord::new(context)?,
            seqstarts: stream.clone_htod(&starts(current))?,
            cachestarts: stream.clone_htod(&case.cachestarts())?,
            start_pos: stream.clone_htod(&vec![past as i64; batch])?,
            starts: [starts(current), starts(past + current)],
            scratch: stream.alloc_zeros(1)?,
        })
    }

    fn rows(&self, heads: usize) -> [usize; 3] {
        [self.case.batch * self.case.current, heads, HEAD_DIM]
    }

    fn output_shape(&self) -> [usize; 3] {
        let Case { batch, past, current, num_repeat, query_heads, .. } = *self.case;
        match self.op {
            Op::Cache(_) => [batch * (past + current), NUM_HEADS * num_repeat, HEAD_DIM],
            Op::Attention(_) => self.rows(query_heads),
        }
    }

    fn held_shape(&self, inner: usize) -> [usize; 5] {
        let dims = CacheDims { max_t: self.case.max_t(), num_layer: 1, num_heads: NUM_HEADS, inner };
        self.case.layout.shape(dims)
    }

    fn scale(&self) -> Option<(ElementType, [usize; 5])> {
        self.case.types.t3.zip(self.case.scale_inner()).map(|(t3, inner)| (t3, self.held_shape(inner)))
    }

    /// The tensors of a call; those of another `seed` hold other numbers.
    pub fn set(&self, seed: usize) -> Result<Set, Box<dyn Error>> {
        let types = self.case.types;
        let filled = |len: usize, seed: usize| match len > PATTERNED_BYTES {
            true => self.stream.alloc_zeros(len),
            false => self.stream.clone_htod(&(0..len.max(1)).map(|i| pattern(i + seed)).collect::<Vec<u8>>()),
        };
        let current = bytes(types.t1, &self.rows(NUM_HEADS));
        let output = bytes(types.t1, &self.output_shape());
        Ok(Set {
            query: filled(bytes(types.t1, &self.rows(self.case.query_heads)), 5 * seed)?,
            current: [filled(current, 3 * seed)?, filled(current, 7 * seed + 1)?],
            cache: filled(bytes(types.t2, &self.held_shape(HEAD_DIM)), seed)?,
            scale: self.scale().map(|(t3, shape)| filled(bytes(t3, &shape), seed)).transpose()?,
            outputs: [self.stream.alloc_zeros(output)?, self.stream.alloc_zeros(output)?],
        })
    }

    /// Enqueues a call.
    pub fn launch(&mut self, set: &mut Set) -> Result<(), Box<dyn Error>> {
        let Case { types, batch, query_heads, .. } = *self.case;
        let (stream, scale) = (&**self.stream, self.scale());
        let (query_shape, cache_shape) = (self.rows(query_heads), self.held_shape(HEAD_DIM));
        let (current_shape, output_shape) = (self.rows(NUM_HEADS), self.output_shape());
        let stored = DeviceInputs {
            current_key: DeviceRef::from_bytes(types.t1, current_shape, &set.current[0], stream),
            current_value: DeviceRef::from_bytes(types.t1, current_shape, &set.current[1], stream),
            indices: IndexInputs {
                seqstarts: DeviceRef::new([batch + 1], &self.seqstarts, stream),
                cachestarts: DeviceRef::new([batch, self.case.max_p()], &self.cachestarts, stream),
                start_pos: DeviceRef::new([batch], &self.start_pos, stream),
                kvstarts: OutputRows::Kvstarts(self.starts[1].as_slice().into()),
                max_seqlen: (&i64::MAX).into(),
                max_kvlen: (&i64::MAX).into(),
            },
        };
        let cache = DeviceMut::from_bytes(types.t2, cache_shape, &mut set.cache, stream);
        let scale = set.scale.as_mut().zip(scale);
        let scale = scale.map(|(scale, (t3, shape))| DeviceMut::from_bytes(t3, shape, scale, stream));
        let [key, value] = &mut set.outputs;
        let key = DeviceMut::from_bytes(types.t1, output_shape, key, stream);
        match &self.op {
            Op::Cache(op) => {
                let value = DeviceMut::from_bytes(types.t1, output_shape, value, stream);
                let call = op.check_device(stored, cache, scale)?;
                Ok(call.launch(DeviceOutputs { key, value }, &self.status, stream)?)
            }
            Op::Attention(op) => {
                let query = DeviceRef::from_bytes(types.t1, query_shape, &set.query, stream);
                let decoding_batches = (&0).into();
                let inputs =
                    DeviceCacheAttentionInputs { query, stored, decoding_batches, attn_mask: None, head_sink: None };
                let call = op.check_device(inputs, cache, scale)?;
                let needed = call.scratch_bytes()?;
                if self.scratch.len() < needed {
                    self.scratch = self.stream.alloc_zeros(needed)?;
                }
                let len = self.scratch.len();
                let scratch = DeviceMut::from_bytes(ElementType::Int8, [len], &mut self.scratch, stream);
                Ok(call.launch(key, Some(scratch), &self.status, stream)?)
            }
        }
    }

    /// Makes one call and compares what it writes with what the CPU writes: bit for bit, but for attention's output.
    pub fn compare(&mut self, set: &mut Set) -> Result<(), Box<dyn Error>> {
        let Case { types, batch, past, query_heads, .. } = *self.case;
        let host = |slice: &CudaSlice<u8>| self.stream.clone_dtoh(slice);
        let (query, key, value) = (host(&set.query)?, host(&set.current[0])?, host(&set.current[1])?);
        let mut cache = host(&set.cache)?;
        let mut scale = set.scale.as_ref().map(host).transpose()?;
        let mut expected = [vec![0; set.outputs[0].len()], vec![0; set.outputs[1].len()]];
        let (table, start_pos) = (self.case.cachestarts(), vec![past as i64; batch]);
        // SAFETY: all are vectors of the bytes that their shapes ask for, which nothing else uses, and aligned: memory
        // of this size is, for every type.
        unsafe {
            let read = |element, shape: &[usize], data: &[u8]| TensorRef::from_raw_parts(element, shape, data.as_ptr());
            let write = |element, shape: &[usize], data: &mut [u8]| {
                TensorMut::from_raw_parts(element, shape, data.as_mut_ptr())
            };
            let pages = [batch, self.case.max_p()];
            let stored = Inputs {
                current_key: read(types.t1, &self.rows(NUM_HEADS), &key),
                current_value: read(types.t1, &self.rows(NUM_HEADS), &value),
                indices: IndexInputs {
                    seqstarts: self.starts[0].as_slice().into(),
                    kvstarts: self.starts[1].as_slice().into(),
                    cachestarts: TensorRef::from_raw_parts(ElementType::Int64, pages, table.as_ptr().cast()),
                    start_pos: start_pos.as_slice().into(),
                    max_seqlen: (&i64::MAX).into(),
                    max_kvlen: (&i64::MAX).into(),
                },
            };
            let cache = write(types.t2, &self.held_shape(HEAD_DIM), &mut cache);
            let scale = scale.as_mut().zip(self.scale()).map(|(scale, (t3, shape))| write(t3, &shape, scale));
            let [key, value] = expected.each_mut().map(|bytes| write(types.t1, &self.output_shape(), bytes));
            match &self.op {
                Op::Cache(op) => op.run(&stored, cache, scale, Outputs { key, value }, &Serial)?,
                Op::Attention(op) => {
                    let query = read(types.t1, &self.rows(query_heads), &query);
                    let decoding_batches = (&0).into();
                    let inputs =
                        CacheAttentionInputs { query, stored, decoding_batches, attn_mask: None, head_sink: None };
                    op.check(&inputs, cache, scale)?.run(key, &Serial)?;
                }
            }
        }
        self.launch(set)?;
        self.stream.synchronize()?;
        let host = |slice: &CudaSlice<u8>| self.stream.clone_dtoh(slice);
        let stored = host(&set.cache)? == cache && set.scale.as_ref().map(host).transpose()? == scale;
        let right = match self.op {
            Op::Cache(_) => host(&set.outputs[0])? == expected[0] && host(&set.outputs[1])? == expected[1],
            Op::Attention(_) => is_near(&host(&set.outputs[0])?, &expected[0]),
        };
        match stored && right {
            true => Ok(()),
            false => Err(format!("{}: the device's answer is not the CPU's; stored {stored}", self.case.name()).into()),
        }
    }
}

/// Whether numbers of float16 differ by at most two units at the power of two behind the largest number.
fn is_near(got: &[u8], expected: &[u8]) -> bool {
    let numbers = |bytes: &[u8]| {
        bytes.as_chunks().0.iter().map(|&bytes| f16::from_le_bytes(bytes).to_f32()).collect::<Vec<f32>>()
    };
    let (got, expected) = (numbers(got), numbers(expected));
    let largest = expected.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let allowed = 2.0 * f16::EPSILON.to_f32() * (largest.log2().floor() + 1.0).exp2();
    // A NaN is near nothing.
    got.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= allowed)
}
