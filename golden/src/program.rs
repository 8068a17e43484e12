//! An implementation in any language: a program that runs one case.

use std::path::PathBuf;
use std::process::Command;

use kvcache_schema::ElementType;
use safetensors::SafeTensors;

use crate::case::{Case, Outputs};
use crate::implementation::{CallResult, Implementation, Outcome};
use crate::read::read_tensor;
use crate::tensor::Tensor;

/// A program that is called once for each case, as `PROGRAM CASE_FOLDER RESULT_FILE`.
///
/// It makes the case's calls and writes `RESULT_FILE`, a safetensors file with, for each call i, `i.cache` and
/// `i.scale` (if given) after the call, and either `i.key` and `i.value` or, in the file's metadata, `i.error`: the
/// message of the refusal. int4 is packed as in the case, with dtype U8. It exits with 0, or with another status and a
/// reason on standard error if it cannot run the case.
#[derive(Debug, Clone)]
pub struct Program {
    /// The program's path.
    pub path: PathBuf,
}

impl<A, I> Implementation<A, I> for Program {
    fn run(&self, case: &Case<A, I>) -> Result<Vec<CallResult>, String> {
        let folder = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
        let result = folder.path().join("result.safetensors");
        let output = Command::new(&self.path)
            .args([&case.folder, &result])
            .output()
            .map_err(|error| format!("{} could not be started: {error}", self.path.display()))?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr);
            return Err(format!("the program ended with {}: {}", output.status, reason.trim_end()));
        }
        let bytes = std::fs::read(&result).map_err(|error| format!("the program wrote no result: {error}"))?;
        results(case, &bytes)
    }
}

/// The results in a result file, one for each call.
fn results<A, I>(case: &Case<A, I>, bytes: &[u8]) -> Result<Vec<CallResult>, String> {
    let unreadable = |error: safetensors::SafeTensorError| format!("the program's result cannot be read: {error}");
    let file = SafeTensors::deserialize(bytes).map_err(unreadable)?;
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(unreadable)?;
    let result = |i: usize| {
        let tensor = |name: &str, like: Option<&Tensor>| -> Result<Tensor, String> {
            let int4 = like.filter(|like| like.element() == ElementType::Int4);
            let view = file.tensor(&format!("{i}.{name}")).map_err(unreadable)?;
            read_tensor(&view, int4.map(|like| like.shape().to_vec()).as_ref())
                .ok_or_else(|| format!("the program's {i}.{name} is {:?} of shape {:?}", view.dtype(), view.shape()))
        };
        let refusal = header.metadata().as_ref().and_then(|metadata| metadata.get(&format!("{i}.error")));
        Ok(CallResult {
            outcome: match refusal {
                Some(message) => Outcome::refused(message.clone()),
                None => Outcome::Done(Outputs { key: tensor("key", None)?, value: tensor("value", None)? }),
            },
            cache: tensor("cache", Some(&case.cache))?,
            scale: case.scale.as_ref().map(|scale| tensor("scale", Some(scale))).transpose()?,
        })
    };
    (0..case.steps.len()).map(result).collect()
}
