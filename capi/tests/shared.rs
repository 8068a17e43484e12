//! What C has of the library, shared by threads; those of a pool end with it. (That nothing is kept of what is freed is
//! proven by the programs in C, under a sanitizer that finds leaks.)

use std::ffi::{CStr, c_void};
use std::fs;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use kvcache::*;
use kvcache_op::dlpack::{DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLTensor};

const HEADS: usize = 8;
const HEAD_DIM: usize = 64;
const TOKENS: usize = 1200;

/// A tensor of the caller's, and the memory behind it.
struct Tensor<T> {
    shape: Vec<i64>,
    data: Vec<T>,
}

impl<T: Clone + Default> Tensor<T> {
    fn new(shape: &[usize]) -> Self {
        let len = shape.iter().product();
        Self { shape: shape.iter().map(|&dim| dim as i64).collect(), data: vec![T::default(); len] }
    }

    fn of(data: &[T]) -> Self {
        Self { shape: vec![data.len() as i64], data: data.to_vec() }
    }

    /// Its description, valid as long as the tensor is.
    fn dl(&mut self) -> DLTensor {
        let code = if size_of::<T>() == 8 { DLDataTypeCode::INT } else { DLDataTypeCode::FLOAT };
        DLTensor {
            data: self.data.as_mut_ptr().cast(),
            device: DLDevice { device_type: DLDeviceType::CPU, device_id: 0 },
            ndim: self.shape.len() as i32,
            dtype: DLDataType { code, bits: 8 * size_of::<T>() as u8, lanes: 1 },
            shape: self.shape.as_mut_ptr(),
            strides: ptr::null_mut(),
            byte_offset: 0,
        }
    }
}

/// The kind of an error, which is freed.
fn kind(error: *mut kvcache_error) -> Result<(), String> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: an error, which is freed here alone.
    unsafe {
        let kind = CStr::from_ptr(kvcache_error_kind(error)).to_str().unwrap().to_owned();
        assert!(!CStr::from_ptr(kvcache_error_message(error)).is_empty());
        kvcache_error_free(error);
        Err(kind)
    }
}

/// A call of one sequence, large enough to be split among threads; `seed` decides its values. The outputs must be those
/// of the calling thread alone, which are the current rows. With a wrong `kvlen` it is refused.
fn call(op: *const kvcache_operator, workers: *const kvcache_workers, seed: usize, kvlen: i64) -> Result<(), String> {
    let shape = [TOKENS, HEADS, HEAD_DIM];
    let mut current: [Tensor<f32>; 2] = [Tensor::new(&shape), Tensor::new(&shape)];
    for (i, value) in current.iter_mut().flat_map(|tensor| &mut tensor.data).enumerate() {
        *value = (i * 7 + seed) as f32;
    }
    let mut cache = Tensor::<f32>::new(&[TOKENS, 1, 2, HEADS, HEAD_DIM]);
    let mut outputs: [Tensor<f32>; 2] = [Tensor::new(&shape), Tensor::new(&shape)];
    let mut ints = [&[0, TOKENS as i64][..], &[0, kvlen], &[0], &[0], &[TOKENS as i64], &[kvlen]].map(Tensor::of);
    let ints: Vec<_> = ints.iter_mut().map(Tensor::dl).collect();
    let [seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen] = &ints[..] else { unreachable!() };
    let [key, value] = current.each_mut().map(Tensor::dl);
    let indices = kvcache_indices { seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen };
    let inputs = kvcache_inputs { current_key: &key, current_value: &value, indices };
    let [out_key, out_value] = outputs.each_mut().map(Tensor::dl);
    // SAFETY: the operator and the workers are there, and every tensor describes memory that only this call uses.
    kind(unsafe { kvcache_run(op, &inputs, &cache.dl(), ptr::null(), &out_key, &out_value, workers) })?;
    assert!(outputs.iter().zip(&current).all(|(output, current)| output.data == current.data));
    Ok(())
}

/// How often the caller's own threads have been given pieces of work.
static SHARED: AtomicUsize = AtomicUsize::new(0);

/// The caller's own threads.
unsafe extern "C" fn parallel_for(_: *mut c_void, tasks: usize, task: kvcache_task, argument: *mut c_void) {
    let argument = argument as usize;
    SHARED.fetch_add(1, Ordering::Relaxed);
    thread::scope(|scope| {
        for i in 0..tasks {
            // SAFETY: each part is done once, and all have ended when the scope ends.
            scope.spawn(move || unsafe { task(argument as *mut c_void, i) });
        }
    });
}

fn pool(threads: usize) -> *mut kvcache_workers {
    let mut workers = ptr::null_mut();
    // SAFETY: `workers` is valid for writes.
    kind(unsafe { kvcache_workers_new(threads, &mut workers) }).unwrap();
    workers
}

fn own_threads() -> *mut kvcache_workers {
    let mut workers = ptr::null_mut();
    // SAFETY: `workers` is valid for writes; the function does as its type says.
    kind(unsafe { kvcache_workers_from(2, Some(parallel_for), ptr::null_mut(), &mut workers) }).unwrap();
    workers
}

/// The threads of this process.
#[cfg(target_os = "linux")]
fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

/// Four threads that call one operator on the same workers. One test, since it counts what the whole process has.
#[test]
#[cfg(target_os = "linux")]
fn operators_and_workers_are_shared() {
    let before = threads();
    for workers in [pool(3), own_threads(), ptr::null_mut()] {
        let mut op = ptr::null_mut();
        // SAFETY: both are valid.
        kind(unsafe { kvcache_create(&kvcache_attributes_default(), &mut op) }).unwrap();
        let (op_address, workers_address) = (op as usize, workers as usize);
        thread::scope(|scope| {
            for seed in 0..4 {
                scope.spawn(move || {
                    let (op, workers) = (op_address as *const _, workers_address as *const _);
                    call(op, workers, seed, TOKENS as i64).unwrap();
                    assert_eq!(call(op, workers, 0, 1).unwrap_err(), "kvlen_mismatch");
                });
            }
        });
        // SAFETY: made above, and no call uses them any more.
        unsafe {
            kvcache_free(op);
            kvcache_workers_free(workers);
        }
    }
    assert!(SHARED.load(Ordering::Relaxed) > 0, "large calls are shared among threads");
    // Threads of a pool that has been freed end a moment later.
    let ended = (0..2000).any(|_| {
        thread::sleep(Duration::from_millis(5));
        threads() <= before
    });
    assert!(ended, "{} threads, expected {before}", threads());
}
