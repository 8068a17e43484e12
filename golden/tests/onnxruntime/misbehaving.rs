//! A library of custom operators that does what a library should not: `KeyValueCache` on float32, in a domain for each
//! way to fail.

use std::ffi::CString;
use std::ops::RangeInclusive;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use ort::operator::{ComputeContext, Kernel, KernelContext, Operator, OperatorDomain, OperatorInput, OperatorOutput};
use ort::sys::{ORT_API_VERSION, OrtApiBase, OrtErrorCode, OrtSessionOptions, OrtStatusPtr};
use ort::value::TensorElementType;
use ort::{AsPointer, ortsys};

/// What an operator does.
#[derive(Clone, Copy)]
enum Misdeed {
    /// A node of two layers prints a line and aborts; all others refuse every call.
    Aborts,
    /// Aborts when its kernel is made.
    AbortsAtLoad,
    /// Never returns.
    Hangs,
}

/// By domain.
const DOMAINS: [(&str, Misdeed); 3] =
    [("aborts", Misdeed::Aborts), ("aborts-at-load", Misdeed::AbortsAtLoad), ("hangs", Misdeed::Hangs)];

/// Registers the operators: what ONNX Runtime calls when it is given this library.
///
/// # Safety
/// `options` and `base` are valid, and come from the one ONNX Runtime of the process.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // the name is ONNX Runtime's
pub unsafe extern "system" fn RegisterCustomOps(
    options: *mut OrtSessionOptions,
    base: *const OrtApiBase,
) -> OrtStatusPtr {
    // SAFETY: `base` is valid, as this function requires; its functions take any version.
    let (api, first) = unsafe { (((*base).GetApi)(ORT_API_VERSION), ((*base).GetApi)(1)) };
    // SAFETY: null, or the interface of this version, which lives as long as the runtime.
    let Some(api) = (unsafe { api.as_ref() }) else {
        // SAFETY: every runtime has version 1 of the interface, whose first function copies the text.
        return unsafe { ((*first).CreateStatus)(OrtErrorCode::ORT_FAIL, c"the runtime is too old".as_ptr()) };
    };
    ort::set_api(api.clone());
    match register(options) {
        Ok(()) => OrtStatusPtr::default(),
        Err(error) => {
            let message = CString::new(error.to_string()).unwrap_or_default();
            // SAFETY: as above.
            unsafe { ((*first).CreateStatus)(OrtErrorCode::ORT_FAIL, message.as_ptr()) }
        }
    }
}

/// Adds the domains, which live as long as the process: sessions keep pointers to them.
fn register(options: *mut OrtSessionOptions) -> ort::Result<()> {
    struct Domains(Vec<OperatorDomain>);
    // SAFETY: once they are made, nothing but their addresses is used.
    unsafe impl Send for Domains {}
    // SAFETY: as above.
    unsafe impl Sync for Domains {}
    static MADE: OnceLock<Option<Domains>> = OnceLock::new();
    let make = |(name, misdeed)| OperatorDomain::new(name)?.add(Misbehaving(misdeed));
    let made = MADE.get_or_init(|| DOMAINS.into_iter().map(make).collect::<ort::Result<_>>().ok().map(Domains));
    for domain in &made.as_ref().ok_or_else(|| ort::Error::new("the operators cannot be described"))?.0 {
        ortsys![unsafe AddCustomOpDomain(options, domain.ptr().cast_mut())?];
    }
    Ok(())
}

struct Misbehaving(Misdeed);

impl Operator for Misbehaving {
    type Kernel<'attr> = Act;

    fn name(&self) -> &str {
        "KeyValueCache"
    }

    fn versions(&self) -> RangeInclusive<u32> {
        1..=1
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        use TensorElementType::{Float32, Int64};
        let types = [Float32, Float32, Int64, Int64, Int64, Int64, Int64, Int64, Float32];
        types.into_iter().map(OperatorInput::required).chain([OperatorInput::optional(Float32)])
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        [OperatorOutput::required(TensorElementType::Float32), OperatorOutput::required(TensorElementType::Float32)]
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> ort::Result<Act> {
        let Self(misdeed) = *self;
        if let Misdeed::AbortsAtLoad = misdeed {
            std::process::abort();
        }
        Ok(Act { misdeed, num_layer: context.get("num_layer").unwrap_or(1) })
    }
}

struct Act {
    misdeed: Misdeed,
    num_layer: i64,
}

impl Kernel for Act {
    fn compute(&mut self, _: &ComputeContext) -> ort::Result<()> {
        match self.misdeed {
            Misdeed::Aborts if self.num_layer == 2 => {
                println!("two layers are too many");
                std::process::abort();
            }
            Misdeed::Hangs => loop {
                thread::sleep(Duration::from_secs(1));
            },
            _ => Err(ort::Error::new("kvlen_mismatch: never in the mood")),
        }
    }
}
