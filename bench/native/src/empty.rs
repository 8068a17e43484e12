//! Operators that do nothing, with the inputs and outputs of `KeyValueCache` and of `MultiHeadCacheAttention`: what a
//! call of any custom operator costs.

use std::ffi::CString;
use std::ops::RangeInclusive;
use std::sync::OnceLock;

use ort::operator::{ComputeContext, Kernel, KernelContext, Operator, OperatorDomain, OperatorInput, OperatorOutput};
use ort::sys::{ORT_API_VERSION, OrtApiBase, OrtErrorCode, OrtSessionOptions, OrtStatusPtr};
use ort::value::TensorElementType;
use ort::{AsPointer, ortsys};

/// The domain that the operators `Empty` and `EmptyAttention` are registered in.
const DOMAIN: &str = "kvcache.bench";

/// Registers the operators in session options: what ONNX Runtime calls when it is given this library.
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
    let make = || Empty::all().into_iter().try_fold(OperatorDomain::new(DOMAIN)?, OperatorDomain::add);
    let made = MADE.get_or_init(|| make().ok().map(Domain));
    let domain = made.as_ref().ok_or_else(|| ort::Error::new("the operators cannot be described"))?;
    ortsys![unsafe AddCustomOpDomain(options, domain.0.ptr().cast_mut())?];
    Ok(())
}

/// An operator of one choice of types.
struct Empty {
    name: &'static str,
    required: Vec<TensorElementType>,
    /// The last input, which may be left out.
    optional: Option<TensorElementType>,
    outputs: Vec<TensorElementType>,
}

impl Empty {
    /// Those of the calls that are measured.
    fn all() -> [Self; 4] {
        use TensorElementType::{Float16, Float32, Int8};
        [Self::cache(Float16), Self::cache(Int8), Self::attention(Float16), Self::attention(Float32)]
    }

    /// `KeyValueCache` on float16 values, with a cache of float16 or, quantized, of int8; scales are float16.
    fn cache(t2: TensorElementType) -> Self {
        use TensorElementType::{Float16, Int64};
        let required = vec![Float16, Float16, Int64, Int64, Int64, Int64, Int64, Int64, t2];
        Self { name: "EmptyKeyValueCache", required, optional: Some(Float16), outputs: vec![Float16; 2] }
    }

    /// `MultiHeadCacheAttention` with values and a cache of one type.
    fn attention(t1: TensorElementType) -> Self {
        let required = [vec![t1; 3], vec![TensorElementType::Int64; 7], vec![t1]].concat();
        Self { name: "EmptyMultiHeadCacheAttention", required, optional: None, outputs: vec![t1] }
    }
}

impl Operator for Empty {
    type Kernel<'attr> = Nothing;

    fn name(&self) -> &str {
        self.name
    }

    fn versions(&self) -> RangeInclusive<u32> {
        1..=1
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        let required = self.required.iter().copied().map(OperatorInput::required);
        required.chain(self.optional.map(OperatorInput::optional))
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        self.outputs.iter().copied().map(OperatorOutput::required)
    }

    fn create_kernel<'attr>(&self, _: &KernelContext<'attr>) -> ort::Result<Nothing> {
        Ok(Nothing)
    }
}

struct Nothing;

impl Kernel for Nothing {
    fn compute(&mut self, _: &ComputeContext) -> ort::Result<()> {
        Ok(())
    }
}
