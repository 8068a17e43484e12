//! Where a tensor's memory is.

use std::env;
use std::ffi::CStr;
use std::ptr::{self, NonNull};
use std::sync::LazyLock;

use ort::ortsys;
use ort::sys::{OrtMemType, OrtMemoryInfo, OrtMemoryInfoDeviceType, OrtValue};

use crate::error::Error;

/// Whether the device is the CPU, as in tests with a driver that runs on it: to the runtime all memory is then the
/// CPU's, and the CUDA provider's operators have the place of the CPU's. A debug build does so if
/// `KVCACHE_CUDA_EMULATED` is set.
pub(crate) fn is_emulated() -> bool {
    static EMULATED: LazyLock<bool> =
        LazyLock::new(|| env::var_os("KVCACHE_CUDA_EMULATED").is_some_and(|value| !value.is_empty()));
    cfg!(debug_assertions) && *EMULATED
}

/// Which processor must reach a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Cpu,
    Device,
}

impl Place {
    /// Checks that the tensor `value`, which the runtime has given in this call, lies here. `name` is its name in
    /// messages.
    ///
    /// The runtime sees to it. Where it should fail to, an address of the host would break the device's context for the
    /// whole process, and a check costs little beside two launches.
    pub(crate) fn check(self, name: &'static str, value: NonNull<OrtValue>) -> Result<(), Error> {
        let mut memory = ptr::null();
        ortsys![unsafe GetTensorMemoryInfo(value.as_ptr(), &mut memory)?];
        let here = match self {
            Self::Cpu => is_on_cpu(memory)?,
            Self::Device => is_on_cpu(memory)? == is_emulated(),
        };
        if here { Ok(()) } else { Err(Error::Device { name, got: memory_name(memory)?, expected: self.name() }) }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Cpu => "the CPU",
            Self::Device => "the device",
        }
    }
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

fn memory_name(memory: *const OrtMemoryInfo) -> Result<String, Error> {
    let mut name = ptr::null();
    ortsys![unsafe MemoryInfoGetName(memory, &mut name)?];
    // SAFETY: the runtime has just given a text that ends with NUL and lives as long as the tensor.
    Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}
