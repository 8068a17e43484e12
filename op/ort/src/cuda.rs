//! The memory of ONNX Runtime's CUDA execution provider.

use std::env;
use std::ffi::CStr;
use std::ptr::{self, NonNull};
use std::sync::LazyLock;

use kvcache_op::cuda::{DeviceMut, DeviceRef, LaunchError};
use kvcache_op::{ElementType, Shape};
use ort::ortsys;
use ort::sys::{OrtMemType, OrtMemoryInfo, OrtMemoryInfoDeviceType, OrtValue};

use crate::error::Error;
use crate::tensors::{Memory, Tensors};

/// The tensors of a call on the CUDA provider.
pub(crate) type DeviceTensors<'a> = Tensors<'a, Device>;

/// The memory of a device.
pub(crate) struct Device;

impl Memory for Device {
    type Ref<'a> = DeviceRef<'a>;
    type Mut<'a> = DeviceMut<'a>;

    /// The runtime sees to it. Where it should fail to, an address of the host would break the device's context for the
    /// whole process, and a check costs little beside two launches.
    fn check(name: &'static str, value: NonNull<OrtValue>, on_host: bool) -> Result<(), Error> {
        let mut memory = ptr::null();
        ortsys![unsafe GetTensorMemoryInfo(value.as_ptr(), &mut memory)?];
        if is_on_cpu(memory)? == (on_host || is_emulated()) {
            return Ok(());
        }
        let mut got = ptr::null();
        ortsys![unsafe MemoryInfoGetName(memory, &mut got)?];
        // SAFETY: the runtime has just given a text that ends with NUL and lives as long as the tensor.
        let got = unsafe { CStr::from_ptr(got) }.to_string_lossy().into_owned();
        Err(Error::Device { name, got, expected: if on_host { "the CPU" } else { "the device" } })
    }

    unsafe fn reference<'a>(element: ElementType, shape: Shape, data: *mut u8) -> DeviceRef<'a> {
        // SAFETY: the tensor is in the device's memory, checked before, and stays until the stream of the call is done
        // with it.
        unsafe { DeviceRef::from_raw_parts(element, shape, data.addr() as u64) }
    }

    unsafe fn mutable<'a>(element: ElementType, shape: Shape, data: *mut u8) -> DeviceMut<'a> {
        // SAFETY: as in `reference`.
        unsafe { DeviceMut::from_raw_parts(element, shape, data.addr() as u64) }
    }
}

/// Whether the host reads the input `name` of an operator with these inputs: bounds and counts are checked;
/// `kvstarts[B]`, in static batching `start_pos`, is the number of keys, unless these are an input, whose shape tells.
pub(crate) fn is_on_host(inputs: &[&str], name: &str) -> bool {
    match name {
        "max_seqlen" | "max_kvlen" | "decoding_batches" => true,
        "kvstarts" => !inputs.contains(&"key"),
        "start_pos" => !inputs.contains(&"kvstarts"),
        _ => false,
    }
}

/// Whether the device is the CPU, as in tests with a driver that runs on it: to the runtime all memory is then the
/// CPU's, and the CUDA provider's operators have the place of the CPU's. A debug build does so if
/// `KVCACHE_CUDA_EMULATED` is set.
pub(crate) fn is_emulated() -> bool {
    static EMULATED: LazyLock<bool> =
        LazyLock::new(|| env::var_os("KVCACHE_CUDA_EMULATED").is_some_and(|value| !value.is_empty()));
    cfg!(debug_assertions) && *EMULATED
}

/// Whether the CPU can reach this memory: its own, or pinned memory, which counts as the device's since version 1.23.
fn is_on_cpu(memory: *const OrtMemoryInfo) -> Result<bool, Error> {
    let mut device = OrtMemoryInfoDeviceType::OrtMemoryInfoDeviceType_CPU;
    ortsys![unsafe MemoryInfoGetDeviceType(memory, &mut device)];
    if device == OrtMemoryInfoDeviceType::OrtMemoryInfoDeviceType_CPU {
        return Ok(true);
    }
    let mut kind = OrtMemType::OrtMemTypeDefault;
    ortsys![unsafe MemoryInfoGetMemType(memory, &mut kind)?];
    Ok(kind != OrtMemType::OrtMemTypeDefault)
}

impl From<LaunchError> for Error {
    fn from(error: LaunchError) -> Self {
        Self::Cuda(error.into())
    }
}
