//! `RegisterCustomOps`, the library's one symbol.

use std::ffi::{CStr, CString};
use std::sync::OnceLock;

use kvcache_schema::OperatorKind;
use ort::operator::OperatorDomain;
use ort::session::builder::SessionBuilder;
use ort::sys::{ORT_API_VERSION, OrtApi, OrtApiBase, OrtErrorCode, OrtSessionOptions, OrtStatusPtr};
use ort::{AsPointer, ortsys};

#[cfg(feature = "cuda")]
use crate::cuda::is_emulated;
use crate::error::{Error, catch, without_nul};
use crate::kernel::{Provider, TypedOperator};
use crate::runtime::use_runtime;

/// Registers the operators in the session options: what ONNX Runtime calls when it is given this library.
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
    // SAFETY: `base` is valid, see `# Safety`.
    let base = unsafe { &*base };
    let OrtApiBase { GetApi, GetVersionString } = *base;
    let outcome = catch(|| {
        // SAFETY: `GetApi` takes any number, and gives null for a version that the runtime does not have.
        let api = unsafe { GetApi(ORT_API_VERSION) };
        if api.is_null() {
            // SAFETY: `GetVersionString` gives a constant text that ends with NUL.
            let version = unsafe { CStr::from_ptr(GetVersionString()) }.to_string_lossy().into_owned();
            return Err(Error::OldRuntime { got: version, expected: ORT_API_VERSION });
        }
        // SAFETY: not null, checked above, so it is the interface of this version, which lives as long as the runtime.
        use_runtime(unsafe { &*api }, base)?;
        for domain in domains()? {
            // SAFETY: `options` is valid, see `# Safety`; the domain is never freed.
            ortsys![unsafe AddCustomOpDomain(options, domain.0.ptr().cast_mut())?];
        }
        Ok(())
    });
    match outcome {
        Ok(()) => OrtStatusPtr::default(),
        // SAFETY: every runtime has version 1 of the interface, so it is not null.
        Err(error) => unsafe { status(GetApi(1), &error.to_string()) },
    }
}

/// Registers the operators, as they are linked into this program, in the options of a session of the `ort` crate: no
/// second file is needed.
///
/// This crate depends on one version of `ort` with its feature `alternative-backend`, and so does the program then: it
/// opens ONNX Runtime by itself, gives `ort` the interface (`ort::set_api`), and passes here what `OrtGetApiBase`
/// gives. `tests/session/runtime.rs` in the repository is such a program. One that shall not be bound to a version
/// registers the shared library by its path.
///
/// # Errors
/// If the runtime is older than version 1.20, if another copy of it in this process has registered the operators, or if
/// they have been registered in these options already.
///
/// # Safety
/// `base` is of the ONNX Runtime whose interface `ort` was given, which is never unloaded.
pub unsafe fn register(builder: &mut SessionBuilder, base: &OrtApiBase) -> ort::Result<()> {
    // SAFETY: the options are borrowed, and of the same runtime as `base`, see `# Safety`.
    let status = unsafe { RegisterCustomOps(builder.ptr_mut(), base) };
    // SAFETY: the status is the call's above, and is released once, here.
    unsafe { ort::Error::result_from_status(status) }
}

/// An operator domain. It lives as long as the process, as it must: sessions keep pointers to it.
struct Domain(OperatorDomain);

// SAFETY: after it is made, only its address is used, by `AddCustomOpDomain`, which does not modify it.
unsafe impl Send for Domain {}
// SAFETY: as for `Send`.
unsafe impl Sync for Domain {}

fn domains() -> Result<&'static [Domain], Error> {
    static MADE: OnceLock<Result<Vec<Domain>, String>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let mut names: Vec<_> = OperatorKind::ALL.into_iter().flat_map(OperatorKind::domains).collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter().map(|name| domain(name)).collect::<ort::Result<_>>().map_err(|error| error.to_string())
    });
    made.as_deref().map_err(|reason| Error::Definition(reason.clone()))
}

/// The domain of this name, with its operators, on every provider that has them.
fn domain(name: &str) -> ort::Result<Domain> {
    let mut kinds = OperatorKind::ALL.into_iter().filter(|kind| kind.domains().contains(&name));
    kinds.try_fold(OperatorDomain::new(name)?, add).map(Domain)
}

fn add(domain: OperatorDomain, kind: OperatorKind) -> ort::Result<OperatorDomain> {
    #[cfg(feature = "cuda")]
    if !matches!(kind, OperatorKind::QuantizedMatMul | OperatorKind::QuantizedGather) {
        let domain = TypedOperator::add_all(domain, kind, Provider::Cuda)?;
        return if is_emulated() { Ok(domain) } else { TypedOperator::add_all(domain, kind, Provider::Cpu) };
    }
    TypedOperator::add_all(domain, kind, Provider::Cpu)
}

/// A failed status of the runtime that `api` belongs to.
///
/// # Safety
/// `api` is a runtime's interface, of any version.
unsafe fn status(api: *const OrtApi, message: &str) -> OrtStatusPtr {
    let message = CString::new(without_nul(message)).unwrap_or_default();
    // SAFETY: `CreateStatus` is the first function of every version's interface; it copies the text.
    unsafe { ((*api).CreateStatus)(OrtErrorCode::ORT_FAIL, message.as_ptr()) }
}
