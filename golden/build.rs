//! With the feature `embedded`, packs the cases for the library: an archive for each suite. The same cases give the
//! same bytes. An archive is a safetensors file of bytes, by the paths of the files, `CASE/case.yaml` and so on. Each
//! file is deflated by itself, so that one case can be had without the others.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "embedded")]
    for suite in ["cases", "static_cases", "attention_cases"] {
        println!("cargo::rerun-if-changed={suite}");
        embedded::pack(suite)?;
    }
    Ok(())
}

#[cfg(feature = "embedded")]
mod embedded {
    use std::collections::BTreeMap;
    use std::error::Error;
    use std::ffi::OsString;
    use std::fs;
    use std::io::Write;
    use std::path::Path;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;
    use safetensors::tensor::TensorView;
    use safetensors::{Dtype, SafeTensorError, serialize};

    /// Writes the archive of the cases in a folder, for the compiler to include.
    pub fn pack(suite: &str) -> Result<(), Box<dyn Error>> {
        let mut files = BTreeMap::new();
        for case in fs::read_dir(suite)? {
            let case = case?;
            for file in fs::read_dir(case.path())? {
                let file = file?;
                let name = |name: OsString| name.into_string().map_err(|name| format!("{name:?} is not UTF-8"));
                let path = format!("{}/{}", name(case.file_name())?, name(file.file_name())?);
                let mut deflated = ZlibEncoder::new(Vec::new(), Compression::best());
                deflated.write_all(&fs::read(file.path())?)?;
                files.insert(path, deflated.finish()?);
            }
        }
        if files.is_empty() {
            return Err(format!("there are no cases in {suite}").into());
        }
        let views = files.iter().map(|(path, bytes)| Ok((path, TensorView::new(Dtype::U8, vec![bytes.len()], bytes)?)));
        let archive = serialize(views.collect::<Result<Vec<_>, SafeTensorError>>()?, None)?;
        fs::write(Path::new(&std::env::var("OUT_DIR")?).join(suite), archive)?;
        Ok(())
    }
}
