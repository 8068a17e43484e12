//! An operator that does nothing, with any inputs and outputs: what a call of any custom operator costs.

use std::ffi::CString;
use std::ops::RangeInclusive;
use std::sync::OnceLock;

use ort::operator::{ComputeContext, Kernel, KernelContext, Operator, OperatorDomain, OperatorInput, OperatorOutput};
use ort::sys::{ORT_API_VERSION, OrtApiBase, OrtErrorCode, OrtSessionOptions, OrtStatusPtr};
use ort::{AsPointer, ortsys};

/// The domain that the operator `Empty` is registered in.
const DOMAIN: &str = "kvcache.bench";

/// Registers the operator in session options: what ONNX Runtime calls when it is given this library.
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
    // SAFETY: not null, so it is the interface of this version, which lives as long as the runtime.
    let outcome = match unsafe { api.as_ref() } {
        None => Err("the runtime is older than the ort crate's interface".to_owned()),
        Some(api) => {
            ort::set_api(api.clone());
            register(options).map_err(|error| error.to_string())
        }
    };
    match outcome {
        Ok(()) => OrtStatusPtr::default(),
        Err(message) => {
            let message = CString::new(message).unwrap_or_default();
            // SAFETY: every runtime has version 1 of the interface, whose first function copies the text.
            unsafe { ((*first).CreateStatus)(OrtErrorCode::ORT_FAIL, message.as_ptr()) }
        }
    }
}

/// Adds the domain, which lives as long as the process: sessions keep pointers to it.
fn register(options: *mut OrtSessionOptions) -> ort::Result<()> {
    struct Domain(OperatorDomain);
    // SAFETY: once it is made, nothing but its address is used.
    unsafe impl Send for Domain {}
    // SAFETY: as above.
    unsafe impl Sync for Domain {}
    static MADE: OnceLock<Option<Domain>> = OnceLock::new();
    let make = || OperatorDomain::new(DOMAIN)?.add(Empty);
    let made = MADE.get_or_init(|| make().ok().map(Domain));
    let domain = made.as_ref().ok_or_else(|| ort::Error::new("the operator cannot be described"))?;
    ortsys![unsafe AddCustomOpDomain(options, domain.0.ptr().cast_mut())?];
    Ok(())
}

struct Empty;

impl Operator for Empty {
    type Kernel<'attr> = Self;

    fn name(&self) -> &str {
        "Empty"
    }

    fn versions(&self) -> RangeInclusive<u32> {
        1..=1
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        [OperatorInput::variadic(1)]
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        [OperatorOutput::variadic(1)]
    }

    fn create_kernel<'attr>(&self, _: &KernelContext<'attr>) -> ort::Result<Self> {
        Ok(Self)
    }
}

impl Kernel for Empty {
    fn compute(&mut self, _: &ComputeContext) -> ort::Result<()> {
        Ok(())
    }
}
