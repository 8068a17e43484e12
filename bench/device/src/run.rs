//! One case: its tensors, the comparison of its answer with the CPU's, its times.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use kvcache_op::cuda::cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use kvcache_op::cuda::{DeviceInputs, DeviceMut, DeviceOutputs, DeviceRef, OutputRows, StatusWord};
use kvcache_op::schema::CacheDims;
use kvcache_op::{ElementType, IndexInputs, Inputs, KeyValueCache, Outputs, Serial, TensorMut, TensorRef};

use crate::case::{Case, HEAD_DIM, NUM_HEADS};
use crate::measure::{direct_median_us, is_quick, median_us};
use crate::row::Row;

/// Sets of tensors hold several times what the device's cache holds, if one alone does not.
const ROTATED_BYTES: usize = 256 << 20;
const MOST_SETS: usize = 64;
/// Answers are compared up to this size of a call: that of a prefill with every type, where warps take long rounds.
const COMPARED_BYTES: usize = 600 << 20;

/// A slice of at least one byte, and the length that counts.
struct Bytes {
    slice: CudaSlice<u8>,
    len: usize,
}

impl Bytes {
    fn new(stream: &Arc<CudaStream>, len: usize, seed: usize) -> Result<Self, Box<dyn Error>> {
        let mut bytes: Vec<u8> = (0..len.max(1)).map(|i| pattern(i + seed)).collect();
        bytes.shrink_to_fit();
        Ok(Self { slice: stream.clone_htod(&bytes)?, len })
    }

    fn zeros(stream: &Arc<CudaStream>, len: usize) -> Result<Self, Box<dyn Error>> {
        Ok(Self { slice: stream.alloc_zeros(len.max(1))?, len })
    }
}

/// Bytes that are no NaN and no infinity in any type.
pub fn pattern(i: usize) -> u8 {
    (i.wrapping_mul(2_654_435_761) >> 11) as u8 & 0x3b
}

/// The tensors of one call.
struct Set {
    current: [Bytes; 2],
    cache: Bytes,
    scale: Option<Bytes>,
    outputs: [Bytes; 2],
}

/// The index inputs, which all sets share.
struct Indices {
    seqstarts: CudaSlice<i64>,
    no_seqstarts: CudaSlice<i64>,
    cachestarts: CudaSlice<i64>,
    start_pos: CudaSlice<i64>,
    kvlen: CudaSlice<i64>,
    kvstarts: Vec<i64>,
}

/// Which part of a call is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Both,
    Store,
    Load,
}

struct Bench<'a> {
    case: &'a Case,
    op: KeyValueCache,
    stream: &'a Arc<CudaStream>,
    status: StatusWord,
    indices: Indices,
}

fn dims(case: &Case, inner: usize) -> CacheDims {
    CacheDims { max_t: case.max_t(), num_layer: 1, num_heads: NUM_HEADS, inner }
}

fn bytes(element: ElementType, shape: &[usize]) -> usize {
    element.bytes(shape.iter().product()).unwrap_or(usize::MAX)
}

impl Bench<'_> {
    fn current_shape(&self) -> [usize; 3] {
        [self.case.batch * self.case.current, NUM_HEADS, HEAD_DIM]
    }

    fn output_shape(&self) -> [usize; 3] {
        let rows = self.case.batch * (self.case.past + self.case.current);
        [rows, NUM_HEADS * self.case.num_repeat, HEAD_DIM]
    }

    fn set(&self, i: usize) -> Result<Set, Box<dyn Error>> {
        let Case { types, layout, .. } = *self.case;
        let current = bytes(types.t1, &self.current_shape());
        let output = bytes(types.t1, &self.output_shape());
        let cache = bytes(types.t2, &layout.shape(dims(self.case, HEAD_DIM)));
        let scale = types.t3.zip(self.case.scale_inner());
        let scale = scale.map(|(t3, inner)| bytes(t3, &layout.shape(dims(self.case, inner))));
        Ok(Set {
            current: [Bytes::new(self.stream, current, 3 * i)?, Bytes::new(self.stream, current, 7 * i + 1)?],
            // Large caches are not worth the wait for a pattern.
            cache: match cache > COMPARED_BYTES {
                true => Bytes::zeros(self.stream, cache)?,
                false => Bytes::new(self.stream, cache, i)?,
            },
            scale: scale.map(|len| Bytes::new(self.stream, len, i)).transpose()?,
            outputs: [Bytes::zeros(self.stream, output)?, Bytes::zeros(self.stream, output)?],
        })
    }

    fn launch(&self, set: &mut Set, part: Part) -> Result<(), Box<dyn Error>> {
        let Case { types, layout, batch, .. } = *self.case;
        let (stream, indices) = (&**self.stream, &self.indices);
        let mut current_shape = self.current_shape();
        let mut output_shape = self.output_shape();
        if part == Part::Load {
            current_shape[0] = 0;
        }
        if part == Part::Store {
            output_shape[0] = 0;
        }
        let views =
            set.current.each_ref().map(|values| values.slice.slice(0..bytes(types.t1, &current_shape).min(values.len)));
        let (seqstarts, start_pos) = match part {
            Part::Load => (&indices.no_seqstarts, &indices.kvlen),
            Part::Both | Part::Store => (&indices.seqstarts, &indices.start_pos),
        };
        let inputs = DeviceInputs {
            current_key: DeviceRef::from_bytes(types.t1, current_shape, &views[0], stream),
            current_value: DeviceRef::from_bytes(types.t1, current_shape, &views[1], stream),
            indices: IndexInputs {
                seqstarts: DeviceRef::new([batch + 1], seqstarts, stream),
                cachestarts: DeviceRef::new([batch, self.case.max_p()], &indices.cachestarts, stream),
                start_pos: DeviceRef::new([batch], start_pos, stream),
                kvstarts: match part {
                    Part::Store => OutputRows::AtMost(0),
                    Part::Both | Part::Load => OutputRows::Kvstarts(indices.kvstarts.as_slice().into()),
                },
                max_seqlen: (&i64::MAX).into(),
                max_kvlen: (&i64::MAX).into(),
            },
        };
        let cache_shape = layout.shape(dims(self.case, HEAD_DIM));
        let cache = DeviceMut::from_bytes(types.t2, cache_shape, &mut set.cache.slice, stream);
        let scale = set.scale.as_mut().zip(types.t3).zip(self.case.scale_inner()).map(|((scale, t3), inner)| {
            DeviceMut::from_bytes(t3, layout.shape(dims(self.case, inner)), &mut scale.slice, stream)
        });
        let call = self.op.check_device(inputs, cache, scale)?;
        let output = bytes(types.t1, &output_shape);
        let [mut key, mut value] = set.outputs.each_mut().map(|bytes| bytes.slice.slice_mut(0..output));
        let outputs = DeviceOutputs {
            key: DeviceMut::from_bytes(types.t1, output_shape, &mut key, stream),
            value: DeviceMut::from_bytes(types.t1, output_shape, &mut value, stream),
        };
        Ok(call.launch(outputs, &self.status, stream)?)
    }

    /// Makes one call and compares all that it writes with what the CPU writes.
    fn compare(&self, set: &mut Set) -> Result<(), Box<dyn Error>> {
        let Case { types, layout, batch, past, current, .. } = *self.case;
        let host = |bytes: &Bytes| self.stream.clone_dtoh(&bytes.slice);
        let [key, value] = set.current.each_ref().map(host);
        let (key, value, mut cache) = (key?, value?, host(&set.cache)?);
        let mut scale = set.scale.as_ref().map(host).transpose()?;
        let mut expected = [0; 2].map(|_: i32| vec![0; bytes(types.t1, &self.output_shape())]);
        let starts = |len: usize| (0..=batch).map(|b| (b * len) as i64).collect::<Vec<_>>();
        let (seqstarts, kvstarts) = (starts(current), starts(past + current));
        let (table, start_pos) = (self.case.cachestarts(), vec![past as i64; batch]);
        // SAFETY: all are vectors of the bytes that their shapes ask for, which nothing else uses, and aligned: memory
        // of this size is, for every type.
        unsafe {
            let read = |element, shape: &[usize], data: &[u8]| TensorRef::from_raw_parts(element, shape, data.as_ptr());
            let write = |element, shape: &[usize], data: &mut [u8]| {
                TensorMut::from_raw_parts(element, shape, data.as_mut_ptr())
            };
            let inputs = Inputs {
                current_key: read(types.t1, &self.current_shape(), &key),
                current_value: read(types.t1, &self.current_shape(), &value),
                indices: IndexInputs {
                    seqstarts: seqstarts.as_slice().into(),
                    kvstarts: kvstarts.as_slice().into(),
                    cachestarts: TensorRef::from_raw_parts(
                        ElementType::Int64,
                        [batch, self.case.max_p()],
                        table.as_ptr().cast(),
                    ),
                    start_pos: start_pos.as_slice().into(),
                    max_seqlen: (&i64::MAX).into(),
                    max_kvlen: (&i64::MAX).into(),
                },
            };
            let cache = write(types.t2, &layout.shape(dims(self.case, HEAD_DIM)), &mut cache);
            let scale = scale.as_mut().zip(types.t3).zip(self.case.scale_inner());
            let scale = scale.map(|((scale, t3), inner)| write(t3, &layout.shape(dims(self.case, inner)), scale));
            let [key, value] = expected.each_mut().map(|bytes| write(types.t1, &self.output_shape(), bytes));
            self.op.run(&inputs, cache, scale, Outputs { key, value }, &Serial)?;
        }
        self.launch(set, Part::Both)?;
        self.stream.synchronize()?;
        let same = host(&set.outputs[0])? == expected[0]
            && host(&set.outputs[1])? == expected[1]
            && host(&set.cache)? == cache
            && set.scale.as_ref().map(host).transpose()? == scale;
        if same { Ok(()) } else { Err(format!("{}: the device's answer is not the CPU's", self.case.name()).into()) }
    }
}

/// Times a case, or says why it cannot be timed.
pub fn run(
    context: &Arc<CudaContext>,
    stream: &Arc<CudaStream>,
    case: &Case,
) -> Result<Result<Row, String>, Box<dyn Error>> {
    let total = case.store_bytes() + case.load_bytes();
    let held = case.max_t() * case.cache_bytes() + total;
    let (free, _) = context.mem_get_info()?;
    let room = free / 10 * 9;
    let copied = total.div_ceil(2);
    if held + 2 * copied > room {
        return Ok(Err(format!(
            "needs {} MB of the device's memory, {} are free",
            (held + 2 * copied) >> 20,
            free >> 20
        )));
    }
    // A prefill's store and load move about half of its bytes each, and are timed alone, too.
    let least = if case.past == 0 { case.store_bytes().min(case.load_bytes()) } else { total };
    let most = if is_quick() { 2 } else { (ROTATED_BYTES / least + 1).min(MOST_SETS) };
    let sets = most.min((room - 2 * copied) / held).max(1);

    let upload = |numbers: Vec<i64>| stream.clone_htod(&numbers);
    let kvlen = case.past + case.current;
    let starts = |len: usize| (0..=case.batch).map(|b| (b * len) as i64).collect::<Vec<_>>();
    let bench = Bench {
        op: KeyValueCache::new(case.attributes())?,
        status: StatusWord::new(context)?,
        indices: Indices {
            seqstarts: upload(starts(case.current))?,
            no_seqstarts: upload(starts(0))?,
            cachestarts: upload(case.cachestarts())?,
            start_pos: upload(vec![case.past as i64; case.batch])?,
            kvlen: upload(vec![kvlen as i64; case.batch])?,
            kvstarts: starts(kvlen),
        },
        case,
        stream,
    };
    bench.op.prepare_device(case.types.t1, case.types.t2, case.types.t3, stream)?;
    let mut tensors = (0..sets).map(|i| bench.set(i)).collect::<Result<Vec<_>, _>>()?;
    let compared = total <= COMPARED_BYTES;
    if compared {
        bench.compare(&mut tensors[0])?;
    }

    let mut time =
        |part| median_us(context, stream, sets, || tensors.iter_mut().try_for_each(|set| bench.launch(set, part)));
    let (call, store, load) = (time(Part::Both)?, time(Part::Store)?, time(Part::Load)?);
    let (rounds, calls) = if is_quick() { (1, 2) } else { (4, 50) };
    let mut host = 0.0;
    for _ in 0..rounds {
        // Not so many calls that the stream has no room for another, and what the device then needs is not counted.
        stream.synchronize()?;
        let start = Instant::now();
        for i in 0..calls {
            bench.launch(&mut tensors[i % sets], Part::Both)?;
        }
        host += start.elapsed().as_secs_f32() * 1e6 / (rounds * calls) as f32;
    }
    stream.synchronize()?;
    if let Some(status) = bench.status.take() {
        return Err(format!("{}: {status}", case.name()).into());
    }
    drop(tensors);

    let copy = |moved: usize| -> Result<f32, Box<dyn Error>> {
        let len = moved.div_ceil(2).max(1);
        let rotated = (ROTATED_BYTES / moved.max(1) + 1).min(MOST_SETS);
        let mut pairs = Vec::new();
        for _ in 0..rotated {
            pairs.push((stream.alloc_zeros::<u8>(len)?, stream.alloc_zeros::<u8>(len)?));
        }
        stream.synchronize()?;
        let mut copies = || {
            for (from, to) in &mut pairs {
                stream.memcpy_dtod(from, to)?;
            }
            Ok(())
        };
        // The faster way to copy counts: a graph saves the host's time, but may copy in a way of its own.
        let replayed = median_us(context, stream, rotated, &mut copies)?;
        Ok(replayed.min(direct_median_us(context, stream, rotated, copies)?))
    };
    let (copy_of_store, copy_of_load) = (copy(case.store_bytes())?, copy(case.load_bytes())?);
    let copy = copy(total)?;
    Ok(Ok(Row { case: *case, sets, compared, host, call, store, load, copy, copy_of_load, copy_of_store }))
}
