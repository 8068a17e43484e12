//! The library's one symbol.

use std::ffi::{CStr, CString};
use std::sync::OnceLock;

use kvcache_schema::DOMAINS;
use ort::operator::OperatorDomain;
use ort::sys::{ORT_API_VERSION, OrtApi, OrtApiBase, OrtErrorCode, OrtSessionOptions, OrtStatusPtr};
use ort::{AsPointer, ortsys};

use crate::border::{catch, text};
#[cfg(feature = "cuda")]
use crate::cuda::CudaOperator;
use crate::error::Error;
use crate::newer::{LendTypeAndShape, lend_type_and_shape};
use crate::operator::TypedOperator;

/// Registers the operator in the session options: what ONNX Runtime calls when it is given this library.
///
/// A status other than null says why it could not be done; the caller releases it.
///
/// # Safety
/// `options` and `base` are valid, and come from the same ONNX Runtime.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // the name is ONNX Runtime's
pub unsafe extern "system" fn RegisterCustomOps(
    options: *mut OrtSessionOptions,
    base: *const OrtApiBase,
) -> OrtStatusPtr {
    // SAFETY: the caller's promise on `base`.
    let base = unsafe { &*base };
    let OrtApiBase { GetApi, GetVersionString } = *base;
    let outcome = catch(|| {
        // SAFETY: functions of the base take any version.
        let api = unsafe { GetApi(ORT_API_VERSION) };
        if api.is_null() {
            // SAFETY: as above; the text is a constant of the runtime.
            let found = unsafe { CStr::from_ptr(GetVersionString()) }.to_string_lossy().into_owned();
            return Err(Error::OldRuntime { found, wanted: ORT_API_VERSION });
        }
        // SAFETY: not null, so it is the interface of this version, which lives as long as the runtime.
        use_runtime(unsafe { &*api }, base)?;
        for domain in domains()? {
            // SAFETY: the options are the caller's, valid; the domain is never released.
            ortsys![unsafe AddCustomOpDomain(options, domain.0.ptr().cast_mut())?];
        }
        Ok(())
    });
    match outcome {
        Ok(()) => OrtStatusPtr::default(),
        // SAFETY: every runtime has version 1 of the interface.
        Err(error) => unsafe { status(GetApi(1), &error.to_string()) },
    }
}

/// The runtime that the library serves.
static RUNTIME: OnceLock<Runtime> = OnceLock::new();

struct Runtime {
    api: &'static OrtApi,
    lender: Option<LendTypeAndShape>,
}

/// Makes all calls of this library go to the runtime with this interface.
///
/// # Errors
/// If another copy of ONNX Runtime in this process has registered the library already: it can serve one.
fn use_runtime(api: &'static OrtApi, base: &OrtApiBase) -> Result<(), Error> {
    let served = RUNTIME.get_or_init(|| {
        ort::set_api(api.clone());
        Runtime { api, lender: lend_type_and_shape(base) }
    });
    if std::ptr::eq(served.api, api) { Ok(()) } else { Err(Error::SecondRuntime) }
}

/// The runtime's function that lends a tensor's type and shape, if it has one.
pub(crate) fn lender() -> Option<LendTypeAndShape> {
    RUNTIME.get()?.lender
}

/// An operator domain that lives as long as the process, as it must: sessions keep pointers to it.
struct Domain(OperatorDomain);

// SAFETY: once it is made, nothing but its address is asked for.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

/// The operator's domains, made once.
fn domains() -> Result<&'static [Domain], Error> {
    static MADE: OnceLock<Result<Vec<Domain>, String>> = OnceLock::new();
    let made =
        MADE.get_or_init(|| DOMAINS.into_iter().map(domain).collect::<ort::Result<_>>().map_err(|e| e.to_string()));
    made.as_deref().map_err(|reason| Error::Definition(reason.clone()))
}

fn domain(name: &str) -> ort::Result<Domain> {
    let domain = OperatorDomain::new(name)?;
    #[cfg(feature = "cuda")]
    let domain = TypedOperator::all().map(CudaOperator).try_fold(domain, OperatorDomain::add)?;
    let mut cpu = TypedOperator::all().filter(|_| !cfg!(feature = "cuda-emulated"));
    let domain = cpu.try_fold(domain, OperatorDomain::add)?;
    Ok(Domain(domain))
}

/// A failed status of the runtime that `api` belongs to.
///
/// # Safety
/// `api` is a runtime's interface, of any version.
unsafe fn status(api: *const OrtApi, message: &str) -> OrtStatusPtr {
    let message = CString::new(text(message)).unwrap_or_default();
    // SAFETY: the first function of the interface is there in every version; it copies the text.
    unsafe { ((*api).CreateStatus)(OrtErrorCode::ORT_FAIL, message.as_ptr()) }
}
