//! The memory of ONNX Runtime's CUDA execution provider.

use std::env;
use std::ffi::CStr;
use std::ptr::{self, NonNull};
use std::sync::LazyLock;

use kvcache_op::cuda::LaunchError;
use ort::ortsys;
use ort::sys::{OrtMemType, OrtMemoryInfo, OrtMemoryInfoDeviceType, OrtValue};

use crate::error::Error;

/// Checks that the tensor `value`, called `name`, is on the node's device, or in the host's memory if it is read there.
///
/// The runtime sees to it. Where it should fail to, an address of the host would break the device's context for the
/// whole process, and a check costs little beside two launches.
pub(crate) fn check_place(name: &'static str, value: NonNull<OrtValue>, on_host: bool) -> Result<(), Error> {
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
