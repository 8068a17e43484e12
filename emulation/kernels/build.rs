//! Compiles the CUDA kernels for the CPU: as they are, and with errors planted in copies of them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

mod mutants;

use kvcache_schema::TypeCombination;
use mutants::{MUTANTS, Mutant};

fn main() -> io::Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
    let sources = Path::new("../../kernels/src/cuda/kernel");
    println!("cargo::rerun-if-changed=shim");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=mutants.rs");
    println!("cargo::rerun-if-changed={}", sources.display());

    let sanitize = env::var_os("CARGO_FEATURE_SANITIZE").is_some();
    let compile = |library: &str, sources: &Path, file: &str, defines: &[(&str, &str)], warnings: bool| {
        let mut build = cc::Build::new();
        // Each operation is rounded by itself, and pragmas for unrolling are the GPU's.
        build
            .cpp(true)
            .std("c++17")
            .opt_level(2)
            .flag("-ffp-contract=off")
            .flag("-Wno-unknown-pragmas")
            .include("shim");
        build.include(sources).file(Path::new("shim").join(file)).warnings(warnings).extra_warnings(warnings);
        if sanitize {
            build.flags(["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-fno-omit-frame-pointer"]);
        }
        for &(name, value) in defines {
            build.define(name, value);
        }
        build.compile(library);
    };
    if sanitize {
        // rustc links without the compiler's libraries, and the runtime must come before the C library: so it is linked
        // in.
        for argument in ["-Wl,--whole-archive", "-l:libasan.a", "-Wl,--no-whole-archive", "-l:libubsan.a", "-lstdc++"] {
            println!("cargo::rustc-link-arg-tests={argument}");
        }
    }

    let mut builds = String::new();
    let count = TypeCombination::LEGAL.len();
    write!(builds, "/// The kernels as they are.\npub static FAITHFUL: [Build; {count}] = [\n").ok();
    let mut externs = String::from("unsafe extern \"C\" {\n");
    for types in TypeCombination::LEGAL.map(TypeCombination::name) {
        compile(&types, sources, "kernels.cpp", &defines(&types, &types, &types), true);
        entry(&mut builds, &mut externs, &types, &types, &types);
    }
    let count = MUTANTS.len();
    write!(builds, "];\n\n/// The kernels with planted errors.\npub static MUTANTS: [Build; {count}] = [\n").ok();
    for Mutant { name, types, file, from, to } in MUTANTS {
        let folder = out.join(name);
        fs::create_dir_all(&folder)?;
        for source in fs::read_dir(sources)? {
            let source = source?.path();
            fs::copy(&source, folder.join(source.file_name().unwrap_or_default()))?;
        }
        let text = fs::read_to_string(folder.join(file))?;
        assert_eq!(text.matches(from).count(), 1, "{name}: {file} has not {from:?} once");
        fs::write(folder.join(file), text.replace(from, to))?;
        let symbol = format!("{types}_{name}");
        compile(name, &folder, "kernels.cpp", &defines(types, &symbol, &symbol), false);
        entry(&mut builds, &mut externs, name, types, &symbol);
    }
    builds.push_str("];\n");
    compile("arithmetic", sources, "arithmetic.cpp", &defines("f16_i8_f16", "arithmetic", "arithmetic"), true);
    // After those that need it.
    compile("shim", sources, "shim.cpp", &[], true);
    fs::write(out.join("builds.rs"), format!("{externs}}}\n\n{builds}"))
}

/// What `kernels.cpp` must know.
fn defines<'a>(types: &str, namespace: &'a str, symbol: &'a str) -> [(&'static str, &'a str); 5] {
    let element = |name: Option<&str>| match name {
        Some("f32") => "F32",
        Some("f16") => "F16",
        Some("i8") => "I8",
        Some("i4") => "I4",
        None => "None",
        Some(other) => unreachable!("{other}"),
    };
    let mut parts = types.split('_');
    [
        ("NAMESPACE", namespace),
        ("TYPES", symbol),
        ("VALUES", element(parts.next())),
        ("CELLS", element(parts.next())),
        ("SCALES", element(parts.next())),
    ]
}

/// Declares a build in the generated Rust.
fn entry(builds: &mut String, externs: &mut String, name: &str, types: &str, symbol: &str) {
    writeln!(externs, "    fn kvcache_launch_{symbol}(kernel: u32, launch: *const ShimLaunch) -> i32;").ok();
    writeln!(builds, "    Build {{ name: \"{name}\", types: \"{types}\", launch: kvcache_launch_{symbol} }},").ok();
}
