//! An implementation in any language: a program that runs one case.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use kvcache_schema::ElementType;
use safetensors::SafeTensors;

use crate::case::{Case, Outputs};
use crate::files::OnDisk;
use crate::implementation::{CallResult, Implementation, Outcome};
use crate::read::read_tensor;
use crate::tensor::Tensor;

/// A program that is called once for each case, as `PROGRAM CASE_FOLDER RESULT_FILE`.
///
/// It makes the case's calls and writes `RESULT_FILE`, a safetensors file with, for each call i, `i.cache` and
/// `i.scale` (if given) after the call, and either its outputs (`i.key` and `i.value`, or `i.attn_output`) or, in the
/// file's metadata, `i.error`: the message of the refusal. int4 is packed as in the case, with dtype U8. It exits with
/// 0, or with another status and a reason on standard error if it cannot run the case.
///
/// `case.yaml` says which operator a case is of: `operator`, if that is not `KeyValueCache`, and `domain`, if that is
/// not `opmx.dynamic_batching`.
#[derive(Debug, Clone)]
pub struct Program {
    /// The program's path.
    pub path: PathBuf,
}

impl<A, I> Implementation<A, I> for Program {
    fn run(&self, case: &Case<A, I>) -> Result<Vec<CallResult>, String> {
        let results = self.results(&case.folder)?;
        let result = |i: usize| {
            Ok(CallResult {
                outcome: results.outcome(i, || {
                    Ok(Outputs { key: results.tensor(i, "key", None)?, value: results.tensor(i, "value", None)? })
                })?,
                cache: results.tensor(i, "cache", Some(&case.cache))?,
                scale: results.optional(i, "scale", case.scale.as_ref())?,
            })
        };
        (0..case.steps.len()).map(result).collect()
    }
}

impl Program {
    /// Runs the case in a folder.
    pub(crate) fn results(&self, case: &Path) -> Result<Results, String> {
        let case = OnDisk::new(case).map_err(|error| format!("the case cannot be unpacked: {error}"))?;
        let folder = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
        let result = folder.path().join("result.safetensors");
        let output = Command::new(&self.path)
            .args([case.path(), &result])
            .output()
            .map_err(|error| format!("{} could not be started: {error}", self.path.display()))?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr);
            return Err(format!("the program ended with {}: {}", output.status, reason.trim_end()));
        }
        let bytes = std::fs::read(&result).map_err(|error| format!("the program wrote no result: {error}"))?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(unreadable)?;
        Ok(Results { metadata: header.metadata().clone().unwrap_or_default(), bytes })
    }
}

/// What a program has written of a case.
pub(crate) struct Results {
    metadata: HashMap<String, String>,
    bytes: Vec<u8>,
}

impl Results {
    /// How call `i` ended: with what `outputs` reads, or with a refusal.
    pub(crate) fn outcome<O>(
        &self,
        i: usize,
        outputs: impl FnOnce() -> Result<O, String>,
    ) -> Result<Outcome<O>, String> {
        match self.metadata.get(&format!("{i}.error")) {
            Some(message) => Ok(Outcome::refused(message.clone())),
            None => outputs().map(Outcome::Done),
        }
    }

    /// A tensor after call `i`; if the one that it is like is int4, it is that too.
    pub(crate) fn tensor(&self, i: usize, name: &str, like: Option<&Tensor>) -> Result<Tensor, String> {
        let int4 = like.filter(|like| like.element() == ElementType::Int4);
        let file = SafeTensors::deserialize(&self.bytes).map_err(unreadable)?;
        let view = file.tensor(&format!("{i}.{name}")).map_err(unreadable)?;
        read_tensor(&view, int4.map(|like| like.shape().to_vec()).as_ref())
            .ok_or_else(|| format!("the program's {i}.{name} is {:?} of shape {:?}", view.dtype(), view.shape()))
    }

    /// The same, if there is one that it should be like.
    pub(crate) fn optional(&self, i: usize, name: &str, like: Option<&Tensor>) -> Result<Option<Tensor>, String> {
        like.map(|like| self.tensor(i, name, Some(like))).transpose()
    }
}

fn unreadable(error: safetensors::SafeTensorError) -> String {
    format!("the program's result cannot be read: {error}")
}
